"""The benchmark of networks, on a CPU with a tiny federation."""

import pytest

from benchmarks import networks
from tests.benchmarks.test_command import run


def test_both_engines_train_in_turns(monkeypatch):
    tiny = networks.CASES["cnn"]._replace(
        num_clients=4, samples=8, clients_per_round=2, steps=1, batch_size=4
    )
    monkeypatch.setitem(networks.CASES, "cnn", tiny)
    monkeypatch.setattr(networks, "BLOCKS", 1)
    (rows,) = networks.measure(["cnn"], "cpu", 0.0)
    assert [(each["engine"], each["device"]) for each in rows] == [("simulator", "CPU"), ("loop", "CPU")]
    for each in rows:
        assert each["updates_per_s"] == pytest.approx(2e3 / each["ms_per_round"])


def test_unknown_networks_and_missing_gpus_are_refused(monkeypatch):
    refused = run("networks", "--networks", "cnn,lstm")
    assert (refused.exit_code, refused.stderr) == (2, "networks = 'lstm': must be one of cnn, resnet18\n")
    monkeypatch.setattr("benchmarks.results.machine.gpu", lambda: "")
    refused = run("networks", "--device", "cuda")
    assert refused.exit_code == 2
    assert refused.stderr == "device = 'cuda': must be cpu: torch finds no GPU here\n"
