"""Slow sites are waited for, quorums are reached, moving uploads are not given up, and failing clients
rest."""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from math import inf

import numpy as np
import pytest

from simulation.grid import InProcessGrid
from strategies import SelectionStrategy
from strategies.clients.reports import STATUS
from strategies.options import Buffered, Checkpoints, Deadlines, Faults, Polling

from ...support import federations
from ...support.federations import reply, weights

USUAL = 10.0  # s, how long most sites take
Latency = Callable[[int], float]  # of a round


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, "flwr")


def site(message):
    if message.metadata.message_type == STATUS:
        return reply(message, num_examples=100)
    return reply(message, weights(message) + np.float32(1), num_examples=100, train_loss=1.0)


def fails(message):
    raise ValueError("it has no data")


def federation(seconds, failing=(), grid=InProcessGrid, **options):
    """Return sites that take so many seconds, or the seconds of a function of the round."""

    def latency(message):
        taken = seconds[made.client_of(message.metadata.dst_node_id)]
        return taken(int(message.content["config"]["server-round"])) if callable(taken) else taken

    made = grid(latency=latency, **options)
    for m in range(len(seconds)):
        made.add_node(handler=fails if m in failing else site, name=f"site-{m:02d}")
    return made


def play(grid, rounds, selector="full", k=5, size=4, **options):
    """Return the final model and the records of a run."""
    options = {"min_available_clients": len(grid._nodes), "polling": Polling(interval=1), **options}
    start = federations.model(*[0] * size)
    played = federations.play(grid, selector, rounds, start, clients_per_round=k, **options)
    return played.result.arrays, played.records


def used(records, client):
    """Return the rounds that used a client's update."""
    return [
        record.round for record in records if (record.weights[record.selection.clients == client] > 0).any()
    ]


@pytest.mark.parametrize("slow", [17, 70, 700])
def test_a_site_of_five_that_always_takes_long_is_used_in_every_round(slow):
    """The first wait of a federation of five is 80 times the usual time, or a fifth of the deadline (720
    s)."""
    _, records = play(federation([USUAL] * 4 + [slow]), 30)
    assert used(records, 4) == list(range(1, 31))
    assert not any(record.failures or record.silent for record in records)


@pytest.mark.parametrize("slow", [40, 60, 400])
def test_a_slow_site_of_twenty_is_used_from_its_first_reply_on(slow):
    """The first wait is five times the usual time. Then rounds of 10 s pass until the reply has come."""
    _, records = play(federation([USUAL] * 19 + [slow]), 60, k=20)
    missed = 0 if slow <= 5 * USUAL else int(np.ceil((slow - 5 * USUAL) / USUAL)) + 1
    assert used(records, 19)[0] <= missed + 1
    assert used(records, 19) == list(range(used(records, 19)[0], 61))


def test_a_site_that_becomes_slow_is_used_again_after_its_first_late_reply():
    """It is given up after three times its own time, and again each time it is asked before it replies."""
    _, records = play(federation([USUAL] * 4 + [lambda number: 10.0 if number < 20 else 400.0]), 100)
    first_again = min(number for number in used(records, 4) if number >= 20)
    assert first_again <= 20 + 38  # 400 s: 30 s for round 20, then rounds of 10 s
    assert used(records, 4) == [*range(1, 20), *range(first_again, 101)]


def test_a_site_that_is_slow_once_is_back_when_it_replies():
    _, records = play(federation([USUAL] * 4 + [lambda number: 70.0 if number == 10 else 10.0]), 40)
    assert used(records, 4) == [*range(1, 10), *range(15, 41)]  # 70 s: 30 s for round 10, four rounds of 10 s


class LargeMessages(InProcessGrid):
    """Sending a message, and fetching a reply, takes a second: clients reply while others are still asked."""

    def push_messages(self, messages):
        ids = []
        for message in messages:
            ids += super().push_messages([message])
            self.clock.sleep(1.0)
        return ids

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        self.clock.sleep(float(len(replies)))
        return replies


def test_a_reply_that_comes_while_others_are_still_asked_does_not_count_as_one_that_took_no_time():
    """Two devices: the first has replied when the second has been sent its 20 MB over a slow line."""
    grid = federation([0.5, 80.0], grid=LargeMessages)
    _, records = play(grid, 10, k=2, deadlines=Deadlines(round=600))
    assert used(records, 1) == list(range(1, 11))


def test_a_late_update_is_not_used():
    w, records = play(federation([USUAL] * 19 + [60.0]), 10, k=20)
    assert not used(records[:1], 19)
    assert w.to_numpy_ndarrays()[0][0] == pytest.approx(10.0)  # one step of 1 a round


