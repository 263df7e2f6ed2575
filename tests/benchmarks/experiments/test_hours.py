"""The benchmark of real tasks by the clock, on a little made data in the same files."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.experiments import hours
from benchmarks.experiments.hours import METHODS, Case, run
from tests.support.made_data import made

LEVELS = (80, 90, 95)


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    small = replace(hours.SETTINGS["real-mnist"], num_clients=20, partition="dirichlet:1", best=1.0)
    monkeypatch.setitem(hours.SETTINGS, "real-mnist", small)
    return made(tmp_path, "mnist", 600, users=20)


def test_a_seed_decides_the_seconds_and_updates_of_every_method(mnist):
    case = Case("real-mnist", "slow are large")
    one, again = (run(3, mnist, case=case) for _ in range(2))
    assert one == again
    cells = one.cells
    assert list(cells) == [
        (row, f"{unit} to {at} %") for row in METHODS for unit in ("s", "updates") for at in LEVELS
    ]
    # The best accuracy is 1 %, so a method reaches it at its third evaluation, after 6 rounds or 12 steps.
    assert cells["fedavg", "updates to 80 %"] == cells["fedavg", "updates to 95 %"] == 60
    assert 60 <= cells["fedbuff", "updates to 80 %"] <= 12 * 10
    # Nobody waits for the slowest client of a round.
    for buffered, waiting in (
        ("fedbuff", "fedavg"),
        ("buffered-md", "md"),
        ("buffered-forecast", "forecast"),
    ):
        assert cells[buffered, "s to 90 %"] < cells[waiting, "s to 90 %"]


def test_the_speeds_decide_who_is_slow(mnist):
    large, small = (run(3, mnist, case=Case("real-mnist", f"slow are {who}")) for who in ("large", "small"))
    # `md` draws the same clients in both, and clients with much data most often.
    assert large.cells["md", "updates to 90 %"] == small.cells["md", "updates to 90 %"]
    assert large.cells["md", "s to 90 %"] > small.cells["md", "s to 90 %"]


def test_an_accuracy_that_is_not_reached_in_time_has_no_number(mnist, monkeypatch):
    monkeypatch.setattr(hours, "BUDGET", 0.0)
    assert np.isnan(list(run(0, mnist, case=Case("real-mnist", "any")).cells.values())).all()
