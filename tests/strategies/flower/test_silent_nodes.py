"""What clients cost that are online and do not answer: simulated time of a federation of twenty."""

import logging
from functools import cache
from math import inf

import numpy as np
import pytest

from simulation.grid import InProcessGrid
from simulation.response_times import ResponseTimes
from strategies.clients.reports import STATUS
from strategies.options import Buffered, Checkpoints, Deadlines, Faults

from ...support import federations
from ...support.federations import model, reply, weights

M, K, ROUNDS = 20, 5, 100
SELECTORS = ("flics", "pow-d", "forecast", "md", "uniform", "adaptive-osmd")
CASES = [
    pytest.param(
        *(name, silent, share),
        id=f"{name}-{len(silent)}",
        marks=() if (name, len(silent)) in {("flics", 5), ("pow-d", 1)} else pytest.mark.slow,
    )
    for name in SELECTORS
    for silent, share in (((3,), 0.1), (tuple(range(5)), 0.5))
]
GROUPS = {"flics": [str(m // 5) for m in range(M)]}  # a group of five: all of it may be silent


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, "flwr")


def federation(selector, silent=(), *, to=("train", "query.loss"), absent=(), **slow):
    """Return clients that need about a second to train, and a tenth of it for a poll.

    The silent ones do not answer some kinds of message; slow ones need so many times as long; absent ones are
    not online.
    """
    times = ResponseTimes(M, seed=1, median=1.0)

    def latency(message):
        client, kind = grid.client_of(message.metadata.dst_node_id), message.metadata.message_type
        if client in silent and kind in to:
            return inf
        if kind == STATUS:
            return 0.0
        number = int(message.content["config"]["server-round"])
        seconds = float(times.seconds(number, [client])[0]) * slow.get(f"c{client:02d}", 1.0)
        return seconds if kind == "train" else seconds / 10

    grid = InProcessGrid(latency=latency)
    for m in range(M):
        node = grid.add_node(handler=_client(m, GROUPS.get(selector, [None] * M)[m]))
        if m in absent:
            grid.remove_node(node)
    return grid


def _client(m, group):
    target = np.random.default_rng(m).standard_normal(3).astype(np.float32)

    def answer(message):
        if message.metadata.message_type == STATUS:
            return reply(message, client_id=f"c{m:02d}", num_examples=10, group=group)
        w = weights(message)
        loss = float(np.square(w - target).sum())
        if message.metadata.message_type == "query.loss":
            return reply(message, loss=loss)
        return reply(message, w - np.float32(0.1) * (w - target), num_examples=10, train_loss=loss)

    return answer


def play(grid, selector, rounds=ROUNDS, **options):
    """Return the simulated seconds of a run, and its records."""
    options = {"deadlines": Deadlines(round=60), "num_rounds": ROUNDS, "seed": 3, **options}
    records = federations.play(grid, selector, rounds, model(0, 0, 0), clients_per_round=K, **options).records
    return grid.clock.monotonic(), records


@cache
def without(selector, absent, rounds=ROUNDS):
    """Return the seconds of a run without some of the clients."""
    return play(federation(selector, absent=absent), selector, rounds)[0]


@pytest.mark.parametrize(("selector", "silent", "share"), CASES)
def test_silent_clients_cost_little_time(selector, silent, share):
    seconds, records = play(federation(selector, silent), selector)
    assert seconds <= (1 + share) * without(selector, silent)
    asked = [client for record in records for client in record.selection.clients.tolist()]
    assert max(asked.count(client) for client in silent) <= 6
    assert sum(bool(record.skipped) for record in records) <= 3
    assert {client for record in records for client in record.silent} == set(silent)


@pytest.mark.slow
@pytest.mark.parametrize(("silent", "share"), [((3,), 0.1), (tuple(range(5)), 0.5)], ids=["1", "5"])
def test_silent_clients_cost_buffered_rounds_little_time(silent, share):
    """The silent ones are as many as the places."""
    mode = Buffered(concurrency=K, size=3)
    seconds, records = play(federation("md", silent), "md", mode=mode)
    assert seconds <= (1 + share) * play(federation("md", absent=silent), "md", mode=mode)[0]
    assert not any(record.skipped for record in records)


def test_who_answers_polls_and_does_not_train_is_silent_too():
    """pow-d selects the clients with the largest losses, and these do not become smaller without training."""
    seconds, records = play(federation("pow-d", [3], to=["train"]), "pow-d", rounds=50)
    assert seconds <= 1.15 * without("pow-d", (3,), rounds=50)  # half the silences come in the first rounds
    assert 1 <= sum(3 in record.selection.clients for record in records) <= 4


def test_who_is_silent_from_the_beginning_costs_little_time():
    """Such a node is never registered; the question for its status is what rounds might wait for."""
    seconds, records = play(federation("md", [0], to=[STATUS]), "md", rounds=50)
    assert seconds <= without("md", (0,), rounds=50) + 5 + 3 * 4  # the first node is asked alone for 5 s
    assert {record.num_available for record in records} == {M - 1}


@pytest.mark.parametrize("factor", [0.95, 1.05], ids=["in time", "too late"])
def test_an_unavailable_client_that_answers_as_late_as_possible_costs_little_time(factor):
    """Rounds that wait for it would take up to `Deadlines.status`, because its answers lengthen the wait."""
    grid = federation("uniform")
    latency, answers = grid.latency, []

    def late(message):
        if message.metadata.message_type != STATUS:
            return latency(message)
        if grid.client_of(message.metadata.dst_node_id) != 3:
            return 0.05
        answers.append(min(60.0, 3.0 * 3.0 ** (len(answers) // 6)))
        return factor * answers[-1]

    grid.latency = late
    liar = grid._nodes[sorted(grid.get_node_ids())[3]]
    answer = liar.call

    def unavailable(message):
        if message.metadata.message_type != STATUS:
            return answer(message)
        return reply(message, client_id="c03", num_examples=10, available=False)

    liar.call = unavailable
    seconds, records = play(grid, "uniform")
    assert seconds <= 1.1 * without("uniform", (3,)) + 20
    assert len(answers) > 10
    assert records[-1].num_available == M - 1


@pytest.mark.parametrize("to", ["train", STATUS])
def test_looks_for_late_answers_that_the_superlink_holds_cost_little_time(to):
    """The SuperLink holds a look for up to a second (`deploy.fleet.duties.held_requests`)."""

    def seconds(grid):
        pull = grid.pull_messages

        def held(message_ids):
            asked = list(message_ids)
            for _ in range(20):
                if replies := list(pull(asked)):
                    return replies
                grid.clock.sleep(0.05)
            return []

        grid.pull_messages = held
        return play(grid, "uniform")[0]

    absent = seconds(federation("uniform", absent=[3]))
    assert seconds(federation("uniform", [3], to=[to])) <= 1.1 * absent + 17


def test_slow_clients_are_not_lost():
    """The slowest needs eight times as long as usual, which nobody knows at first."""
    _, records = play(federation("uniform", c03=8.0, c11=4.0), "uniform")
    for client in (3, 11):
        replies = [
            bool(record.feedback.responded[record.selection.clients == client].all())
            for record in records
            if client in record.selection.clients
        ]
        assert len(replies) >= 15
        assert sum(replies) >= len(replies) - 2


def test_after_a_pause_of_the_whole_federation_all_clients_are_back():
    grid = federation("uniform")
    latency = grid.latency

    def with_a_pause(message):
        return inf if 20 <= grid.clock.monotonic() < 80 else latency(message)

    grid.latency = with_a_pause
    _, records = play(grid, "uniform", rounds=60)
    assert sum(bool(record.skipped) for record in records) <= 7
    assert records[-1].num_available == M


@pytest.mark.parametrize(("call", "late"), [("push", 14.0), ("pull", 44.0)])
def test_a_superlink_that_does_not_answer_is_no_silence_of_clients(call, late):
    """In round 5 it is away for 30 s, and one client needs 14 s more. A wait is three times 1 to 2 s."""
    grid, asked, away = federation("uniform"), [], iter([30.0])
    latency, push, pull = grid.latency, grid.push_messages, grid.pull_messages

    def in_round_5(message):
        return message.metadata.message_type == "train" and message.content["config"]["server-round"] == 5

    def seconds(message):
        asked.extend([message] * in_round_5(message))
        return latency(message) + (late if asked[:1] == [message] else 0.0)

    def send(messages):
        grid.clock.sleep(next(away, 0.0) if call == "push" and any(map(in_round_5, messages)) else 0.0)
        return push(messages)

    def look(message_ids):
        grid.clock.sleep(next(away, 0.0) if call == "pull" and asked else 0.0)
        return pull(message_ids)

    grid.latency, grid.push_messages, grid.pull_messages = seconds, send, look
    _, records = play(grid, "uniform", rounds=10)
    assert len(asked) == K
    assert grid.clock.monotonic() > 44
    assert not any(record.failures or record.silent for record in records)


def test_the_log_says_why_and_how_long_a_client_is_quarantined(caplog):
    caplog.set_level(logging.WARNING, "flwr")
    _, records = play(federation("full", [3]), "full", rounds=6)
    assert [record.round for record in records if record.silent] == [2, 3, 4, 5]
    lines = [each for each in caplog.messages if each.startswith("Quarantined")]
    assert [each.partition(": ")[0] for each in lines] == [f"Quarantined in round {n}" for n in range(2, 6)]
    assert all(each.endswith(" (silence or errors, back in round 6)") for each in lines)


def test_silence_is_remembered_over_a_resume(tmp_path):
    whole = play(federation("pow-d", [3, 4]), "pow-d", rounds=12)[1]
    first = play(federation("pow-d", [3, 4]), "pow-d", 5, checkpoints=Checkpoints(tmp_path))[1]
    resumed = Checkpoints(tmp_path, resume=True)
    second = play(federation("pow-d", [3, 4]), "pow-d", 12, checkpoints=resumed)[1]
    for ours, theirs in zip([*first, *second], whole, strict=True):
        assert ours.selection.clients.tolist() == theirs.selection.clients.tolist()
        assert (ours.silent, ours.num_available) == (theirs.silent, theirs.num_available)
    assert any(record.silent for record in second)


def test_without_these_protections_rounds_wait_until_the_deadline():
    options = {"deadlines": Deadlines(round=60, shortest=inf), "faults": Faults(silence=False)}
    seconds, records = play(federation("full", [3]), "full", rounds=3, **options)
    assert seconds >= 180
    assert not any(record.quarantined for record in records)