def test_late_replies_are_found_while_a_later_round_waits():
    """Round 2 lasts 300 s, since another site has become slow: the server learns 60 s, and not 300 s."""
    grid = federation([USUAL] * 18 + [lambda number: 10.0 if number == 1 else 25.0, 60.0])
    strategy = SelectionStrategy("full", clients_per_round=20, min_available_clients=20)
    strategy.start(grid, federations.model(0, 0, 0, 0), num_rounds=3)
    learned = strategy._parts.clients.logic.patience._times[19, 1]
    assert learned == pytest.approx(60.0, abs=2.0)


@pytest.mark.parametrize("slow", [20, 31, 700])
def test_a_quorum_is_waited_for(slow):
    w, records = play(federation([USUAL] * 4 + [slow]), 30, faults=Faults(quorum=5))
    assert not any(record.skipped for record in records)
    assert w.to_numpy_ndarrays()[0].tolist() == [30.0] * 4


def test_a_quorum_is_waited_for_after_the_site_was_silent():
    """The message of round 1 is lost; from then on, the site takes 2000 s, which is beyond its first wait."""
    lost_once = lambda number: inf if number == 1 else 2000.0  # noqa: E731
    _, records = play(federation([USUAL] * 4 + [lost_once]), 4, faults=Faults(quorum=5))
    assert [bool(record.skipped) for record in records] == [True, False, False, False]
    assert records[0].failures == {4: "no reply by the deadline"}
    assert records[0].seconds == pytest.approx(3600, abs=10)


def test_a_quorum_is_not_waited_for_if_it_is_reached_or_out_of_reach():
    _, records = play(federation([USUAL] * 19 + [inf]), 3, k=20, faults=Faults(quorum=19))
    assert records[0].seconds < 60
    assert not any(record.skipped for record in records)
    _, records = play(federation([USUAL] * 19 + [inf], failing=[0]), 1, k=20, faults=Faults(quorum=20))
    assert records[0].seconds < 60
    assert records[0].skipped


def test_candidates_of_a_quorum_are_waited_for_in_a_poll():
    def latency(message):
        if message.metadata.message_type == "train":
            return USUAL
        return 50.0 if grid.client_of(message.metadata.dst_node_id) == 4 else 0.1

    def polled(message):
        if message.metadata.message_type == "train":
            return site(message)
        return reply(message, loss=1.0)

    grid = InProcessGrid(latency=latency)
    for _ in range(5):
        grid.add_node(handler=polled)
    _, records = play(grid, 5, "pow-d", faults=Faults(quorum=5))
    assert not any(record.skipped for record in records)


def test_masked_updates_wait_for_every_client():
    """A round without one of the models is skipped, so it costs all clients their training."""
    _, records = play(
        federation([USUAL] * 19 + [400.0]), 3, k=20, masked_updates=True, faults=Faults(guard=False)
    )
    assert not any(record.skipped for record in records)


def test_overdue_clients_of_a_buffered_round_are_waited_for_if_the_quorum_needs_them():
    mode = Buffered(concurrency=5, size=5)
    _, records = play(federation([USUAL] * 4 + [1000.0]), 4, "uniform", mode=mode, faults=Faults(quorum=5))
    assert not any(record.skipped for record in records)


@pytest.mark.parametrize(("tells", "expected"), [(True, 12), (False, 0)])
def test_an_upload_that_is_moving_is_not_given_up(tells, expected):
    """20 MB over a line of 500 kB/s take 40 s; the others train and send for about 1 s."""
    size = 20_000_000 // 4

    def bandwidth(message):
        return 500e3 if grid.client_of(message.metadata.dst_node_id) == 19 else 1e9

    grid = federation([1.0] * 20, bandwidth=bandwidth, frozen=True)
    if not tells:  # like Flower's SuperLink
        grid.received_bytes = lambda message_ids: {}
    options = {"deadlines": Deadlines(round=600), "faults": Faults(guard=False)}
    _, records = play(grid, 2, k=20, size=size, **options)
    assert used(records, 19) == ([1, 2] if tells else [])
    assert max(record.seconds for record in records) <= (42 if tells else 8)


def test_an_upload_that_has_stopped_is_given_up():
    grid = federation([1.0] * 19 + [inf])
    asked = []

    def received(message_ids):
        asked.append(grid.clock.monotonic())
        return dict.fromkeys(message_ids, 5 * 10**6)

    grid.received_bytes = received
    _, records = play(grid, 1, k=20, deadlines=Deadlines(round=600))
    assert len(asked) == 2  # the second look finds no more bytes than the first one
    assert records[0].seconds == pytest.approx(10, abs=1)  # twice five times the usual second
    assert "not waited for" in records[0].failures[19]


