"""The history of a run survives crashes, full disks and resumes; readers follow it through all of them."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.runs.comparison import faults
from deploy.runs.history import TrialHistory
from server.history import History, read_lines
from server.recording import Recording
from server.settings import RunSettings
from strategies import RoundRecord
from strategies.selectors import Feedback, Selection
from tasks.base import Metrics

from .test_apps import DEFAULTS

RUN = {"started": "2026-01-01", "num_rounds": 9, "selector": "md", "selector_settings": ""}


def written(path: Path, rounds: int = 3, *kinds: str) -> Path:
    """Write a history with some rounds, and lines of these kinds after them."""
    with History(path) as history:
        history.write("run", **RUN)
        for round in range(rounds + 1):
            history.write("round", round=round, test_loss=1.0)
            if round == 0:
                history.write("roster", client_ids=["a"], client_sizes=[1.0])
        for kind in kinds:
            history.write(kind, reason="x", rounds=rounds)
    return path


def summary(path: Path) -> list[str]:
    return [
        f"{line['type']} {line['round']}" if "round" in line else line["type"] for line in read_lines(path)
    ]


def test_it_goes_on_after_the_last_round_that_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "history.jsonl", 4)
    with History.resume(path, 2, RUN) as history:
        history.write("round", round=3, test_loss=0.5)
    assert summary(path) == ["run", "round 0", "roster", "round 1", "round 2", "resume 2", "round 3"]
    assert read_lines(path)[5] == {"type": "resume", "round": 2, "started": "2026-01-01", "num_rounds": 9}
    assert [file.name for file in tmp_path.iterdir()] == ["history.jsonl"]


def test_what_befell_the_run_stays_and_its_end_was_none(tmp_path: Path) -> None:
    path = written(tmp_path / "history.jsonl", 3, "error")
    History.resume(path, 1, RUN).__exit__(None, None, None)
    assert summary(path) == ["run", "round 0", "roster", "round 1", "error", "resume 1"]
    path = written(tmp_path / "ended.jsonl", 3, "end")
    History.resume(path, 3, {**RUN, "num_rounds": 12}).__exit__(None, None, None)
    assert summary(path)[-2:] == ["round 3", "resume 3"]
    History.resume(path, 2, RUN).__exit__(None, None, None)
    assert summary(path) == ["run", "round 0", "roster", "round 1", "round 2", "resume 3", "resume 2"]


@given(cut=st.integers(0, 400), last=st.integers(0, 5))
def test_wherever_it_was_torn_it_becomes_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, cut: int, last: int
) -> None:
    path = written(tmp_path_factory.mktemp("run") / "history.jsonl", 4)
    path.write_bytes(path.read_bytes()[:cut])
    whole = [line for line in read_lines(path) if line["type"] == "round" and 0 < line["round"] <= last]
    with History.resume(path, last, RUN) as history:
        history.write("round", round=last + 1, test_loss=0.1)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]  # each is one
    assert lines[0] == {"type": "run", **RUN}
    assert [line for line in lines if line["type"] == "round" and 0 < line["round"] <= last] == whole
    assert [line["type"] for line in lines[-2:]] == ["resume", "round"]


def test_a_resume_that_fails_leaves_it_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "history.jsonl", 4)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        History.resume(path, 2, RUN)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["history.jsonl"]


def test_lines_wait_for_room_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write
    room = 10

    def limited(descriptor: int, content: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(descriptor, content[:room])
        room -= done
        return done

    path = tmp_path / "history.jsonl"
    with monkeypatch.context() as patch, History(path) as history:
        patch.setattr(os, "write", limited)
        history.write("run", **RUN)
        history.write("round", round=0)
        assert path.stat().st_size == 10
        assert "THE HISTORY CANNOT BE WRITTEN" in caplog.text
        room = 10_000
        history.write("round", round=1)
    assert summary(path) == ["run", "round 0", "round 1"]


def test_a_round_says_what_was_left_out_bounded_and_put_aside(tmp_path: Path) -> None:
    nothing = np.full(2, np.nan)
    record = RoundRecord(
        round=3,
        num_available=2,
        selection=Selection(np.array([1, 0]), np.ones(2, int), np.ones(2), np.ones(2), np.ones(2)),
        weights=np.zeros(2),
        feedback=Feedback(nothing, nothing, nothing, nothing, np.zeros(2, bool)),
        failures={1: "late"},
        clipped={0: "update shortened"},
        quarantined=(2,),
        skipped="quorum",
    )
    with History(tmp_path / "history.jsonl") as history:
        history.write_round(record, ["a", "b", "c"], test_loss=0.5)
    (line,) = read_lines(tmp_path / "history.jsonl")
    told: dict[str, Any] = {key: line[key] for key in ("failures", "clipped", "quarantined", "skipped")}
    assert told == {
        "failures": [{"client": "b", "reason": "late"}],
        "clipped": [{"client": "a", "reason": "update shortened"}],
        "quarantined": ["c"],
        "skipped": "quorum",
    }


def test_a_reader_follows_a_run_that_is_resumed(tmp_path: Path) -> None:
    path = written(tmp_path / "history.jsonl")
    reader = TrialHistory(path)
    assert len(reader.read()) == 6
    with path.open("a") as file:
        file.write('{"type": "error", "reason": "no"}\n')
    reader.read()
    assert reader.end is not None
    assert reader.starts == 1
    with History.resume(path, 1, {**RUN, "num_rounds": 20}) as history:
        news = reader.read()
        assert [line["type"] for line in news] == ["resume"]  # what it knew already does not come again
        assert reader.end is None
        assert reader.starts == 2
        assert reader.settings["num_rounds"] == 20
        assert [line["round"] for line in reader.rounds] == [0, 1]
        history.write("round", round=2, test_loss=0.25)
        assert [line["type"] for line in reader.read()] == ["round"]
    assert [line["round"] for line in reader.rounds] == [0, 1, 2]


def test_the_report_names_who_had_most_faults(tmp_path: Path) -> None:
    trial = TrialHistory(tmp_path / "history.jsonl")
    for round, left_out in enumerate(["a", "a", "b", "a"], start=1):
        line: dict[str, Any] = {"round": round, "failures": [{"client": left_out, "reason": "late"}]}
        trial.rounds.append(
            line | {"clipped": [{"client": "c", "reason": "norm"}] * (round == 2), "quarantined": ["b"]}
        )
    assert faults(trial) == {
        "b": {"failed": 1, "quarantined": 4},
        "a": {"failed": 3},
        "c": {"clipped": 1},
    }


def test_the_roster_is_written_when_it_has_changed(tmp_path: Path) -> None:
    settings = RunSettings.from_run_config({**DEFAULTS, "output-dir": str(tmp_path)})
    one = np.ones(1)
    chosen = Selection(np.array([0]), np.array([1]), one, one, one)
    record = RoundRecord(1, 1, chosen, one, Feedback(one, one, one, one, np.array([True])))
    sizes = np.array([10.0, np.nan])
    with Recording(settings) as recording:

        def write(*client_ids: str) -> None:
            recording.round(1, {}, Metrics(loss=1.0, accuracy=0.5), record, client_ids, sizes)

        write("a", "b")
        write("a", "b")  # who has not said a size has not changed it
        sizes[1] = 5.0
        write("a", "b")
        sizes = np.append(sizes, np.nan)
        write("a", "b", "c")
    lines = [line for line in read_lines(tmp_path / "history.jsonl") if line["type"] == "roster"]
    assert [line["client_sizes"] for line in lines] == [[10, None], [10, 5], [10, 5, None]]
    assert [line["client_ids"] for line in lines] == [["a", "b"], ["a", "b"], ["a", "b", "c"]]
