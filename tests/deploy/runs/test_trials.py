"""The trials are trained in their order, and one that fails or cannot be shown does not end the others."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.runs import trials
from deploy.runs.history import ArmHistory, Line, read_run
from deploy.runs.trials import Trial, read_plan, train, write_plan

DELAY = 2  # looks from the submission of an trial to the beginning of its history


class Run:
    """A run that begins its history some looks after it was submitted, and ends some looks later."""

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number, self.looks = path, number, 0

    @property
    def over(self) -> bool:
        self.looks += 1
        if self.looks == DELAY:
            self.write(
                "run", selector=self.path.parent.name, selector_settings="", started=f"{self.number:09d}"
            )
        if self.looks == 10 * DELAY:
            self.write("end")
        return self.looks >= 10 * DELAY

    def write(self, kind: str, **values: Any) -> None:
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"type": kind, **values}) + "\n")


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begun: list[list[str]] = []  # at each submission, the trials that had begun

    def check(self) -> list[str]:
        return []

    def submit(self, run_config: Mapping[str, object], name: str) -> Run:
        self.begun.append(sorted(path.parent.name for path in self.folder.glob("*/history.jsonl")))
        return Run(self.folder / name / "history.jsonl", len(self.begun))


class Watcher:
    def __init__(self, odd: str = "") -> None:
        self.odd, self.events = odd, list[str]()

    def lines(self, trial: Trial, lines: Sequence[Line]) -> None:
        if trial.name == self.odd and lines:
            raise TypeError("odd")

    def event(self, text: str) -> None:
        self.events.append(text)

    def refresh(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "WATCH_INTERVAL", 0)


def make(folder: Path, *names: str) -> list[Trial]:
    return [Trial(name, {}, ArmHistory(folder / name / "history.jsonl")) for name in names]


def test_each_begins_once_the_one_before_has_so_that_they_are_read_again_in_their_order(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    train(cluster, make(tmp_path, "c", "a", "b"), Watcher(), at_once=True)  # type: ignore[arg-type]
    assert cluster.begun == [[], ["c"], ["a", "c"]]
    assert [trial.label for trial in read_run(tmp_path)] == ["c", "a", "b"]


def test_an_trial_that_cannot_be_shown_is_said_and_all_are_trained(tmp_path: Path) -> None:
    watcher = Watcher(odd="b")
    trained = make(tmp_path, "a", "b", "c")
    train(Cluster(tmp_path), trained, watcher, at_once=False)  # type: ignore[arg-type]
    assert all(trial.history.finished for trial in trained)
    assert watcher.events == ["b: cannot be shown: TypeError('odd')"] * 2


class Killed:
    """A run whose ServerApp writes some rounds and is killed, as Flower notes sooner or later."""

    def __init__(self, path: Path, lines: Sequence[dict[str, Any]]) -> None:
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    log = Path("log")
    over = True

    class process:  # noqa: N801
        @staticmethod
        def tail() -> str:
            return "its last words"


class Fatal:
    """An engine on which each run is killed after as many rounds as given, or ends."""

    def __init__(self, folder: Path, *rounds: int | None, error: str = "") -> None:
        self.folder, self.rounds, self.error = folder, list(rounds), error
        self.submitted: list[tuple[str, object]] = []
        self._reached = 0

    def check(self) -> list[str]:
        return []

    def submit(self, run_config: Mapping[str, object], name: str) -> Killed:
        resume = run_config.get("resume", False)
        self.submitted.append((name, resume))
        path = self.folder / "md" / "history.jsonl"
        settings = {"selector": "md", "selector_settings": "", "num_rounds": 9}
        first: dict[str, Any] = {"type": "run", **settings}
        if resume:
            first = {"type": "resume", "round": self._reached, "num_rounds": 9}
        more = self.rounds.pop(0)
        if more is None:
            return Killed(path, [first, {"type": "end", "rounds": 9}])
        rounds = [{"type": "round", "round": self._reached + 1 + each} for each in range(more)]
        self._reached += more
        return Killed(path, [first, *rounds, *([{"type": "error", "reason": "no"}] if self.error else [])])


def test_one_whose_serverapp_is_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    engine, watcher = Fatal(tmp_path, 2, 0, 0, 1, 0, None), Watcher()
    (trial,) = make(tmp_path, "md")
    train(engine, [trial], watcher, at_once=True)  # type: ignore[arg-type]
    assert trial.done
    assert engine.submitted == [("md", False), *((f"md-{number}", True) for number in range(2, 7))]
    assert watcher.events == ["md: its ServerApp ended without a word; it is started again"] * 5


def test_it_is_not_started_again_and_again_in_vain(tmp_path: Path) -> None:
    engine, watcher = Fatal(tmp_path, 2, *[0] * 20), Watcher()
    (trial,) = make(tmp_path, "md")
    train(engine, [trial], watcher, at_once=True)  # type: ignore[arg-type]
    assert len(engine.submitted) == 1 + trials.TRIES
    assert watcher.events[-1].startswith("md failed: ended without a word; the end of log:")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    engine, watcher = Fatal(tmp_path, *[0] * 20), Watcher()
    train(engine, make(tmp_path, "md"), watcher, at_once=True)  # type: ignore[arg-type]
    assert watcher.events[-1] == f"md failed: ended without a word: no space is left for {tmp_path / 'md'}"


def test_one_that_failed_says_why_and_is_not_started_again(tmp_path: Path) -> None:
    engine, watcher = Fatal(tmp_path, 2, 2, error="no"), Watcher()
    train(engine, make(tmp_path, "md"), watcher, at_once=True)  # type: ignore[arg-type]
    assert watcher.events == ["md failed: no"]
    train(engine, make(tmp_path, "md"), watcher, at_once=True)  # type: ignore[arg-type]
    assert engine.submitted == [("md", False), ("md", True)]  # only when somebody asks for it


def test_a_plan_can_be_read_again_wherever_the_folder_is(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    planned = make(tmp_path / "run", "b", "a")
    for seed, trial in enumerate(planned):
        trial.run_config |= {"seed": seed, "output-dir": str(tmp_path / "run" / trial.name)}
    write_plan(tmp_path / "run", planned)
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert [(trial.name, trial.run_config, trial.history.path) for trial in read_plan(moved)] == [
        (name, {"seed": seed, "output-dir": str(moved / name)}, moved / name / "history.jsonl")
        for seed, name in enumerate("ba")
    ]
