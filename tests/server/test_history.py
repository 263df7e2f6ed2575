"""The history of a run survives crashes, full disks and resumes; readers follow it through all of them."""

import errno
import json
import os
import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st

from server.history import VERSION, HistoryWriter, RunHistory, VersionError, read_lines, read_run
from server.history.field_checks import ROUND
from server.recording import KnownClients, Recording
from server.settings import RunSettings
from strategies import RoundRecord, SelectionStrategy
from strategies.flower.traffic import Traffic
from strategies.options import GuardSettings, Polling
from strategies.rounds.guard.claimed_sizes import judged_sizes
from strategies.selectors import Feedback, Selection
from tasks.base import Metrics

from ..support.histories import write_history
from ..support.strangers import honest
from ..support.toy_grid import ToyGrid
from .test_apps import DEFAULTS


def measures(metrics):
    """A client that is a group by itself, and evaluates the model as it likes."""
    before = honest(1, 0)

    def node(message):
        reply = before(message)
        assert isinstance(reply, Message)
        if message.metadata.message_type == "evaluate":
            reply.content["m"] = MetricRecord({"num-examples": 10, **metrics})
        return reply

    return node


RUN = {"started": "2026-01-01", "num_rounds": 9, "selector": "md", "selector_settings": ""}


def written(path, rounds=3, *kinds):
    """Write a history with some rounds, and lines of these kinds after them."""
    with HistoryWriter(path) as history:
        history.begin(RUN)
        for round in range(rounds + 1):
            history.write("round", round=round, test_loss=1.0)
            if round == 0:
                history.write("roster", client_ids=["a"], client_sizes=[1.0])
        for kind in kinds:
            history.write(kind, reason="x", rounds=rounds)
    return path


def record(number=1, **fields):
    """The record of a round in which client 0 trained."""
    one = np.ones(1)
    feedback = Feedback(one, one, one, one, np.array([True]))
    return RoundRecord(
        number, 1, Selection(np.array([0]), np.array([1]), one, one, one), one, feedback, **fields
    )


def recording(folder):
    return Recording(RunSettings.from_run_config({**DEFAULTS, "output-dir": str(folder)}))


QUALITY = Metrics(loss=1.0, accuracy=0.5)


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def summary(path):
    return [
        f"{line['type']} {line['round']}" if "round" in line else line["type"] for line in read_lines(path)
    ]


def test_a_resumed_history_continues_after_the_last_round_that_counts(tmp_path):
    path = written(tmp_path / "history.jsonl", 4)
    with HistoryWriter.resume(path, 2, RUN) as history:
        history.write("round", round=3, test_loss=0.5)
    assert summary(path) == ["run", "round 0", "roster", "round 1", "round 2", "resume 2", "round 3"]
    assert read_lines(path)[5] == {"type": "resume", "round": 2, "started": "2026-01-01", "num_rounds": 9}
    assert [file.name for file in tmp_path.iterdir()] == ["history.jsonl"]


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (ValueError("no"), {"type": "error", "reason": "ValueError: no"}),
        (SystemExit(0), {"type": "error", "reason": "told to end"}),
        (KeyboardInterrupt(), None),  # as after a kill: the run is resumed
    ],
)
def test_the_last_line_says_why_a_run_ended(tmp_path, error, last):
    path = tmp_path / "history.jsonl"

    def run():
        with HistoryWriter(path) as writer:
            writer.begin(RUN)
            raise error

    with pytest.raises(type(error)):
        run()
    history = RunHistory(path)
    history.read()
    assert history.end == last


def test_a_resume_keeps_errors_and_drops_the_end(tmp_path):
    path = written(tmp_path / "history.jsonl", 3, "error")
    HistoryWriter.resume(path, 1, RUN).__exit__(None, None, None)
    assert summary(path) == ["run", "round 0", "roster", "round 1", "error", "resume 1"]
    path = written(tmp_path / "ended.jsonl", 3, "end")
    HistoryWriter.resume(path, 3, {**RUN, "num_rounds": 12}).__exit__(None, None, None)
    assert summary(path)[-2:] == ["round 3", "resume 3"]
    HistoryWriter.resume(path, 2, RUN).__exit__(None, None, None)
    assert summary(path) == ["run", "round 0", "roster", "round 1", "round 2", "resume 3", "resume 2"]


