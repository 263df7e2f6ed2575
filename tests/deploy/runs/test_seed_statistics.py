"""Comparisons over several seeds: intervals, paired differences, and the table."""

import json
import math

import numpy as np
import pytest
from rich.console import Console

from deploy.runs.display import report
from deploy.runs.figure import draw
from deploy.runs.seed_statistics import Interval, by_selector, interval, paired_verdict, parse_seeds
from server.history import RunHistory

from ...support.histories import write_history


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("1-5", [1, 2, 3, 4, 5]), ("7", [7]), ("1,3,7-9", [1, 3, 7, 8, 9]), (" 2 , 1", [2, 1])],
)
def test_seeds_are_read(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["", "a", "5-1", "1-", "-1", "1,,2", "1,1", "1-3,2", "0-100000", "1.5", "1_0"]
)
def test_wrong_seeds_are_refused(text):
    with pytest.raises(ValueError, match="seeds = "):
        parse_seeds(text)


def test_an_interval_is_that_of_student():
    # By hand: mean 2, standard deviation 1, three values: 4.303 / sqrt(3).
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(2.4843, abs=1e-4)
    assert found.shown(".2f") == "2.00 ± 2.48"
    assert not found.excludes_zero
    assert interval([5.0, 5.1, 4.9]).excludes_zero
    assert interval([5.0]).shown(".1f") == "5.0"
    assert math.isnan(interval([]).mean)
    assert interval([1.0, math.nan]).shown(".1f") == "–"


@pytest.mark.parametrize("count", [2, 31])
def test_95_of_100_intervals_hold_the_truth(count):
    rng = np.random.default_rng(3)
    found = [interval(rng.normal(1.0, 2.0, count).tolist()) for _ in range(4000)]
    held = np.mean([abs(each.mean - 1.0) <= each.half for each in found])
    assert 0.94 < held < 0.965


def trials(folder, losses, first=1):
    """Write a trial for each selector and seed, with the loss of its last rounds."""
    found = []
    for selector, each in losses.items():
        for seed, loss in enumerate(each, first):
            trial = write_history(folder / f"{selector}-seed-{seed}", [2.0, *[loss] * 5], selector)
            path = trial.path
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            lines[0]["seed"] = seed
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            found.append(RunHistory(path))
            found[-1].read()
    return found


def test_trials_are_grouped_only_if_they_differ_in_the_seed(tmp_path):
    several = trials(tmp_path / "a", {"md": [1.0, 2.0], "uniform": [1.0, 2.0]})
    groups = by_selector(several[::-1])
    assert groups is not None
    assert {label: [each.settings["seed"] for each in found] for label, found in groups.items()} == {
        "uniform": [1, 2],
        "md": [1, 2],
    }
    assert by_selector(several[::2]) is None  # one seed each
    assert by_selector([several[0], several[0]]) is None  # the same seed twice
    assert by_selector([write_history(tmp_path / f"{i}", [1.0]) for i in range(2)]) is None  # without seeds


def test_differences_are_paired(tmp_path):
    """The seeds differ by 1, the selectors by .1: only the paired differences show it."""
    groups = by_selector(
        trials(
            tmp_path,
            {"uniform": [1.0, 2.0, 3.0], "md": [0.9, 1.91, 2.89], "osmd": [1.2, 1.8, 3.05], "mabs": [1.0]},
        )
    )
    assert groups is not None
    better, same, alone, note = paired_verdict(groups)
    assert better == "md: test loss -0.100 ± 0.025, accuracy +1.0 ± 0.2 points (3 seeds)."
    assert same.startswith("osmd: no difference that 3 seeds can show: test loss +0.017 ± ")
    assert alone == "mabs: too few seeds in which both have finished."
    assert "95 % intervals" in note
    del groups["uniform"]
    first, _, note = paired_verdict(groups)
    assert first.startswith("osmd: ")
    assert note.startswith("Differences from md ")
    del groups["md"]
    assert paired_verdict(groups)[0] == "mabs: too few seeds in which both have finished."


def test_table_and_figure_have_a_row_and_a_curve_for_each_selector(tmp_path):
    several = trials(tmp_path, {"uniform": [1.0, 2.0, 3.0], "md": [0.9, 1.91, 2.89]})
    console = Console(width=140, record=True)
    console.print(report(several))
    text = console.export_text()
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.split()[:1] == ["2.000"])
    assert lines[at + 1].split()[:3] == ["uniform", "±", "2.484"]  # the test loss
    assert text.count("1.900") == 1
    assert "md, seed 2: client-03 5 failed" in text
    assert "±: 95 % interval of the mean over the seeds" in text
    assert "md: test loss -0.100 ± 0.025" in text
    draw(several, tmp_path / "several.png")
    draw(several[::3], tmp_path / "one.png")
    assert (tmp_path / "several.png").stat().st_size > 20_000
    assert (tmp_path / "several.png").read_bytes() != (tmp_path / "one.png").read_bytes()


def test_an_unknown_half_excludes_nothing():
    assert not Interval(5.0, math.nan).excludes_zero
