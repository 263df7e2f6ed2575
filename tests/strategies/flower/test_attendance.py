"""Clients that come, go, sleep and come back under another identity; skipped, early and small rounds."""

import time
from math import inf

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from strategies import NotEnoughClientsError, SelectionStrategy
from strategies.clients.reports import STATUS, Report
from strategies.flower.attendance import Attendance
from strategies.flower.messages import TrainingRound, write_report
from strategies.options import Checkpoints, Deadlines, Faults, Overrides, Polling
from strategies.rounds.stages import Chosen

from ...support.federations import model
from ...support.toy_grid import ToyGrid
from ..test_strategy import BAD_NODES, client, run


class TimedGrid(ToyGrid):
    """Updates arrive after their node's latency, in simulated seconds."""

    def __init__(self, nodes, latencies=None):
        super().__init__(nodes)
        self.latencies = latencies or {}
        self.latency = self._latency_of

    def _latency_of(self, message):
        is_train = message.metadata.message_type == "train"
        return self.latencies.get(message.metadata.dst_node_id, 0.0) if is_train else 0.0


def strategy_on(grid, **options):
    given = {"clients_per_round": 2, "num_rounds": 9, "polling": Polling(ask_status=True), **options}
    strategy = SelectionStrategy(given.pop("selector", "uniform"), **given)

    def one_round(number):
        sent = list(strategy.configure_train(number, model(0, 0), ConfigRecord(), grid))
        strategy.aggregate_train(number, grid.send_and_receive(sent))
        return sent

    return strategy, one_round


def test_a_restarted_client_waits_for_its_own_ghost_and_keeps_its_index():
    """The old node of a client without a key counts as online for a minute after it was killed."""
    grid = TimedGrid({1: client("a"), 2: client("b"), 3: client("c")})
    strategy, one_round = strategy_on(grid)
    one_round(1)
    grid.nodes[9] = client("c")  # restarted; node 3 is its ghost
    for number in (2, 3):
        one_round(number)
        grid.clock.sleep(25)
    assert strategy.roster.ids() == ["a", "b", "c"]
    assert strategy.roster.client_at(9) is None
    del grid.nodes[3]
    one_round(4)
    assert strategy.roster.ids() == ["a", "b", "c"]
    assert strategy.roster.node_of_id("c") == 9


def test_a_client_with_a_registered_name_takes_no_other_name():
    """A reply's claim renamed the client to a name that was free, until the client of this name came."""
    grid = ToyGrid({1: client("x")}, {1: "client-01"})
    attendance = Attendance(1, 1, 1, Deadlines(), Polling())
    attendance.wait_for_first(grid)
    attendance.hear(0, Report(client_id="client-02"))
    assert attendance.roster.ids() == ["client-01"]


def test_a_second_node_with_the_same_claim_becomes_a_client_of_its_own():
    grid = TimedGrid({1: client("a"), 2: client("b")})
    strategy, one_round = strategy_on(grid)
    one_round(1)
    grid.nodes[9] = client("b")
    one_round(2)
    assert strategy.roster.ids() == ["a", "b"]
    asked = sum(message.metadata.message_type == STATUS for message in grid.sent)
    one_round(3)  # it waits without being asked again
    assert sum(message.metadata.message_type == STATUS for message in grid.sent) == asked
    grid.clock.sleep(100)
    one_round(4)
    assert strategy.roster.ids() == ["a", "b", "node-9"]


