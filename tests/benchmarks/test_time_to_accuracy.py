"""Time to accuracy: the numbers of a short run, and the bias of biased and unbiased methods."""

import math

import numpy as np
import pytest

from benchmarks.time_to_accuracy import processes, simulated
from benchmarks.time_to_accuracy.simulated import METHODS, SETTINGS, measure, play


def test_each_method_has_all_numbers(monkeypatch):
    monkeypatch.setattr(simulated, "METHODS", {name: METHODS[name] for name in ("md", "timed-md", "oort")})
    found = measure(["independent, half available"], (1, 2), budget=400.0)
    ((name, methods),) = found.items()
    assert name == "independent, half available"
    assert methods.keys() == {"md", "timed-md", "oort"}
    for each in methods.values():
        assert 0.1 < each["final"] <= 1
        assert 0 < each["to80_s"] <= each["to90_s"] <= each["to95_s"]
        if math.isfinite(each["to90_s"]):
            assert each["low"] < each["to90_s"] < each["high"]
    assert min(each["to90_s"] for each in methods.values()) < 500  # the best reaches its own level


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("md", -0.15, 0.15),
        ("timed-md", -0.2, 0.2),
        ("md, 1.3 K", 0.2, 0.9),
        ("buffered-forecast, power 0", -0.15, 0.15),
        ("fedbuff", 0.2, 0.7),
    ],
)
def test_the_bias_is_that_against_slow_clients(name, low, high):
    biases = [play(SETTINGS["independent"], METHODS[name], seed, budget=2_000.0).bias for seed in (1, 2, 3)]
    assert low < np.mean(biases) < high


@pytest.mark.slow
@pytest.mark.network
def test_real_clients_are_as_slow_as_simulated_ones(monkeypatch):
    monkeypatch.setattr(processes, "COMPARED", ("uniform", "timed-md"))
    found = processes.measure([1], rounds=4)
    assert found.keys() == {"uniform", "timed-md"}
    for values in found.values():
        (real,), (simulated,) = values["real_round_s"], values["simulated_round_s"]
        assert real > 0.4 * simulated  # the jitter of the two is drawn from different streams