@given(cut=st.integers(0, 400), last=st.integers(0, 5))
def test_a_history_torn_anywhere_is_resumed_with_complete_lines(tmp_path_factory, cut, last):
    path = written(tmp_path_factory.mktemp("run") / "history.jsonl", 4)
    path.write_bytes(path.read_bytes()[:cut])
    whole = [line for line in read_lines(path) if line["type"] == "round" and 0 < line["round"] <= last]
    with HistoryWriter.resume(path, last, RUN) as history:
        history.write("round", round=last + 1, test_loss=0.1)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]  # each is one
    assert lines[0] == {"type": "run", "version": VERSION, **RUN}
    assert [line for line in lines if line["type"] == "round" and 0 < line["round"] <= last] == whole
    assert [line["type"] for line in lines[-2:]] == ["resume", "round"]


def test_a_failed_resume_leaves_the_history_unchanged(tmp_path, monkeypatch):
    path = written(tmp_path / "history.jsonl", 4)
    before = path.read_bytes()

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        HistoryWriter.resume(path, 2, RUN)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["history.jsonl"]


def test_lines_wait_for_room_on_a_full_disk(tmp_path, monkeypatch, caplog):
    write = os.write
    room = 10

    def limited(descriptor, content):
        nonlocal room
        if room == 0:
            full()
        done = write(descriptor, content[:room])
        room -= done
        return done

    path = tmp_path / "history.jsonl"
    with monkeypatch.context() as patch, HistoryWriter(path) as history:
        patch.setattr(os, "write", limited)
        history.begin(RUN)
        history.write("round", round=0)
        assert path.stat().st_size == 10
        assert "THE HISTORY CANNOT BE WRITTEN" in caplog.text
        room = 10_000
        history.write("round", round=1)
    assert summary(path) == ["run", "round 0", "round 1"]