def test_a_round_waits_for_its_quorum():
    grid = TimedGrid({n: client(f"c{n}") for n in (1, 2, 3)})
    strategy, one_round = strategy_on(
        grid, clients_per_round=3, faults=Faults(quorum=2), deadlines=Deadlines(absence=60)
    )
    one_round(1)
    nodes = dict(grid.nodes)
    grid.nodes = {1: nodes[1]}
    sleep = grid.clock.sleep

    def and_come_back(seconds, /):
        sleep(seconds)
        if grid.clock.monotonic() > 20:
            grid.nodes = {1: nodes[1], 3: nodes[3]}

    grid.clock.sleep = and_come_back
    assert len(one_round(2)) == 2
    assert 20 < grid.clock.monotonic() < 60
    grid.nodes = {1: nodes[1]}
    grid.clock.sleep = sleep
    with pytest.raises(NotEnoughClientsError, match=r"the quorum is 2, and 1 client is available after 60 s"):
        one_round(3)
    assert strategy.roster.ids() == ["c1", "c2", "c3"]


TWICE = {
    "clients_per_round": 4, "faults": Faults(over_selection=2.0), "min_available_clients": 8,
    "deadlines": Deadlines(round=100),
}  # fmt: skip


def test_over_selection_uses_the_first_replies():
    latency = {n: float(n) for n in range(1, 9)}
    grid = TimedGrid({n: client(f"c{n}") for n in range(1, 9)}, latency)
    _, records, _ = run(grid, rounds=3, **TWICE)
    for record in records:
        assert record.selection.clients.size == 8
        assert sorted(record.selection.clients[record.feedback.responded]) == [0, 1, 2, 3]
        assert record.weights.sum() == pytest.approx(1.0)
        assert 4 <= record.seconds < 5
        assert set(record.failures.values()) == {"enough others had replied"}


def test_a_reply_to_another_round_does_not_count_for_over_selection():
    old, *asked = [Message(RecordDict(), node, "train") for node in (1, 1, 2, 3)]
    for number, message in enumerate((old, *asked)):
        message.metadata.__dict__["_message_id"] = str(number)
    chosen = Chosen(None, None, enough=2)
    training = TrainingRound(chosen, model(0, 0), asked, 0, 0, time)
    answers = [Message(RecordDict({"w": model(1, 1)}), reply_to=message) for message in (old, asked[0])]
    assert [reply.failure for reply in training.match(answers)][1:] == ["no reply by the deadline"] * 2
    answers.append(Message(RecordDict({"w": model(1, 1)}), reply_to=asked[1]))
    assert training.match(answers)[2].failure == "enough others had replied"


UNUSABLE = {
    "another shape": lambda: ArrayRecord({"w": Array(np.zeros(3, np.float32))}),
    "NaN": lambda: model(np.nan, 0),
    "other names": lambda: ArrayRecord({"other": Array(np.zeros(2, np.float32))}),
    "no array": lambda: ArrayRecord({"w": Array("float32", (2,), "numpy.ndarray", b"garbage")}),
    "nothing": ArrayRecord,
    "declines": lambda: write_report(Report(available=False)),
}


@pytest.mark.parametrize("make", UNUSABLE.values(), ids=UNUSABLE)
def test_an_instant_reply_that_cannot_be_used_does_not_count_for_over_selection(make):
    """The first four of eight clients send it."""

    def node(message):
        if message.metadata.message_type == STATUS:
            return client(f"c{message.metadata.dst_node_id}")(message)
        content = make()
        return Message(
            content if isinstance(content, RecordDict) else RecordDict({"arrays": content}), reply_to=message
        )

    latencies = {n: 0.1 if n <= 4 else n / 8 for n in range(1, 9)}
    grid = TimedGrid({n: node if n <= 4 else client(f"c{n}") for n in range(1, 9)}, latencies)
    _, (record,), _ = run(grid, **TWICE)
    assert sorted(record.selection.clients[record.feedback.responded]) == [4, 5, 6, 7]


def test_over_selection_waits_for_all_if_no_more_clients_are_available():
    grid = TimedGrid({n: client(f"c{n}") for n in range(1, 5)}, {n: float(n) for n in range(1, 5)})
    _, records, _ = run(
        grid, clients_per_round=4, faults=Faults(over_selection=2.0), deadlines=Deadlines(round=100)
    )
    assert records[0].feedback.responded.all()
    assert 4 <= records[0].seconds < 5