def test_progress_that_cannot_be_read_ends_no_run():
    grid = federation([1.0] * 19 + [inf])

    def broken(message_ids):
        raise ConnectionError("the SuperLink is busy")

    grid.received_bytes = broken
    _, records = play(grid, 2, k=20)
    assert len(records) == 2


def test_a_failure_says_which_wait_ended():
    plays = partial(play, polling=Polling())
    one_lost = lambda number: inf if number == 10 else 10.0  # noqa: E731
    _, records = plays(federation([USUAL] * 4 + [one_lost]), 10)
    assert records[9].failures == {
        4: "not waited for: 30 s, 3 times its slowest recent time; deadline 3600 s"
    }
    _, records = plays(federation([USUAL] * 19 + [inf]), 1, k=20)
    assert records[0].failures == {19: "not waited for: 50 s, 5 times the usual time; deadline 3600 s"}
    _, records = plays(federation([0.1] * 19 + [inf]), 1, k=20)
    assert records[0].failures == {19: "not waited for: 3 s, the shortest wait; deadline 3600 s"}
    _, records = plays(federation([USUAL] * 4 + [inf]), 1, deadlines=Deadlines(round=25))
    assert records[0].failures == {4: "no reply by the deadline"}
    _, records = plays(federation([USUAL] * 4 + [inf]), 1, k=4, faults=Faults(over_selection=1.25))
    assert records[0].failures == {4: "enough others had replied"}


def test_a_message_that_could_not_be_sent_is_not_called_late():
    grid = federation([USUAL] * 5)
    push, calls = grid.push_messages, iter([True])

    def busy(messages):
        if next(calls, False):
            raise ConnectionError("the SuperLink is busy")
        return push(messages)

    grid.push_messages = busy
    _, records = play(grid, 2)
    assert set(records[0].failures.values()) == {"the message could not be sent"}
    assert not records[1].failures


@pytest.mark.parametrize("selector", ["uniform", "full", "forecast", "timed-forecast"])
def test_a_client_that_always_sends_errors_is_asked_ever_more_rarely(selector):
    _w, records = play(federation([0.0] * 6, failing=[0]), 120, selector, k=2)
    asked = Counter(int(client) for record in records for client in record.selection.clients)
    assert asked[0] <= 6
    assert min(asked[m] for m in range(1, 6)) >= 30
    assert sum(bool(record.skipped) for record in records) <= 1
    assert any(0 in record.silent for record in records)


def test_four_of_ten_that_always_send_errors_get_few_draws_of_oort():
    _, records = play(federation([0.0] * 10, failing=range(4)), 100, "oort", k=3)
    asked = Counter(int(client) for record in records for client in record.selection.clients)
    assert sum(asked[m] for m in range(4)) <= 0.1 * sum(asked.values())


def test_a_client_that_sends_an_error_now_and_then_stays():
    """Neither one error nor an error in every fourth round is a quarantine."""

    def now_and_then(message):
        if int(message.content["config"]["server-round"]) % 4 == 0:
            raise ValueError("the disk was full")
        return site(message)

    grid = federation([USUAL] * 4)
    grid.add_node(handler=now_and_then, name="site-04")
    grid.latency = lambda message: USUAL
    _, records = play(grid, 40, min_available_clients=5)
    assert not any(record.silent for record in records)
    assert len(used(records, 4)) == 30


def test_an_error_does_not_teach_the_time_of_a_training():
    """The site fails at once in round 1, and needs 40 s from then on: as long as its first wait of 50 s."""

    def broken_at_first(message):
        if int(message.content["config"]["server-round"]) == 1:
            raise ValueError("no data yet")
        return site(message)

    grid = federation([USUAL] * 19 + [lambda number: 0.1 if number == 1 else 40.0])
    grid._nodes[max(grid._nodes)].call = broken_at_first
    _, records = play(grid, 20, k=20)
    assert used(records, 19) == list(range(2, 21))


