"""A history can be read while it is written: each complete line is returned once."""

import json
import re
from pathlib import Path

import pytest

from deploy.runs.history import TrialHistory, read_run

from ...support.histories import write_history


def test_a_torn_last_line_is_left_until_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "md" / "history.jsonl"
    history = TrialHistory(path)
    assert history.read() == []  # not there yet

    path.parent.mkdir()
    start = json.dumps({"type": "run", "selector": "md", "selector_settings": "", "num_rounds": 3})
    line = json.dumps({"type": "round", "round": 0, "test_loss": 2.5, "note": "ü"}, ensure_ascii=False)
    torn = line.encode().index("ü".encode()) + 1  # in the middle of a character
    path.write_bytes(start.encode() + b"\n" + line.encode()[:torn])
    assert [each["type"] for each in history.read()] == ["run"]
    assert history.read() == []

    with path.open("ab") as file:
        file.write(line.encode()[torn:] + b"\n")
    assert history.read() == [json.loads(line)]
    assert history.read() == []
    assert history.rounds == [json.loads(line)]


def test_the_history_knows_whether_the_run_has_finished(tmp_path: Path) -> None:
    running = write_history(tmp_path / "a", [2.0, 1.0], "adaptive-osmd", "alpha=0.4", end=False)
    assert running.label == "adaptive-osmd (alpha=0.4)"
    assert not running.finished
    assert [line["round"] for line in running.trained] == [1]

    with running.path.open("a") as file:
        file.write('{"type": "news"}\n{"type": "error", "reason": "ValueError: no"}\n')
    running.read()
    assert not running.finished
    assert running.end == {"type": "error", "reason": "ValueError: no"}
    assert write_history(tmp_path / "b", [2.0, 1.0]).finished


@pytest.mark.parametrize("line", ["{", "[]", '{"kind": "round"}', '{"type": "roster"}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"history\.jsonl: not a line of a history: .*" + re.escape(line)):
        TrialHistory(path).read()


def test_a_run_without_histories_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with pytest.raises(ValueError, match=r"holds no history \(\*/history\.jsonl\)"):
        read_run(tmp_path)