def test_the_deadline_of_a_round_holds_in_simulated_time():
    grid = TimedGrid({n: client(f"c{n}") for n in (1, 2, 3)}, {3: 1e6})
    options = {"deadlines": Deadlines(round=30, shortest=inf), "faults": Faults(silence=False)}
    _, records, _ = run(grid, rounds=2, **options)
    for record in records:
        assert record.feedback.responded.sum() == 2
        assert record.seconds == pytest.approx(30, abs=0.2)
        assert record.failures == {2: "no reply by the deadline"}


def test_declared_sizes_take_precedence_over_reports():
    nodes = {1: client("a", size=10), 2: client("b", size=900), 3: client("c", size=10)}
    _, _, strategy = run(ToyGrid(nodes), overrides=Overrides(sizes={"b": 30.0, "nobody": 5.0}))
    assert strategy.selector.client_sizes.tolist() == [10, 30, 10]


def test_an_implausible_claim_of_size_is_clipped():
    nodes = {n: client(f"c{n}", size=10) for n in range(1, 10)}
    nodes[10] = client("liar", size=10**9)
    _, _, strategy = run(ToyGrid(nodes), clients_per_round=3, min_available_clients=10)
    sizes = dict(zip(strategy.roster.ids(), strategy.selector.client_sizes, strict=True))
    assert sizes["c1"] == 10
    assert sizes["liar"] <= 30


def test_a_client_that_repeats_garbage_is_quarantined_and_tried_again(caplog):
    nodes = {n: client(f"c{n}") for n in range(1, 5)}
    nodes[5] = BAD_NODES["nan"]
    _, records, strategy = run(ToyGrid(nodes), rounds=30, clients_per_round=5, min_available_clients=5)
    bad = strategy.roster.ids().index("garbage")
    quarantined = [bad in record.quarantined for record in records]
    assert quarantined[:3] == [False, False, False]
    assert quarantined[3:13] == [True] * 10
    assert not all(quarantined[3:])
    assert all(
        bad not in record.selection.clients for record, out in zip(records, quarantined, strict=True) if out
    )
    assert {client for record in records for client in record.quarantined} == {bad}
    for round in (4, 13):
        assert f"Quarantined in round {round}: garbage (offences, back in round 14)" in caplog.messages


def test_groups_are_declared_or_reported():
    nodes = {n: client(f"c{n}", group=["north", "south"][n % 2]) for n in range(1, 7)}
    nodes[7] = client("c7")  # says none: a group of its own
    _, _, strategy = run(
        ToyGrid(nodes),
        selector="flics",
        clients_per_round=3,
        min_available_clients=7,
        overrides=Overrides(settings={"groups": {"c1": "north"}}),
    )
    groups = strategy.selector.state_dict()["groups"]
    np.testing.assert_array_equal(groups, [0, 0, 1, 0, 1, 0, 2])


@pytest.mark.parametrize("selector", ["md", "forecast"])
def test_a_client_that_the_operator_removes_is_not_selected_again(selector, tmp_path):
    removed = tmp_path / "revoked.json"
    removed.write_text("[]")
    grid = ToyGrid({n: client(f"c{n}", n, size=10 * n) for n in range(1, 6)})
    options = {
        "selector": selector,
        "clients_per_round": 3,
        "min_available_clients": 5,
        "overrides": Overrides({"c2": 70.0}, removed=removed),
        "checkpoints": Checkpoints(tmp_path / "run", resume=True),
    }
    rounds = []

    def on_round(record):
        rounds.append(set(record.selection.clients.tolist()))
        if record.round == 2:
            removed.write_text('["c2", "c4", "nobody"]')

    strategy = SelectionStrategy(**options, num_rounds=9, on_round=on_round)
    strategy.start(grid, model(0), num_rounds=6)
    assert strategy.roster.removed() == [1, 3]
    np.testing.assert_array_equal(strategy.selector.registered, [True, False, True, False, True])
    assert all(clients <= {0, 2, 4} for clients in rounds[2:])
    status = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == STATUS]
    assert status.count(2) <= 2  # when it came, and once more when it was refused
    grid.sent.clear()
    again = SelectionStrategy(**options, num_rounds=9, on_round=on_round)
    again.start(grid, model(0), num_rounds=9)
    assert all(clients <= {0, 2, 4} for clients in rounds[2:])
    assert len(rounds) == 9
    assert again.roster.ids() == ["c1", "c2", "c3", "c4", "c5"]


