"""Time to accuracy: the numbers of a short run, and the bias of biased and unbiased methods."""

import math

import numpy as np
import pytest

from benchmarks.experiments import slow_clients
from benchmarks.time_to_accuracy import processes, simulated
from benchmarks.time_to_accuracy.bias import bias
from benchmarks.time_to_accuracy.federation import METHODS, Federation, Setting
from benchmarks.time_to_accuracy.simulated import SETTINGS, measure


def test_each_method_has_all_numbers(monkeypatch):
    monkeypatch.setattr(simulated, "METHODS", {name: METHODS[name] for name in ("md", "timed-md", "oort")})
    monkeypatch.setattr(simulated, "BIAS_ROUNDS", 200)
    monkeypatch.setattr(simulated, "BIASED_ROUNDS", 200)
    monkeypatch.setattr("benchmarks.time_to_accuracy.bias.LEARNING_ROUNDS", 20)
    found = measure(2, quick=True)
    ((name, methods),) = found.items()
    assert name == "lognormal"
    assert methods.keys() == {"md", "timed-md", "oort"}
    for each in methods.values():
        assert 0.1 < each["final"] <= 1
        assert 0 < each["worst"] <= 1
        assert 0 < each["to80_s"] <= each["to90_s"] <= each["to95_s"]
        assert 0 < each["to80_mb"] <= each["to90_mb"] <= each["to95_mb"]
        if math.isfinite(each["to90_s"]):
            assert each["low"] < each["to90_s"] < each["high"]
    assert min(each["to90_s"] for each in methods.values()) < 500  # the best reaches its own level


@pytest.mark.parametrize("speeds", ["lognormal", "devices"])
@pytest.mark.parametrize(("slow", "sign"), [("large and hard", 1), ("small and easy", -1)])
def test_the_slow_clients_are_those_of_the_setting(speeds, slow, sign):
    federation = Federation(Setting(speeds, slow), 1)
    order = np.argsort(federation.times.typical)
    for values in (federation.sizes, federation.difficulty):
        assert sign * np.corrcoef(np.arange(60), np.asarray(values)[order])[0, 1] > 0.3
    assert np.median(federation.times.typical) == pytest.approx(10, rel=0.3)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("md", -0.05, 0.05),
        pytest.param("timed-md", -0.05, 0.05, marks=pytest.mark.slow),
        ("oort", 0.4, 1.0),
        ("md, 1.3 K", 0.08, 0.5),
        ("fedbuff", 0.05, 0.4),
        ("buffered-forecast", -0.05, 0.05),
        pytest.param("buffered-forecast, power 0.5", 0.05, 0.4, marks=pytest.mark.slow),
    ],
)
def test_the_bias_of_biased_and_of_unbiased_methods(name, low, high):
    found = bias(Federation(SETTINGS["lognormal"], 1), METHODS[name], 1000, every=50)
    assert low < found < high


def test_an_experiment_has_a_cell_for_each_method_and_number(monkeypatch):
    monkeypatch.setattr(slow_clients, "METHODS", {"md": METHODS["md"]})
    monkeypatch.setattr(simulated, "BIAS_ROUNDS", 200)
    outcome = slow_clients.run("devices", 1, quick=True)
    assert outcome.cells.keys() == {("md", column) for column, _ in slow_clients.COLUMNS.values()}
    assert 10 < outcome.cells["md", "final, %"] < 100
    assert {each.name for each in slow_clients.EXPERIMENTS} >= {
        "time-lognormal",
        "time-devices",
        "time-mnist",
    }


@pytest.mark.slow
@pytest.mark.network
def test_real_clients_are_as_slow_as_simulated_ones(monkeypatch):
    monkeypatch.setattr(processes, "COMPARED", ("uniform", "timed-forecast", "buffered-forecast"))
    monkeypatch.setattr(processes, "CLIENTS", 5)
    monkeypatch.setattr(processes, "PER_ROUND", 3)
    # With this seed the clients' seconds are alike: a real round does not wait long for a very slow client.
    found = processes.measure(1, rounds=4)
    assert found.keys() == {"uniform", "timed-forecast", "buffered-forecast"}
    for values in found.values():
        (real,), (simulated,) = values["real_round_s"], values["simulated_round_s"]
        assert real > 0.4 * simulated  # the jitter of the two is drawn from different streams
