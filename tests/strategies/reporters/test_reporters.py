"""What reporters are told, in which order, and that no reporter stops or delays a run."""

from threading import Event

import numpy as np
import pytest
from flwr.app import MetricRecord

from strategies import Reporter, RoundReport, SelectionStrategy
from strategies.options import Polling
from strategies.reporters import reporters as holder
from strategies.reporters.scalars import MOST, scalars

from ...support.federations import model
from ...support.processes import wait_for
from ..test_resume import NUM_CLIENTS, grid
from ..test_resume import run as resumable

MODEL_BYTES = 136  # of the toy model as a message carries it


class Recorder(Reporter):
    def __init__(self):
        self.calls = []
        self.reports = []

    def begin(self, run):
        self.calls.append(("begin", run.num_rounds, run.settings["selector"]))

    def resume(self, run, round):
        self.calls.append(("resume", run.num_rounds, round))

    def round(self, report):
        self.calls.append(("round", report.round))
        self.reports.append(report)

    def end(self, round, reason):
        self.calls.append(("end", round, reason))

    def failed(self, round, reason):
        self.calls.append(("failed", round, reason))


def loss_of(round, arrays):
    return MetricRecord({"loss": float(np.square(arrays["w"].numpy()).sum())})


def run(*reporters, rounds=3, folder=None, resume=False, evaluate=loss_of, on=None, **options):
    given = {"evaluate_fn": evaluate}
    return resumable(folder, rounds, on=on, resume=resume, given=given, reporters=reporters, **options)[
        0
    ].arrays


def weights(arrays):
    return [float(each) for each in arrays["w"].numpy()]


@pytest.fixture
def released():
    """An event that ends the threads that wait for it when the test is over."""
    event = Event()
    yield event
    event.set()


def test_a_run_is_told_from_begin_to_end():
    recorder, records, losses = Recorder(), [], {}

    def evaluate(round, arrays):
        found = loss_of(round, arrays)
        losses[round] = found["loss"]
        return found

    run(recorder, evaluate=evaluate, on_round=records.append)
    assert recorder.calls == [
        ("begin", 3, "adaptive-osmd"),
        *(("round", number) for number in range(4)),
        ("end", 3, ""),
    ]
    assert {report.round: report.metrics["loss"] for report in recorder.reports} == losses
    assert recorder.reports[0].record is None
    draws = np.zeros(NUM_CLIENTS, np.int64)
    for report, record in zip(recorder.reports[1:], records, strict=True):
        assert report.record is record
        drawn = record.selection.clients.tolist()
        assert {client: report.client_ids[client] for client in drawn} == {m: f"c{m}" for m in drawn}
        assert report.train_metrics["num-clients"] == len(drawn)
        draws[drawn] += record.selection.counts
        assert report.participation.tolist() == np.bincount(draws).tolist()
        first = NUM_CLIENTS if report.round == 1 else 0  # the clients' status is asked once
        assert report.traffic.messages_sent == len(drawn) + first
        assert report.traffic.bytes_sent == MODEL_BYTES * len(drawn)


def test_a_run_that_its_stop_function_ends_has_finished_and_was_not_stopped(caplog):
    recorder = Recorder()
    with caplog.at_level("INFO", "flwr"):
        run(recorder, stop=lambda round, _: round == 2)
    assert recorder.calls[-2:] == [("round", 2), ("end", 2, "finished early")]
    lines = [each.getMessage() for each in caplog.records]
    assert "The run finishes after round 2, since `stop` returned True" in lines
    assert not [line for line in lines if "topped" in line]


def test_the_traffic_of_a_round_does_not_depend_on_who_takes_the_counts():
    recorder = Recorder()
    strategy = SelectionStrategy(
        "uniform", clients_per_round=2, min_available_clients=NUM_CLIENTS, reporters=[recorder],
        polling=Polling(ask_status=True, interval=1),
    )  # fmt: skip
    taken = []

    def evaluate(round, arrays):
        if round != 2:
            taken.append(strategy.traffic.take().bytes_sent)
        return MetricRecord({})

    strategy.start(grid(), model(1, 2), num_rounds=3, evaluate_fn=evaluate)
    sent = [report.traffic.bytes_sent for report in recorder.reports if report.traffic]
    selected = [len(report.record.selection.clients) for report in recorder.reports if report.record]
    assert sent == [MODEL_BYTES * number for number in selected]
    assert taken == [0, sent[0], sent[1] + sent[2]]


