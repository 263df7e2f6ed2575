"""The arms are trained in their order, and one that fails or cannot be shown does not end the others."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy import arms
from deploy.arms import Arm, train
from deploy.history import ArmHistory, Line, read_run

DELAY = 2  # looks from the submission of an arm to the beginning of its history


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
        self.begun: list[list[str]] = []  # at each submission, the arms that had begun

    def check(self) -> list[str]:
        return []

    def submit(self, run_config: Mapping[str, object], name: str) -> Run:
        self.begun.append(sorted(path.parent.name for path in self.folder.glob("*/history.jsonl")))
        return Run(self.folder / name / "history.jsonl", len(self.begun))


class Watcher:
    def __init__(self, odd: str = "") -> None:
        self.odd, self.events = odd, list[str]()

    def lines(self, arm: Arm, lines: Sequence[Line]) -> None:
        if arm.name == self.odd and lines:
            raise TypeError("odd")

    def event(self, text: str) -> None:
        self.events.append(text)

    def refresh(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "WATCH_INTERVAL", 0)


def make(folder: Path, *names: str) -> list[Arm]:
    return [Arm(name, {}, ArmHistory(folder / name / "history.jsonl")) for name in names]


def test_each_begins_once_the_one_before_has_so_that_they_are_read_again_in_their_order(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    train(cluster, make(tmp_path, "c", "a", "b"), Watcher(), at_once=True)  # type: ignore[arg-type]
    assert cluster.begun == [[], ["c"], ["a", "c"]]
    assert [arm.label for arm in read_run(tmp_path)] == ["c", "a", "b"]


def test_an_arm_that_cannot_be_shown_is_said_and_all_are_trained(tmp_path: Path) -> None:
    watcher = Watcher(odd="b")
    trained = make(tmp_path, "a", "b", "c")
    train(Cluster(tmp_path), trained, watcher, at_once=False)  # type: ignore[arg-type]
    assert all(arm.history.finished for arm in trained)
    assert watcher.events == ["b: cannot be shown: TypeError('odd')"] * 2