def test_a_disk_that_stays_full_costs_bounded_memory_and_the_history_says_what_is_lost(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("server.history.writer.KEPT", 5000)
    clients = KnownClients(["a"], judged_sizes(np.ones(1)), [None])
    path = tmp_path / "history.jsonl"
    with recording(tmp_path) as files:

        def write_round(number):
            files.round(number, {}, QUALITY, record(number, failures={0: "x" * 200}), clients)

        write_round(1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            for number in range(2, 200):
                write_round(number)
                assert sum(len(line.text) for line in files._history._waiting) <= 5000
        write_round(200)
    lines = read_lines(path)
    assert [line["type"] for line in lines[:5]] == ["run", "roster", "round", "round", "lost"]
    lost, rounds = lines[4], [line["round"] for line in lines if line["type"] == "round"]
    assert lost["first_round"] == 3  # a line that is under way stays
    assert rounds == [1, 2, *range(lost["last_round"] + 1, 201)]
    assert len(rounds) > 5
    assert lost["lines"] >= 200 - len(rounds)
    assert "lines (rounds 3 to 150)" in caplog.text
    read = RunHistory(path)
    read.read()
    assert read.client_ids == ["a"]


def test_the_run_line_is_never_lost(tmp_path, monkeypatch):
    path = tmp_path / "history.jsonl"
    monkeypatch.setattr("server.history.writer.KEPT", 100)
    with HistoryWriter(path) as history:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            history.begin(RUN)
            for number in range(9):
                history.write("round", round=number, note="x" * 50)
        history.write("round", round=9)
    assert summary(path) == ["run", "lost", "round 8", "round 9"]


def test_a_round_line_holds_failures_clipped_and_quarantined_clients(tmp_path):
    found = record(
        3, failures={1: "late"}, clipped={0: "update shortened"}, quarantined=(2,), skipped="quorum"
    )
    with HistoryWriter(tmp_path / "history.jsonl") as history:
        history.write_round(found, ["a", "b", "c"], test_loss=0.5)
    (line,) = read_lines(tmp_path / "history.jsonl")
    told = {key: line[key] for key in ("failures", "clipped", "quarantined", "skipped")}
    assert told == {
        "failures": [{"client": "b", "reason": "late"}],
        "clipped": [{"client": "a", "reason": "update shortened"}],
        "quarantined": ["c"],
        "skipped": "quorum",
    }


def test_every_field_of_a_round_is_checked_and_has_a_meaning(tmp_path):
    """A field of before that is no longer written is a row of docs/reference/history.md too much."""
    with recording(tmp_path) as files:
        clients = KnownClients(["a"], judged_sizes([10.0]), ["0"])
        files.round(1, {}, QUALITY, record(), clients, {}, Traffic())
    (line,) = (each for each in read_lines(tmp_path / "history.jsonl") if each["type"] == "round")
    assert line.keys() - {"type"} == ROUND.keys()


def test_a_reader_follows_a_run_that_is_resumed(tmp_path):
    path = written(tmp_path / "history.jsonl")
    reader = RunHistory(path)
    assert len(reader.read()) == 6
    with path.open("a") as file:
        file.write('{"type": "error", "reason": "no"}\n')
    reader.read()
    assert reader.end is not None
    assert reader.starts == 1
    with HistoryWriter.resume(path, 1, {**RUN, "num_rounds": 20}) as history:
        news = reader.read()
        assert [line["type"] for line in news] == ["resume"]  # what it knew already does not come again
        assert reader.end is None
        assert reader.starts == 2
        assert reader.settings["num_rounds"] == 20
        assert [line["round"] for line in reader.rounds] == [0, 1]
        history.write("round", round=2, test_loss=0.25)
        assert [line["type"] for line in reader.read()] == ["round"]
    assert [line["round"] for line in reader.rounds] == [0, 1, 2]


def test_the_roster_is_written_when_clients_join_and_else_only_what_has_changed(tmp_path):
    sizes = np.array([10.0, np.nan])
    with recording(tmp_path) as files:

        def write(*client_ids):
            known = judged_sizes(sizes)
            clients = KnownClients(client_ids, known, ["north", None, None][: len(client_ids)])
            files.round(1, {}, QUALITY, record(), clients)

        write("a", "b")
        write("a", "b")  # who has not said a size has not changed it
        sizes[1] = 5.0
        write("a", "b")
        sizes = np.append(sizes, np.nan)
        write("a", "b", "c")
        sizes[2] = 7.0
        write("a", "b", "c")
    lines = read_lines(tmp_path / "history.jsonl")
    rosters = [line for line in lines if line["type"] == "roster"]
    assert [line["client_sizes"] for line in rosters] == [[10, None], [10, 5, None]]
    assert [line["client_ids"] for line in rosters] == [["a", "b"], ["a", "b", "c"]]
    assert rosters[1]["client_groups"] == ["north", None, None]
    changed = [line for line in lines if line["type"] == "sizes"]
    assert [(line["clients"], line["client_sizes"]) for line in changed] == [([1], [5]), ([2], [7])]
    read = RunHistory(tmp_path / "history.jsonl")
    read.read()
    assert read.client_sizes == [10, 5, 7]
    assert read.used_sizes == [10, 5, 7]


def test_the_history_holds_claimed_and_used_sizes(tmp_path):
    """Clients without a size of their own have one number in common, which may change in each round."""
    claimed = np.array([100.0, 90, 110, 100, 95, 105, 100, 100, 100, np.nan, 1e10])
    names, guard = list("abcdefghijk"), GuardSettings(level="strict")
    with recording(tmp_path) as files:
        for number, claim in enumerate([260.0, 260.0, 100.0, 260.0], 1):
            claimed[0] = claim
            sizes = judged_sizes(claimed, None, guard)
            files.round(number, {}, QUALITY, record(number), KnownClients(names, sizes, [None] * 11))
            read = RunHistory(tmp_path / "history.jsonl")
            read.read()
            assert read.used_sizes == sizes.used.tolist()
    lines = read_lines(tmp_path / "history.jsonl")
    (roster,) = (line for line in lines if line["type"] == "roster")
    assert roster["client_sizes"] == [260, *claimed[1:9], None, 1e10]
    assert 100 < roster["used_sizes"][0] < 260
    assert roster["used_sizes"][1:] == [*claimed[1:9], None, None]
    assert roster["mean_size"] == pytest.approx(np.mean(roster["used_sizes"][:9]), rel=1e-12)
    changed = [line for line in lines if line["type"] == "sizes"]
    assert [line["client_sizes"] for line in changed] == [[100], [260]]
    warnings = [line["reason"] for line in lines if line["type"] == "warning"]
    assert len(warnings) == 2  # "a" and "k", once each
    assert warnings[0].startswith("a claims the data size 260, and ")
    assert 'declare it: Overrides(sizes={"a": 260}), client-sizes' in warnings[0]
    assert "k claims the data size 10000000000" in warnings[1]


def test_metrics_that_a_client_chooses_leave_the_line_of_the_round(tmp_path):
    node = measures(
        {"loss": [1.0, 2.0], "accuracy": 0.5, "x" * 100: [3.0], **{f"m{n}": 1 for n in range(90)}}
    )
    groups = []

    def keep(_):
        groups.append({name: dict(each) for name, each in strategy.group_metrics.items()})

    strategy = SelectionStrategy(
        "full",
        clients_per_round=1,
        min_available_clients=1,
        server_strategy=FedAvg(fraction_evaluate=1.0, min_available_nodes=1, min_evaluate_nodes=1),
        polling=Polling(ask_status=True),
        on_round=keep,
    )
    strategy.start(ToyGrid({1: node}), ArrayRecord({"w": Array(np.zeros(2, np.float32))}), num_rounds=2)
    assert groups[1]["0"]["loss"] == [1.0, 2.0]  # such a list does reach the server's app
    with recording(tmp_path) as files:
        files.round(1, {}, QUALITY, record(), KnownClients(["a"], judged_sizes([10.0]), ["0"]), groups[1])
    (line,) = (line for line in read_lines(tmp_path / "history.jsonl") if line["type"] == "round")
    assert line["group_metrics"] == {"0": {"loss": None, "accuracy": 0.5}}


def test_a_torn_last_line_is_left_until_it_is_complete(tmp_path):
    path = tmp_path / "md" / "history.jsonl"
    history = RunHistory(path)
    assert history.read() == []  # not there yet

    path.parent.mkdir()
    start = json.dumps({"type": "run", "version": VERSION, **RUN})
    values = {"test_loss": 2.5, "test_accuracy": None, "note": "ü"}
    line = json.dumps({"type": "round", "round": 0, **values}, ensure_ascii=False)
    torn = line.encode().index("ü".encode()) + 1  # in the middle of a character
    path.write_bytes(start.encode() + b"\n" + line.encode()[:torn])
    assert [each["type"] for each in history.read()] == ["run"]
    assert history.read() == []

    with path.open("ab") as file:
        file.write(line.encode()[torn:] + b"\n")
    assert history.read() == [json.loads(line)]
    assert history.read() == []
    assert history.rounds == [json.loads(line)]


def test_a_history_knows_whether_the_run_has_finished(tmp_path):
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
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "history.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(
        ValueError, match=r"history\.jsonl, line 1: not a line of a history: .*" + re.escape(line)
    ):
        RunHistory(path).read()


def test_the_lines_after_a_damaged_one_are_read_by_the_next_call(tmp_path):
    """They were lost, and with them the end of the run."""
    path = tmp_path / "history.jsonl"
    lines = [{"type": "run", "version": VERSION, **RUN}, {"type": "round", "round": 0, "test_loss": 2.0}]
    first, last = (json.dumps(line).encode() + b"\n" for line in lines)
    for junk in (b"\x00\xff\r\x1b[2J", b"[" * 100_000, b'{"type": "round", "round": "x"}', b'{"type": 3'):
        path.write_bytes(first + junk + b"\n" + last)
        history = RunHistory(path)
        with pytest.raises(ValueError, match="not a line of a history") as refused:
            history.read()
        assert str(refused.value).isprintable()
        assert [line["type"] for line in history.read()] == ["round"]
        assert history.settings["version"] == VERSION
        assert [line["round"] for line in history.rounds] == [0]
        assert [line["type"] for line in read_lines(path)] == ["run", "round"]


def test_a_run_with_a_damaged_line_can_be_drawn_and_resumed(tmp_path, caplog):
    """One bad line kept the operator from both."""
    path = tmp_path / "run" / "history.jsonl"
    path.parent.mkdir()
    lines = [{"type": "run", "version": VERSION, **RUN}, {"type": "round", "round": 0, "test_loss": 2.0}]
    first, last = (json.dumps(line).encode() + b"\n" for line in lines)
    path.write_bytes(first + b"\x00\n[]\n" + last)
    (history,) = read_run(tmp_path)
    assert [line["round"] for line in history.rounds] == [0]
    (warning,) = caplog.messages
    assert warning.startswith(f"{path}, line 2: not a line of a history: must be JSON")
    assert warning.endswith("; the line is left out (1 more like this)")


def test_a_run_without_histories_is_refused(tmp_path):
    (tmp_path / "logs").mkdir()
    with pytest.raises(ValueError, match=r"holds no history \(history\.jsonl\)"):
        read_run(tmp_path)


@pytest.mark.parametrize("version", [{}, {"version": 1}, {"version": 3}])
def test_a_history_of_another_version_is_refused(tmp_path, version):
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps({"type": "run", **version, **RUN}) + "\n")
    message = (
        rf"history\.jsonl: written by another version of Cohort \(format {version.get('version', 1)}, this"
    )
    with pytest.raises(VersionError, match=message):
        RunHistory(path).read()
    with pytest.raises(VersionError, match=message):
        HistoryWriter.resume(path, 1, RUN)


def test_a_damaged_line_is_warned_of_once_in_a_command(tmp_path, caplog):
    path = write_history(tmp_path / "md", [2.0, 1.0]).path
    with path.open("ab") as file:
        file.write(b"damaged\n")
    for _ in range(3):
        RunHistory(path).read(skip_damaged=True)
    assert len([each for each in caplog.records if "not a line of a history" in each.message]) == 1
