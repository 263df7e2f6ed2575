"""Running experiments: finished seeds are kept, failed ones cost no others, and progress is shown."""

import io
import json
import math
import pickle
from functools import partial
from inspect import signature

import numpy as np
import pytest
from rich.console import Console

from benchmarks.experiments import EXPERIMENTS, SELECTION, report, running
from benchmarks.experiments.report import Curve, Experiment, Outcome, table
from benchmarks.experiments.running import Job, as_values, outcome_of, plan, quick_form, run_all
from deploy.sweeps.jobs import finish, finished
from tests.support.toy_experiments import experiment, seeds_run, toy, toy_with_data


@pytest.fixture(autouse=True)
def code(monkeypatch):
    """The code stays as it is, whoever edits it meanwhile."""
    monkeypatch.setattr(running, "digest_of", lambda experiment: "of now")


def cells(report):
    return [dict(outcome.cells) for outcome in report.outcomes]


# A seed's file.


def job(folder, **changes):
    return Job(experiment(folder), 3, False, None, folder / "toy-3.json", "a key")._replace(**changes)


def test_a_result_comes_back_from_its_file_as_it_was(tmp_path):
    rng = np.random.default_rng(0)
    outcome = Outcome(
        {
            ("b", "x"): math.nan,
            ("a", "y"): 0.1 + 0.2,
            ("b", "y"): -math.inf,
            ("ā", "1/3"): float(np.float32(1 / 3)),
        },
        {"p": {"l": Curve(np.arange(5.0), np.array([math.nan, 1e-300, -0.0, math.inf, rng.normal()]))}},
    )
    this = job(tmp_path)
    finish(this, as_values(outcome))
    read = finished(this)
    assert read is not None
    back = outcome_of(read)
    assert list(back.cells) == list(outcome.cells)
    np.testing.assert_array_equal(list(back.cells.values()), list(outcome.cells.values()))
    for there, was in zip(back.curves["p"]["l"], outcome.curves["p"]["l"], strict=True):
        assert there.dtype == np.float64
        assert there.tobytes() == was.tobytes() or np.array_equal(there, was, equal_nan=True)
    json.loads(this.file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert [each.name for each in tmp_path.iterdir()] == ["toy-3.json"]
    assert finished(job(tmp_path, key="another")) is None


def test_every_known_experiment_can_be_sent_to_a_process_and_has_a_quick_form():
    for each in EXPERIMENTS.values():
        assert pickle.loads(pickle.dumps(each)).name == each.name
        assert quick_form(each).keys() <= signature(each.run).parameters.keys(), each.name
        assert quick_form(each) or each.name in ("poc-toy", "delta-bounds"), each.name  # short as they are
    assert SELECTION.items() <= EXPERIMENTS.items()


# Runs.


def test_finished_seeds_are_not_repeated(tmp_path):
    out = tmp_path / "seeds"
    (first,) = run_all([experiment(tmp_path)], out, seeds=2)
    assert seeds_run(tmp_path) == ["0", "1"]
    assert cells(first) == [{("md", "loss"): 1 / 3}, {("md", "loss"): 1 / 4}]
    (more,) = run_all([experiment(tmp_path)], out, seeds=4, jobs=2)
    assert seeds_run(tmp_path) == ["0", "1", "2", "3"]
    assert cells(more)[:2] == cells(first)
    assert [outcome.curves["a panel"]["md"].y[0] for outcome in more.outcomes] == [0, 1, 2, 3]
    (again,) = run_all([experiment(tmp_path)], out, seeds=3)
    assert cells(again) == cells(more)[:3]
    assert len(seeds_run(tmp_path)) == 4
    assert len(list(run_all([experiment(tmp_path)], out, seeds=1, fresh=True))) == 1
    assert seeds_run(tmp_path) == ["0", "0", "1", "2", "3"]


def test_other_code_and_other_data_mean_other_results(tmp_path, monkeypatch):
    needing = Experiment("toy", partial(toy_with_data, folder=tmp_path), data="number.txt")
    data = tmp_path / "number.txt"
    for number, code in ((5, "of now"), (5, "of now"), (7, "of now"), (7, "of later")):
        data.write_text(str(number))
        monkeypatch.setattr(running, "digest_of", lambda experiment, code=code: code)
        (made,) = run_all([needing], tmp_path / "seeds", seeds=1, data=tmp_path)
        assert cells(made) == [{("md", "loss"): 1 / (3 + number)}]
    assert seeds_run(tmp_path) == ["5", "7", "7"]
    data.unlink()
    with pytest.raises(FileNotFoundError, match=r"toy needs number.txt: name its folder with --data"):
        list(run_all([needing], tmp_path / "seeds", data=tmp_path))


def test_the_quick_form_has_one_seed_and_shares_no_result_with_the_full_form(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "_known", lambda: {"toy": {("md", "loss"): "9.9"}})
    each = experiment(tmp_path, seeds=2)
    assert {job.key for job in plan(each, tmp_path)}.isdisjoint(
        job.key for job in plan(each, tmp_path, quick=True)
    )
    (full,) = run_all([each], tmp_path / "seeds")
    (quick,) = run_all([each], tmp_path / "quick", quick=True)
    assert seeds_run(tmp_path) == ["0", "0q", "1"]
    assert quick.quick
    assert not full.quick
    assert "[9.9]" in table(full)
    assert "9.9" not in table(quick)
    assert "Quick form" in table(quick)


def test_a_failed_seed_affects_only_its_experiment_and_progress_is_shown(tmp_path):
    folders = [tmp_path / name for name in ("bad", "good")]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "fail-1").touch()
    both = [Experiment(folder.name, partial(toy, folder=folder), seeds=2) for folder in folders]
    problems = []
    console, seeds = Console(file=io.StringIO(), width=100), tmp_path / "seeds"
    reports = list(run_all(both, seeds, jobs=2, console=console, problems=problems))
    assert [each.experiment.name for each in reports] == ["good"]
    (problem,) = problems
    assert problem.startswith("bad  seed 1: Traceback")
    assert problem.endswith("ValueError: seed 1 is a bad one")
    assert "in toy" in problem
    shown = console.file.getvalue()
    assert "bad  seed 1  failed: ValueError: seed 1 is a bad one" in shown
    assert "4/4  " in shown
    assert "s of a core" in shown

    (folders[0] / "fail-1").unlink()
    reports = list(run_all(both, seeds))
    assert [each.experiment.name for each in reports] == ["bad", "good"]
    assert [seeds_run(folder) for folder in folders] == [["0", "1", "1"], ["0", "1"]]


def test_after_a_killed_process_the_same_command_goes_on(tmp_path):
    (tmp_path / "kill-1").touch()
    with pytest.raises(RuntimeError, match="a process was killed, perhaps because the memory was full"):
        list(run_all([experiment(tmp_path)], tmp_path / "seeds", seeds=3))
    (tmp_path / "kill-1").unlink()
    (made,) = run_all([experiment(tmp_path)], tmp_path / "seeds", seeds=3)
    assert len(made.outcomes) == 3
    assert seeds_run(tmp_path).count("0") == 1