def in_turn(silent, rounds):
    """Return the seconds of a run of 1 s rounds, while silent nodes are online one after another for 15 s."""

    def latency(message):
        is_silent = message.metadata.dst_node_id >= 100
        return inf if is_silent else 1.0 if message.metadata.message_type == "train" else 0.05

    grid = InProcessGrid(latency=latency)
    for m in range(6):
        grid.add_node(handler=site, name=f"site-{m}")
    ids = grid.get_node_ids
    entered = set()

    def turn():
        now = int(grid.clock.monotonic() // 15)
        for node in [each for each in grid._nodes if each >= 100 and each != 100 + now]:
            grid.remove_node(node)
        if now < silent and now not in entered:
            entered.add(now)
            grid.add_node(handler=site, node_id=100 + now, name=f"silent-{now}")
        return ids()

    grid.get_node_ids = turn
    play(grid, rounds, k=6, min_available_clients=6, polling=Polling(ask_status=True, interval=1))
    assert len(entered) >= min(silent, 4)
    return grid.clock.monotonic()


@pytest.mark.parametrize("silent", [4, 20])
def test_nodes_that_come_in_turn_and_answer_nothing_share_one_credit(silent):
    assert (
        in_turn(silent, 60) <= 1.05 * in_turn(0, 60) + 10 + 5 + 2
    )  # the first node of a run is asked for 5 s


def test_nobody_waits_for_the_status_of_a_node_that_has_gone_offline():
    grid = InProcessGrid(latency=lambda message: inf if message.metadata.dst_node_id == 100 else 0.0)
    for m in range(3):
        grid.add_node(handler=site, name=f"site-{m}")
    grid.add_node(handler=site, node_id=100, name="gone")
    ids = grid.get_node_ids
    grid.get_node_ids = lambda: [each for each in ids() if each != 100]
    play(grid, 1, k=3, min_available_clients=3, polling=Polling(ask_status=True, interval=1))
    assert grid.clock.monotonic() < 2.5


@pytest.mark.parametrize("ask_status", [None, True])
def test_nodes_whose_registered_name_is_not_eligible_get_no_message(ask_status):
    got = defaultdict(Counter)
    grid = InProcessGrid()
    for m in range(4):

        def handle(message, name=f"site-{m}"):
            got[name][message.metadata.message_type] += 1
            if message.metadata.message_type == STATUS:
                return reply(message, num_examples=10, client_id=name)
            return site(message)

        grid.add_node(handler=handle, name=f"site-{m}")
    _, records = play(grid, 5, k=2, eligible="site-[01]", polling=Polling(ask_status=ask_status, interval=1))
    assert set(got) == {"site-0", "site-1"}
    assert {record.num_ineligible for record in records} == {2}


def test_nodes_are_asked_for_their_status_once_their_name_is_eligible():
    asked = Counter()
    before = []
    grid = InProcessGrid()
    for m in range(4):

        def handle(message, m=m):
            asked[m] += message.metadata.message_type == STATUS
            return site(message)

        grid.add_node(handler=handle, name=f"site-{m}")
    strategy = SelectionStrategy(
        "md",
        clients_per_round=2,
        min_available_clients=4,
        eligible=lambda round: "site-[01]" if round < 3 else "site-[23]",
        polling=Polling(ask_status=True, interval=1),
        on_round=lambda record: before.append(+asked),
    )
    strategy.start(grid, federations.model(0, 0, 0, 0), num_rounds=4)
    assert before == [{0: 1, 1: 1}, {0: 1, 1: 1}, dict.fromkeys(range(4), 1), dict.fromkeys(range(4), 1)]


def test_a_quorum_of_more_clients_than_can_be_eligible_is_refused():
    with pytest.raises(ValueError, match=r"faults\.quorum = 3: must be at most 2, the number of clients"):
        SelectionStrategy("md", clients_per_round=3, eligible="a|b", faults=Faults(quorum=3))
    SelectionStrategy("md", clients_per_round=3, eligible="a|b*", faults=Faults(quorum=3))


def test_waits_and_late_replies_go_on_over_a_resume(tmp_path):
    """The late reply itself is lost, as is every reply to a run that has ended; what was learned stays."""
    seconds = [USUAL] * 19 + [70.0]
    whole = play(federation(seconds, failing=[3]), 24, k=20)[1]
    assert used(whole, 19)
    play(federation(seconds, failing=[3]), 12, k=20, checkpoints=Checkpoints(tmp_path))
    resumed = Checkpoints(tmp_path, resume=True)
    second = play(federation(seconds, failing=[3]), 24, k=20, checkpoints=resumed)[1]
    for ours, theirs in zip(second, whole[12:], strict=True):
        assert ours.selection.clients.tolist() == theirs.selection.clients.tolist()
        assert ours.weights.tolist() == theirs.weights.tolist()
        assert (ours.silent, ours.failures) == (theirs.silent, theirs.failures)