def test_a_resumed_run_is_told_as_the_continuation(tmp_path):
    whole, first, second = Recorder(), Recorder(), Recorder()
    expected = run(whole, rounds=4)
    run(first, rounds=2, folder=tmp_path)
    assert weights(run(second, rounds=4, folder=tmp_path, resume=True)) == weights(expected)
    assert second.calls == [("resume", 4, 2), ("round", 3), ("round", 4), ("end", 4, "")]
    for report in second.reports:
        same = whole.reports[report.round]
        assert report.participation.tolist() == same.participation.tolist()
        assert report.metrics == same.metrics


def test_a_run_that_had_no_reporters_gets_some_at_a_resume(tmp_path):
    run(rounds=2, folder=tmp_path)
    recorder = Recorder()
    run(recorder, rounds=3, folder=tmp_path, resume=True)
    assert recorder.calls == [("resume", 3, 2), ("round", 3), ("end", 3, "")]
    assert recorder.reports[0].participation.sum() == NUM_CLIENTS


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no \x1b[2J data"), r"ValueError: no \x1b[2J data"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(143), "SystemExit: 143"),
    ],
)
@pytest.mark.parametrize("knows_stopped", [True, False])
def test_a_failure_is_told_with_its_reason(error, reason, knows_stopped):
    """A run that somebody stopped has not failed, except for reporters without the method `stopped`."""

    class Knower(Recorder):
        def stopped(self, round, reason):
            self.calls.append(("stopped", round, reason))

    recorder = Knower() if knows_stopped else Recorder()

    def evaluate(round, arrays):
        if round == 2:
            raise error
        return loss_of(round, arrays)

    with pytest.raises(type(error)):
        run(recorder, evaluate=evaluate)
    call = "stopped" if knows_stopped and not isinstance(error, Exception) else "failed"
    assert recorder.calls[1:] == [("round", 0), ("round", 1), (call, 1, reason)]


def test_a_round_is_told_after_its_checkpoint(tmp_path):
    saved = []

    class Looker(Reporter):
        def round(self, report):
            saved.append((report.round, (tmp_path / f"round-{report.round:08d}.npz").exists()))

    # One round, so that the reporter's thread cannot be late.
    run(Looker(), rounds=1, folder=tmp_path)
    assert saved == [(0, False), (1, True)]


@pytest.mark.parametrize(
    ("broken", "times", "error"),
    [
        ("begin", 1, SystemExit(3)),
        ("round", 4, OSError("disk \x1b[2J full")),
        ("round", 4, SystemExit(3)),
        ("end", 1, OSError("disk \x1b[2J full")),
    ],
)
def test_a_reporter_that_raises_does_not_stop_the_run(broken, times, error, monkeypatch):
    warnings = []
    monkeypatch.setattr(holder, "log", lambda level, text, *values: warnings.append(text % values))
    recorder, other = Recorder(), Recorder()

    def fail(*arguments):
        recorder.calls.append(("broken",))
        raise error

    setattr(recorder, broken, fail)
    assert weights(run(recorder, other)) == weights(run())
    assert other.calls[-1] == ("end", 3, "")
    assert len(warnings) == 1
    assert f"Recorder failed in {broken}: {type(error).__name__}" in warnings[0]
    assert "\x1b" not in warnings[0]
    assert recorder.calls.count(("broken",)) == times
    assert broken != "begin" or len(recorder.calls) == 1  # it is told no more


def test_a_reporter_that_hangs_delays_nothing(released, monkeypatch):
    warnings = []
    monkeypatch.setattr(holder, "log", lambda level, text, *values: warnings.append(text % values))
    monkeypatch.setattr(holder, "CAPACITY", 2)

    class Hanging(Recorder):
        patience = 0.0

        def begin(self, run):
            released.wait()

    hanging, other = Hanging(), Recorder()
    assert weights(run(hanging, other)) == weights(run())
    assert hanging.calls == []
    assert [call[0] for call in other.calls] == ["begin", *["round"] * 4, "end"]
    assert any("Hanging is slow: 2 rounds wait" in each for each in warnings)
    assert "Reporter Hanging has not finished within 0 s" in warnings
    assert any("Hanging was not told about" in each for each in warnings)


