"""A run in which no round changes the model has failed, and says why; it does not race through its rounds."""

import json
import logging

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from simulation.grid import InProcessGrid
from strategies.checkpoint import Checkpoint
from strategies.clients.printable import printable
from strategies.options import Checkpoints
from strategies.rounds.record import RoundRecord
from strategies.rounds.skipped_rounds import SkippedRounds
from strategies.run.saved_progress import Progress
from strategies.selectors import Feedback, Selection

from ..support.federations import play

NUM_CLIENTS, LATENCY = 4, 2.0  # LATENCY in seconds
REASON = "2 array records in the reply: must be 1"


def node(is_bad):
    """A client that adds 1 to the model, and in bad rounds sends a second array record, which is refused."""

    def answer(message):
        number = int(message.content.config_records["config"]["server-round"])
        (w,) = message.content.array_records["arrays"].to_numpy_ndarrays()
        content = RecordDict({"arrays": ArrayRecord([w + 1]), "metrics": MetricRecord({"num-examples": 10})})
        if is_bad(number):
            content["optimizer"] = ArrayRecord([w])
        return Message(content, reply_to=message)

    return answer


def run(rounds, folder=None, is_bad=lambda _: True):
    """Run or resume; return the strategy, the model, the records, and the simulated seconds."""
    grid = InProcessGrid(latency=LATENCY)
    for client in range(NUM_CLIENTS):
        grid.add_node(handler=node(is_bad), name=f"site-{client}")
    w, records, strategy, _ = play(
        grid, "uniform", rounds, ArrayRecord([np.zeros(2, np.float32)]), clients_per_round=3,
        min_available_clients=NUM_CLIENTS, polling=None,
        checkpoints=Checkpoints(folder, resume=True) if folder else None,
    )  # fmt: skip
    return strategy, w.tolist(), records, grid.clock.monotonic()


def test_the_model_is_unchanged_and_the_commonest_reason_is_logged(caplog):
    strategy, w, records, _ = run(20)
    assert w == [0, 0]
    assert all(record.skipped for record in records)
    assert strategy.unchanged == (
        f"no round changed the model: all 20 were skipped. The commonest reason, in 20: {REASON}"
    )
    errors = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert errors == [f"N{strategy.unchanged[1:]}"]


def test_if_all_clients_are_quarantined_those_that_are_back_first_take_part(caplog):
    _, _, records, seconds = run(20)
    assert any(record.quarantined for record in records)
    assert all(record.selection.clients.size for record in records)
    assert seconds >= 20 * LATENCY  # each round waits for a reply
    assert any(
        "may be selected although they are quarantined for offences" in each for each in caplog.messages
    )


def test_clients_that_recover_after_all_were_quarantined_train_on():
    """All fail in the first ten rounds. No offence lengthens a quarantine that has ended early."""
    strategy, w, records, _ = run(40, is_bad=lambda number: number <= 10)
    assert not strategy.unchanged
    assert w == [30, 30]
    assert not any(record.skipped for record in records[10:])
    assert not any(record.quarantined for record in records[20:])


def test_a_resumed_run_that_has_changed_the_model_before_has_not_failed(tmp_path):
    strategy, w, *_ = run(2, tmp_path, is_bad=lambda number: number == 2)
    assert (strategy.unchanged, w) == ("", [1, 1])
    strategy, w, records, _ = run(4, tmp_path)
    assert all(record.skipped for record in records)
    assert (strategy.unchanged, w) == ("", [1, 1])


def test_a_resume_keeps_the_reason(tmp_path):
    run(3, tmp_path)
    strategy, w, records, _ = run(3, tmp_path)  # no round is left
    assert (w, records) == ([0, 0], [])
    assert strategy.unchanged.endswith(f"all 3 were skipped. The commonest reason, in 3: {REASON}")
    strategy, *_ = run(5, tmp_path)
    assert strategy.unchanged.endswith(f"all 5 were skipped. The commonest reason, in 5: {REASON}")
    strategy, w, *_ = run(6, tmp_path, is_bad=lambda _: False)
    assert (strategy.unchanged, w) == ("", [1, 1])


@pytest.mark.parametrize("moved", [False, True])
def test_a_checkpoint_from_before_the_reasons_were_saved_is_loaded(moved):
    initial = ArrayRecord([np.zeros(2, np.float32)])
    (name,) = initial
    saved = Checkpoint(2, {f"model/{name}": np.ones(2, np.float32)}, {"moved": moved}, {}, [])
    progress = Progress.of(saved, initial)
    assert progress.skipped.changed == moved
    assert progress.result.arrays.to_numpy_ndarrays()[0].tolist() == [1, 1]


def test_clients_whose_errors_differ_in_every_round_take_little_memory():
    skipped = SkippedRounds()
    for number in range(500):
        skipped.count(failed_round(number, f"client broke in round {number}"))
    for number in range(500, 1500):
        skipped.count(failed_round(number, "x" * (number - 400)))
    assert skipped.reason == (
        "no round changed the model: all 1500 were skipped. The commonest reason, in 500: "
        "client broke in round 0"
    )
    assert len(json.dumps(skipped.state())) < 100_000


def failed_round(number, failure):
    one = np.ones(1)
    selection = Selection(np.zeros(1, np.int64), np.ones(1, np.int64), one, one, one)
    missing = np.full(1, np.nan)
    feedback = Feedback(missing, missing, missing, missing, np.zeros(1, np.bool_))
    return RoundRecord(number, 1, selection, 0 * one, feedback, {0: printable(failure)}, skipped="no reply")
