"""Running experiments: finished seeds are kept, failed ones cost no others, and progress is shown."""

import io
import json
import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.experiments import EXPERIMENTS, SELECTION, running
from benchmarks.experiments.progress import Bars, Lines
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome, Report, table
from benchmarks.experiments.running import Job, Result, Watcher, run_all
from deploy.processes.groups import processes_with
from tests.support.toy_experiments import experiment, seeds_run, toy, toy_with_data

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code stays as it is, whoever edits it meanwhile."""
    monkeypatch.setattr(running, "digest_of", lambda experiment: "of now")


def cells(report: Report) -> list[dict[Cell, float]]:
    return [dict(outcome.cells) for outcome in report.outcomes]


class Listener(Watcher):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def started(self, job: Job) -> None:
        self.heard.append(f"started {job.seed}")

    def done(self, job: Job, result: Result) -> None:
        assert result.seconds >= 0
        self.heard.append(f"done {job.seed}")

    def kept(self, experiment: Experiment, seeds: int, outdated: int) -> None:
        self.heard.append(f"kept {seeds}, {outdated} outdated")

    def failed(self, job: Job, reason: str) -> None:
        self.heard.append(f"failed {job.seed}: {reason}")


# A seed's file.


def job(folder: Path, **changes: Any) -> Job:
    return Job(experiment(folder), 3, False, folder / "toy-3.json", None, "")._replace(**changes)


def test_a_result_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
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
    this.write(Result(outcome, 1.25, "abc"))
    read = this.read()
    assert read is not None
    assert (read.seconds, read.sources) == (1.25, "abc")
    assert list(read.outcome.cells) == list(outcome.cells)
    np.testing.assert_array_equal(list(read.outcome.cells.values()), list(outcome.cells.values()))
    for axis in (0, 1):
        there, was = read.outcome.curves["p"]["l"][axis], outcome.curves["p"]["l"][axis]
        assert there.dtype == np.float64
        assert there.tobytes() == was.tobytes() or np.array_equal(there, was, equal_nan=True)
    json.loads(this.file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert [each.name for each in tmp_path.iterdir()] == ["toy-3.json"]


def test_every_known_experiment_can_be_sent_to_a_process_and_has_a_quick_form() -> None:
    for each in EXPERIMENTS.values():
        assert pickle.loads(pickle.dumps(each)).name == each.name
        assert "quick" in signature(each.run).parameters, each.name
    assert SELECTION.items() <= EXPERIMENTS.items()


@pytest.mark.parametrize(
    "other",
    [{"seed": 4}, {"quick": True}, {"digest": "of other data"}],
    ids=["seed", "quick", "data"],
)
def test_a_result_of_another_job_is_not_used(tmp_path: Path, other: dict[str, object]) -> None:
    job(tmp_path).write(Result(Outcome({("a", "b"): 1.0}), 1.0, ""))
    assert job(tmp_path).read() is not None
    assert job(tmp_path, **other).read() is None


@pytest.mark.parametrize(
    "spoil",
    [lambda text: text[:-9], lambda text: "", lambda text: "[]", lambda text: text.replace("cells", "sells")],
    ids=["cut", "empty", "a list", "no cells"],
)
def test_a_damaged_file_is_not_used(tmp_path: Path, spoil: Callable[[str], str]) -> None:
    this = job(tmp_path)
    assert this.read() is None
    this.write(Result(Outcome({("a", "b"): 1.0}), 1.0, ""))
    this.file.write_text(spoil(this.file.read_text()))
    assert this.read() is None


# Runs.


def test_finished_seeds_are_not_repeated(tmp_path: Path) -> None:
    out, listener = tmp_path / "seeds", Listener()
    (first,) = run_all([experiment(tmp_path)], out, seeds=2)
    assert seeds_run(tmp_path) == ["0", "1"]
    assert cells(first) == [{("md", "loss"): 1 / 3}, {("md", "loss"): 1 / 4}]
    (more,) = run_all([experiment(tmp_path)], out, seeds=4, jobs=2, watcher=listener)
    assert seeds_run(tmp_path) == ["0", "1", "2", "3"]
    assert cells(more)[:2] == cells(first)
    assert [outcome.curves["a panel"]["md"].y[0] for outcome in more.outcomes] == [0, 1, 2, 3]
    assert listener.heard[0] == "kept 2, 0 outdated"
    assert sorted(listener.heard[1:]) == ["done 2", "done 3", "started 2", "started 3"]
    (again,) = run_all([experiment(tmp_path)], out, seeds=3)
    assert cells(again) == cells(more)[:3]
    assert len(seeds_run(tmp_path)) == 4
    assert len(list(run_all([experiment(tmp_path)], out, seeds=1, fresh=True))) == 1
    assert seeds_run(tmp_path) == ["0", "0", "1", "2", "3"]


def test_results_of_other_code_are_kept_and_reported(tmp_path: Path) -> None:
    listener = Listener()
    list(run_all([experiment(tmp_path)], tmp_path / "seeds", seeds=2))
    file = tmp_path / "seeds" / "toy-1.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "sources": "of yesterday"}))
    assert len(list(run_all([experiment(tmp_path)], tmp_path / "seeds", seeds=2, watcher=listener))) == 1
    assert listener.heard == ["kept 2, 1 outdated"]


def test_seeds_of_other_code_run_again_if_only_current_ones_count(tmp_path: Path) -> None:
    listener = Listener()
    list(run_all([experiment(tmp_path)], tmp_path / "seeds", seeds=2))
    file = tmp_path / "seeds" / "toy-1.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "sources": "of yesterday"}))
    list(run_all([experiment(tmp_path)], tmp_path / "seeds", seeds=2, current=True, watcher=listener))
    assert listener.heard == ["kept 1, 0 outdated", "started 1", "done 1"]
    assert seeds_run(tmp_path) == ["0", "1", "1"]


def test_other_data_mean_another_result(tmp_path: Path) -> None:
    needing = Experiment("toy", "", "", partial(toy_with_data, folder=tmp_path), data="number.txt")
    data = tmp_path / "number.txt"
    for number in (5, 5, 7):
        data.write_text(str(number))
        (report,) = run_all([needing], tmp_path / "seeds", seeds=1, data=tmp_path)
        assert cells(report) == [{("md", "loss"): 1 / (3 + number)}]
    assert seeds_run(tmp_path) == ["5", "7"]
    data.unlink()
    with pytest.raises(FileNotFoundError, match=r"toy needs number.txt: name its folder with --data"):
        list(run_all([needing], tmp_path / "seeds", data=tmp_path))


def test_the_quick_form_has_one_seed_and_shares_no_result_with_the_full_form(tmp_path: Path) -> None:
    each = experiment(tmp_path, seeds=2, known={("md", "loss"): "9.9"}, claim="it is small.")
    (full,) = run_all([each], tmp_path / "seeds")
    (quick,) = run_all([each], tmp_path / "quick", quick=True)
    assert seeds_run(tmp_path) == ["0", "0q", "1"]
    assert quick.quick
    assert not full.quick
    assert "[9.9]" in table(full)
    assert "9.9" not in table(quick)
    assert "Quick form" in table(quick)


def test_a_failed_seed_affects_only_its_experiment(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("bad", "killed", "good")]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "fail-1").touch()
    (folders[1] / "kill-0").touch()
    all_three = [Experiment(folder.name, "", "", partial(toy, folder=folder), seeds=2) for folder in folders]
    listener, seeds = Listener(), tmp_path / "seeds"
    reports = list(run_all(all_three, seeds, jobs=2, watcher=listener))
    assert [report.experiment.name for report in reports] == ["good"]
    failed = [said for said in listener.heard if said.startswith("failed")]
    assert len(failed) == 2
    assert f"failed 1: ValueError: seed 1 is a bad one (traceback: {seeds / 'bad-1.error'})" in failed
    assert any(
        said.startswith("failed 0: its process was killed; if memory is short, run fewer --jobs")
        for said in failed
    )
    assert "in toy" in (seeds / "bad-1.error").read_text()

    (folders[0] / "fail-1").unlink()
    (folders[1] / "kill-0").unlink()
    reports = list(run_all(all_three, seeds))
    assert [report.experiment.name for report in reports] == ["bad", "killed", "good"]
    assert [seeds_run(folder) for folder in folders] == [["0", "1", "1"], ["0", "0", "1"], ["0", "1"]]
    assert not list(seeds.glob("*.error"))


def test_a_killed_run_loses_only_running_seeds_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "wait-2").touch()
    script = (
        "from pathlib import Path\n"
        "from benchmarks.experiments.running import run_all\n"
        "from tests.support.toy_experiments import experiment\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "if __name__ == '__main__':\n"
        "    list(run_all([experiment(folder)], folder / 'seeds', seeds=4, jobs=1))\n"
    )
    (tmp_path / "script.py").write_text(script)
    mark = f"test-{os.getpid()}-{tmp_path.name}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COHORT_TEST_MARK": mark}
    process = subprocess.Popen([sys.executable, str(tmp_path / "script.py")], env=environment)
    try:
        until(lambda: (tmp_path / "log").exists() and seeds_run(tmp_path) == ["0", "1", "2"])
        assert len(processes_with("COHORT_TEST_MARK", mark)) > 1
    finally:
        process.kill()
        process.wait()
    until(lambda: not processes_with("COHORT_TEST_MARK", mark))
    seeds = tmp_path / "seeds"
    assert sorted(each.name for each in seeds.iterdir()) == ["toy-0.json", "toy-1.json"]
    before = {each.name: each.read_bytes() for each in seeds.iterdir()}

    (tmp_path / "wait-2").unlink()
    (resumed,) = run_all([experiment(tmp_path)], seeds, seeds=4)
    assert seeds_run(tmp_path) == ["0", "1", "2", "2", "3"]
    assert all((seeds / name).read_bytes() == content for name, content in before.items())
    (in_one_go,) = run_all([experiment(tmp_path)], tmp_path / "others", seeds=4)
    assert cells(resumed) == cells(in_one_go)


def until(happened: Callable[[], bool], timeout: float = 120) -> None:
    end = time.monotonic() + timeout
    while not happened():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


# Progress.


@pytest.mark.parametrize(
    ("kind", "terminal", "shown"), [(Lines, False, "toy  seed 1  12 s of a core  (3/4)"), (Bars, True, "3/4")]
)
def test_progress_is_shown(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: type[Lines],
    terminal: bool,
    shown: str,
) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=100)
    with kind(console, {"toy": 4}) as progress:
        progress.kept(experiment(tmp_path), 2, 1)
        progress.started(job(tmp_path, seed=1))
        progress.done(job(tmp_path, seed=1), Result(Outcome({}), 12.3, ""))
        progress.failed(job(tmp_path, seed=2), "it broke [at once]")
        print("a table")
    assert capsys.readouterr().out == "a table\n"
    text = written.getvalue()
    assert "toy  2 of 4 seeds kept from before, 1 of them outdated" in text
    assert "toy  seed 2  failed: it broke [at once]" in text
    assert progress.failures == 1
    if terminal:
        assert "4/4" in text
    else:
        assert shown in text
        assert "\x1b" not in text