def test_a_slow_reporter_is_told_everything_and_no_round_waits_for_it():
    trained = Event()

    class Slow(Recorder):
        def round(self, report):
            assert trained.wait(60)  # fails if the run waits for this reporter
            super().round(report)

    def evaluate(round, arrays):
        if round == 3:
            trained.set()
        return loss_of(round, arrays)

    slow = Slow()
    run(slow, evaluate=evaluate)
    assert [report.round for report in slow.reports] == [0, 1, 2, 3]
    assert slow.calls[-1] == ("end", 3, "")


@pytest.mark.parametrize("error", [None, ValueError("no data"), KeyboardInterrupt()])
def test_a_slow_reporter_learns_the_end_and_not_the_last_rounds(error, monkeypatch):
    warnings = []
    monkeypatch.setattr(holder, "log", lambda level, text, *values: warnings.append(text % values))
    monkeypatch.setattr(holder, "HURRY", 60.1)
    monkeypatch.setattr(holder, "LAST", 60.0)

    class Slow(Recorder):
        patience = 60.1

        def stopped(self, round, reason):
            self.calls.append(("stopped", round, reason))

        def round(self, report):
            super().round(report)
            wait_for(lambda: [call[0] for call in waiting] == [last], 30, lambda: f"{waiting}")

    last = {type(None): "end", ValueError: "failed", KeyboardInterrupt: "stopped"}[type(error)]
    slow = Slow()
    reporters = holder.Reporters([slow])
    waiting = reporters._workers[0]._calls
    for number in range(5):
        reporters.round(number)
    reporters.failed(4, error) if error else reporters.end(4)
    assert [call[0] for call in slow.calls] == ["round", last]
    assert warnings == ["Reporter Slow was not told about 4 rounds"]


def test_what_is_no_reporter_is_refused():
    with pytest.raises(TypeError, match="must be a Reporter"):
        SelectionStrategy("uniform", clients_per_round=1, reporters=["tensorboard"])


def test_names_from_clients_are_safe_and_few():
    many = {f"m{number}": 1.0 for number in range(500)}
    report = RoundReport(
        1,
        train_metrics={"a\x1b[2J/../b": 1.0, "list": [1.0], "nan": float("nan"), **many},
        group_metrics={
            "../x": {"loss": 1.0}, "__x": {"loss": 2.0}, "Süd": {"": 3.0},
            **{f"g{number}": {"loss": 0.0} for number in range(500)},
        },
    )  # fmt: skip
    found = scalars(report)
    assert found["group/_x/loss"] == 1.0
    assert found["group/__x/loss"] == 2.0
    assert found["group/Süd/_"] == 3.0
    assert found[r"train/a_x1b_2J_.._b"] == 1.0
    assert "train/nan" not in found
    assert len([name for name in found if name.startswith("train/")]) == MOST - 1
    assert len([name for name in found if name.startswith("group/")]) == MOST
    assert scalars(RoundReport(1, group_metrics={"a/b": {"l": 1}, "a_b": {"l": 2}})) == {
        "group/a_b/l": 1.0, "group/a_b 2/l": 2.0,
    }  # fmt: skip


def test_names_that_change_in_every_round_are_few_in_a_run(monkeypatch):
    """Trackers keep every name for ever, and clients choose the names."""
    monkeypatch.setattr(holder, "MOST_NAMES", 3)
    told = Recorder()
    reporters = holder.Reporters([told])
    for number in range(1, 5):
        mine = {"loss": float(number), f"name {number}": 0.0, f"other {number}": 0.0}
        reporters.round(
            number, train_metrics=mine, client_metrics=mine, group_metrics={"north": mine, f"{number}": mine}
        )
    reporters.end(4)
    assert list(told.reports[-1].train_metrics) == list(told.reports[-1].client_metrics) == ["loss"]
    assert told.reports[-1].group_metrics == {"north": {"loss": 4.0}}
