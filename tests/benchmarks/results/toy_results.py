"""A recorded experiment without work."""

from benchmarks.experiments import EXPERIMENTS
from benchmarks.experiments.report import Report
from benchmarks.results.files import recorded
from benchmarks.results.machine import machine
from tests.support.toy_experiments import experiment

NAME = "toy"


def toy(folder, monkeypatch):
    """Return the toy experiment, which from now on is a known one."""
    found = experiment(folder, seeds=3)
    monkeypatch.setitem(EXPERIMENTS, NAME, found)
    return found


def toy_report(each, seeds=3):
    return Report(each, [each.run(seed) for seed in range(seeds)], [1.0, 0.5, 2.0, 4.0][:seeds])


def toy_recorded(report, **changes):
    facts = {
        "measured": "2026-01-02",
        "command": "cohort bench papers toy --record",
        "commit": "abc",
        "sources": "of old",
        "data": "",
        "machine": machine(),
        **changes,
    }
    return recorded(report, **facts)