def test_a_client_that_is_removed_from_the_start_is_never_registered():
    grid = ToyGrid({1: client("a"), 2: client("b"), 3: client("c")})
    grid.names = {3: "registered"}
    _, records, strategy = run(
        grid, rounds=2, clients_per_round=1, overrides=Overrides(removed=["b", "registered"])
    )
    assert strategy.roster.ids() == ["a"]
    assert [record.num_available for record in records] == [1, 1]


def test_a_node_that_waited_for_a_removed_identity_is_refused():
    grid = TimedGrid({1: client("a"), 2: client("b")})
    removed = set()
    strategy, one_round = strategy_on(grid, clients_per_round=2)
    strategy._parts.attendance.removals.current = lambda: frozenset(removed)
    one_round(1)
    grid.nodes[9] = client("b")  # claims an identity that is online: it waits
    one_round(2)
    removed.add("b")
    for number in (3, 4):
        one_round(number)
        grid.clock.sleep(100)
    assert strategy.roster.ids() == ["a", "b"]
    assert strategy.roster.client_at(9) is None


def resumed(folder, grid, **options):
    """Go on with a run of the clients a, b and c on another grid; return the records of two more rounds."""
    nodes = {n: client(name) for n, name in enumerate("abc", 1)}
    options = {
        "clients_per_round": 2, "min_available_clients": 3, "deadlines": Deadlines(join=180), **options,
    }  # fmt: skip
    run(ToyGrid(nodes), rounds=2, checkpoints=Checkpoints(folder), **{**options, "overrides": Overrides()})
    return run(grid, rounds=4, checkpoints=Checkpoints(folder, resume=True), **options)[1]


@pytest.mark.parametrize("first_node", [1, 101])
def test_a_resumed_run_does_not_wait_for_removed_clients(tmp_path, first_node):
    grid = TimedGrid({first_node + n: client(name) for n, name in enumerate("ab")})
    records = resumed(tmp_path, grid, overrides=Overrides(removed=["c"]))
    assert [record.num_available for record in records] == [2, 2]
    assert grid.clock.monotonic() < 1


def test_a_resumed_run_with_its_quorum_waits_for_the_others_for_a_short_time(tmp_path):
    grid = TimedGrid({1: client("a"), 2: client("b")})
    records = resumed(tmp_path, grid)
    assert [record.num_available for record in records] == [2, 2]
    assert 5 <= grid.clock.monotonic() < 7


def test_a_resumed_run_waits_for_clients_that_come_one_after_another(tmp_path):
    grid = TimedGrid({1: client("a")})
    sleep = grid.clock.sleep

    def and_come_back(seconds, /):
        sleep(seconds)
        grid.nodes |= {
            n: client(name) for n, name in ((2, "b"), (3, "c")) if grid.clock.monotonic() > 4 * n - 4
        }

    grid.clock.sleep = and_come_back
    assert resumed(tmp_path, grid)[0].num_available == 3


def test_a_resumed_run_without_its_quorum_waits_until_the_deadline(tmp_path):
    grid = TimedGrid({1: client("a")})
    with pytest.raises(NotEnoughClientsError):
        resumed(tmp_path, grid, faults=Faults(quorum=2))
    assert grid.clock.monotonic() >= 180
