"""The in-process Grid: Flower's strategies and ClientApps on simulated time."""

import time
from math import ceil
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import Array as FlowersArray
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAdam, FedAvg, Krum

from simulation.availability import create
from simulation.availability.trace_file import Recording
from simulation.grid import SUPERLINK, InProcessGrid, LazyArray, SimulatedClock
from simulation.response_times import ResponseTimes, arrivals
from strategies.flower.attendance import NotEnoughClientsError
from strategies.options import Deadlines, Faults, Polling

from ..support.federations import model, play, weights
from ..support.toy_grid import node_of


def counting_app():
    """Return an app that adds its number to every parameter and counts its trainings in its state."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        before = context.state.metric_records.get("done", MetricRecord({"times": 0}))["times"]
        context.state["done"] = MetricRecord({"times": before + 1})
        arrays = model(*weights(message) + context.node_config["number"])
        metrics = MetricRecord({"num-examples": 1, "times": before + 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        metrics = MetricRecord({"num-examples": 1, "loss": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def numbers(count):
    return [{"number": number} for number in range(1, count + 1)]


def ask(*node_ids, ttl=None, arrays=None):
    """One TRAIN message to each node, all with one RecordDict, as FedAvg does."""
    content = RecordDict({"arrays": arrays or model(0, 0), "config": ConfigRecord({"lr": 0.1, "all": [1]})})
    return [Message(content, node_id, "train", ttl=ttl) for node_id in node_ids]


def echo(message):
    return Message(message.content, reply_to=message)


def grid_of(*handlers, **options):
    grid = InProcessGrid(**options)
    return grid, [grid.add_node(handler=handler) for handler in handlers]


def direct_grid(nodes):
    """Return the plainest grid: what Flower's strategies use of one, each message handled at once."""

    def send_and_receive(messages, *, timeout=None):
        return [nodes[message.metadata.dst_node_id](message) for message in messages]

    return SimpleNamespace(get_node_ids=lambda: list(nodes), send_and_receive=send_and_receive)


@pytest.mark.parametrize(
    "make",
    [
        FedAvg,
        FedAdam,
        lambda: Krum(num_malicious_nodes=1),
        lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 1.0, 5),
    ],
)
def test_flowers_strategies_compute_the_same_without_the_grid(make):
    steps = [1, 2, 4, 8, 16]
    ours = make().start(
        InProcessGrid(counting_app(), ({"number": step} for step in steps)), model(0, 1), num_rounds=3
    )
    plain = direct_grid({step: node_of(counting_app(), {"number": step}, {}) for step in steps})
    theirs = make().start(plain, model(0, 1), num_rounds=3)
    # Flower adds the replies in an order that it draws anew each time.
    assert ours.arrays["w"].numpy() == pytest.approx(theirs.arrays["w"].numpy(), rel=1e-5)
    assert ours.train_metrics_clientapp == theirs.train_metrics_clientapp
    assert ours.evaluate_metrics_clientapp[3]["loss"] == pytest.approx(0.5)


def test_a_client_keeps_its_state_under_another_node_id():
    grid = InProcessGrid(counting_app(), numbers(2))
    first, second = grid.get_node_ids()
    for node_id in (first, second, first):
        grid.send_and_receive(ask(node_id))
    back = grid.rename_node(first)
    assert back not in (first, second)
    assert sorted(grid.get_node_ids()) == sorted((second, back))
    times = [reply.content["metrics"]["times"] for reply in grid.send_and_receive(ask(second, back))]
    assert times == [2, 3]
    (reply,) = grid.send_and_receive(ask(first))
    assert reply.error.code == ErrorCode.NODE_UNAVAILABLE


def test_nodes_have_names_and_ids_of_their_own():
    grid = InProcessGrid(counting_app())
    given = grid.add_node({"number": 1}, node_id=2, name="c1")
    drawn = grid.add_node({"number": 2})
    assert given == 2 != drawn != SUPERLINK
    assert [(node.node_id, node.name) for node in grid.get_nodes()] == [(2, "c1"), (drawn, "")]
    for taken in (2, SUPERLINK):
        with pytest.raises(ValueError, match=f"node_id = {taken}: must not be taken"):
            grid.add_node({}, node_id=taken)
    with pytest.raises(ValueError, match="app = None"):
        InProcessGrid().add_node({})


@pytest.mark.parametrize("frozen", [False, True])
def test_a_client_cannot_change_the_input_of_another_client_or_the_server(frozen):
    def vandal(message):
        message.content["config"]["all"].append(2)
        message.content["config"]["lr"] = 9.0
        message.content["more"] = MetricRecord({"a": 1})
        w = message.content["arrays"]["w"].numpy()
        message.content["arrays"]["w"] = Array(w * 0)
        w += 1
        return echo(message)

    grid, nodes = grid_of(vandal, echo, frozen=frozen)
    messages = ask(*nodes, arrays=model(3, 4))
    replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(messages)}
    assert set(replies) == set(nodes)
    assert replies[nodes[0]].has_error() == frozen
    for content in (replies[nodes[1]].content, messages[0].content):
        assert content["arrays"]["w"].numpy().tolist() == [3, 4]
        assert dict(content["config"]) == {"lr": 0.1, "all": [1]}
        assert set(content) == {"arrays", "config"}


def test_the_model_is_decoded_once_for_all_clients_and_both_exchanges_of_a_round(monkeypatch):
    decoded, encoded = [], []
    numpy, save = FlowersArray.numpy, FlowersArray.from_numpy_ndarray
    arrays = model(1, 2)

    def write(cls, values):
        encoded.append(values)
        return save(values)

    monkeypatch.setattr(FlowersArray, "numpy", lambda self: decoded.append(self) or numpy(self))
    monkeypatch.setattr(FlowersArray, "from_numpy_ndarray", classmethod(write))

    def client(message):
        record = ArrayRecord()
        record["w"] = LazyArray(message.content["arrays"]["w"].numpy() + 1)
        return Message(RecordDict({"arrays": record}), reply_to=message)

    grid, nodes = grid_of(*[client] * 5)
    for _ in range(2):
        replies = grid.send_and_receive(ask(*nodes, arrays=arrays))
        assert [reply.content["arrays"]["w"].numpy().tolist() for reply in replies] == [[2, 3]] * 5
    assert len(decoded) == 1
    assert encoded == []


def test_a_lazy_array_has_the_bytes_of_flowers_array():
    values = np.arange(6, dtype=np.int16).reshape(2, 3)
    lazy, flowers = LazyArray(values), Array(values)
    values += 1
    assert (lazy.dtype, lazy.shape, lazy.stype) == (flowers.dtype, flowers.shape, flowers.stype)
    assert lazy.data == flowers.data
    assert lazy.object_id == flowers.object_id
    assert np.array_equal(lazy.numpy(), flowers.numpy())
    assert not lazy.numpy().flags.writeable
    copied = ArrayRecord({"w": lazy})["w"]
    assert type(copied) is FlowersArray
    assert np.array_equal(copied.numpy(), flowers.numpy())
    lazy.data = Array(np.zeros(1)).data
    assert lazy.numpy().tolist() == [0]
    mine = LazyArray(np.zeros(2), writable=True).numpy()
    mine += 1


def test_exceptions_become_error_replies_with_flowers_codes():
    def crash(message):
        raise ValueError("no data")

    def leave(message):
        raise SystemExit(3)

    grid, nodes = grid_of(crash, leave, echo)
    replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(ask(*nodes))}
    assert replies[nodes[0]].error == Error(
        ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "<class 'ValueError'>:<'no data'>"
    )
    assert replies[nodes[1]].error.code == ErrorCode.CLIENT_APP_CRASHED
    assert replies[nodes[2]].has_content()
    app = InProcessGrid(counting_app(), numbers(1))
    (reply,) = app.send_and_receive([Message(RecordDict(), app.get_node_ids()[0], "query.what")])
    assert "No query function registered with name 'what'" in reply.error.reason


@pytest.mark.parametrize("wrong", [None, {"loss": 1.0}, RecordDict()])
def test_a_reply_that_is_not_a_message_becomes_an_error_reply(wrong):
    app = InProcessGrid(lambda message, context: wrong, [{}])
    handler, (node,) = grid_of(lambda message: [echo(message), wrong])
    for grid, asked in ((app, app.get_node_ids()[0]), (handler, node)):
        (reply,) = grid.send_and_receive(ask(asked))
        assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        assert f"the client returned {type(wrong).__name__}: must be a Message" in reply.error.reason


def test_the_traceback_of_a_failed_app_is_logged(caplog):
    def broken(message, context):
        raise ValueError("no data")

    grid = InProcessGrid(broken, [{}])
    with caplog.at_level("ERROR", "flwr"):
        grid.send_and_receive(ask(*grid.get_node_ids()))
    assert "in broken" in caplog.text


def test_only_simulated_time_passes():
    grid, nodes = grid_of(echo, echo, echo, latency=lambda message: 100.0 * message.metadata.dst_node_id)
    began = time.monotonic()
    messages = ask(*reversed(nodes))
    replies = grid.send_and_receive(messages, timeout=350)
    assert [reply.metadata.src_node_id for reply in replies] == nodes[:2]  # in the order of arrival
    assert grid.clock.monotonic() == 350
    assert time.monotonic() - began < 5
    grid.clock.sleep(50)
    (late,) = grid.pull_messages([messages[0].metadata.message_id])
    assert late.metadata.src_node_id == nodes[2]
    assert grid.pull_messages([messages[0].metadata.message_id]) == []


def test_without_a_timeout_a_missing_reply_does_not_block():
    grid, nodes = grid_of(lambda message: None, echo, echo, latency=3.0)
    grid.latency = lambda message: np.inf if message.metadata.dst_node_id == nodes[2] else 3.0
    assert [reply.metadata.src_node_id for reply in grid.send_and_receive(ask(*nodes))] == [nodes[1]]
    assert grid.clock.monotonic() == 3


def test_a_node_that_leaves_before_its_reply_is_reported_unavailable_later():
    handled = []
    grid, nodes = grid_of(lambda message: handled.append(message) or echo(message), latency=10.0)
    messages = ask(*nodes)
    grid.push_messages(messages)
    grid.clock.sleep(4)
    grid.remove_node(nodes[0])
    ids = [message.metadata.message_id for message in messages]
    grid.clock.sleep(49)
    assert grid.pull_messages(ids) == []
    grid.clock.sleep(1)
    (reply,) = grid.pull_messages(ids)
    assert reply.error.code == ErrorCode.NODE_UNAVAILABLE
    assert reply.metadata.src_node_id == SUPERLINK
    assert reply.metadata.reply_to_message_id == ids[0]
    assert handled == []


@pytest.mark.parametrize(("ttl", "expired"), [(99.0, True), (101.0, False)])
def test_a_message_expires_by_simulated_time(ttl, expired):
    handled = []
    grid, nodes = grid_of(lambda message: handled.append(message) or echo(message), latency=100.0)
    (message_id,) = grid.push_messages(ask(*nodes, ttl=ttl))
    grid.clock.sleep(100)
    (reply,) = grid.pull_messages([message_id])
    assert reply.metadata.reply_to_message_id == message_id
    assert reply.has_error() == expired
    assert not expired or reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert len(handled) == 1 - expired


def test_a_message_is_handled_even_if_its_reply_expires():
    handled = []
    grid, nodes = grid_of(lambda message: handled.append(message) or echo(message), latency=1.0)
    (message_id,) = grid.push_messages(ask(*nodes, ttl=5.0))
    grid.clock.sleep(10)
    grid.push_messages([])
    assert len(handled) == 1
    (reply,) = grid.pull_messages([message_id])
    assert reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE


def test_a_plain_function_may_send_several_replies():
    before = []

    def twice(message):
        before.append(message)
        return [echo(message), echo(message), echo(before[0])]

    grid, nodes = grid_of(twice)
    grid.send_and_receive(ask(*nodes))
    answered = [reply.metadata.reply_to_message_id for reply in grid.send_and_receive(ask(*nodes))]
    assert answered == [before[1].metadata.message_id] * 2 + [before[0].metadata.message_id]


def test_a_negative_sleep_changes_nothing():
    clock = SimulatedClock()
    clock.sleep(2)
    clock.sleep(-1)
    assert clock.monotonic() == 2


# Availability and response times.


def table(*rounds):
    """Return an availability with these clients in each round."""
    rows = [(client, number, number + 1) for number, available in enumerate(rounds) for client in available]
    recording = Recording(rows)
    return create("trace", recording.num_clients, recording=recording, assign="same")


def named(availability, **options):
    """A grid whose nodes are registered in the order of the availability's clients."""
    grid = InProcessGrid(counting_app(), availability=availability, **options)
    for client in range(availability.num_clients):
        grid.add_node({"number": client}, name=f"client-{client:02d}")
    return grid


def run_selection(grid, rounds, selector="uniform", **options):
    """Run a SelectionStrategy; return its records of the rounds."""
    options = {"clients_per_round": 4, "seed": 5, "polling": Polling(ask_status=False), **options}
    return play(grid, selector, rounds, model(0, 1), **options).records


def test_the_online_nodes_depend_on_the_round():
    grid = InProcessGrid(
        counting_app(), numbers(3), availability=table([0, 1, 2], [1], [0, 2]), round_length=100
    )
    first, second, third = grid.get_node_ids()
    assert grid.get_node_ids() == [node.node_id for node in grid.get_nodes()] == [first, second, third]
    grid.clock.sleep(99)
    assert (grid.availability_round, len(grid.get_node_ids())) == (1, 3)
    grid.clock.sleep(1)
    assert (grid.availability_round, grid.get_node_ids()) == (2, [second])
    back = grid.rename_node(third)
    grid.clock.sleep(100)
    assert grid.get_node_ids() == [first, back]
    assert grid.client_of(back) == 2
    grid.remove_node(first)
    assert grid.get_node_ids() == [back]
    with pytest.raises(ValueError, match="availability of 3 clients: must have at least as many as the grid"):
        grid.add_node({})
    everybody = InProcessGrid(counting_app(), numbers(2), availability=create("always", 2))
    assert len(everybody.get_node_ids()) == 2


@pytest.mark.parametrize(
    ("latency", "rounds"), [(0.0, [2, 3]), (60.0, [2, 3]), (70.0, [2, 3]), (150.0, [3, 6])]
)
def test_a_round_of_training_ends_its_round_of_the_availability(latency, rounds):
    grid = InProcessGrid(counting_app(), numbers(2), availability=create("always", 2), latency=latency)
    for expected in rounds:
        nodes = grid.get_node_ids()
        assert len(grid.send_and_receive(ask(*nodes))) == 2
        grid.get_node_ids()
        grid.get_nodes()  # a further look does not advance the clock
        assert grid.availability_round == expected
    # Only TRAIN messages end a round.
    grid.latency = lambda message: 0.0
    grid.send_and_receive([Message(RecordDict(), grid.get_node_ids()[0], "evaluate")])
    grid.get_node_ids()
    assert grid.availability_round == rounds[-1]


def test_rounds_stay_exact_and_a_resumed_run_begins_in_its_next_round():
    grid = InProcessGrid(
        lambda message, context: echo(message), [{}], availability=create("always", 1), round_length=0.1
    )
    for number in range(1, 2000):
        assert grid.get_node_ids()
        assert grid.availability_round == number
        grid.send_and_receive(ask(*grid.get_node_ids()))
    resumed = InProcessGrid(counting_app(), numbers(2), availability=table([0], [1], [0, 1]), first_round=2)
    assert [resumed.client_of(node) for node in resumed.get_node_ids()] == [1]
    for wrong in (0.0, -1.0):
        with pytest.raises(ValueError, match=f"round_length = {wrong}: must be > 0"):
            InProcessGrid(round_length=wrong)
    for wrong in (-1, np.nan):
        with pytest.raises(ValueError, match=f"latency = {wrong}: must be >= 0"):
            InProcessGrid(latency=wrong)


def test_an_unavailable_client_is_not_reachable_and_keeps_its_state():
    grid = InProcessGrid(counting_app(), numbers(2), availability=table([0, 1], [0], [0, 1]))
    nodes = grid.get_node_ids()
    for times, codes in ((1, [None, None]), (2, [None, ErrorCode.NODE_UNAVAILABLE]), (3, [None, None])):
        grid.get_node_ids()
        asked = ask(*nodes)
        replies = {reply.metadata.reply_to_message_id: reply for reply in grid.send_and_receive(asked)}
        first, second = (replies[message.metadata.message_id] for message in asked)
        assert [reply.error.code if reply.has_error() else None for reply in (first, second)] == codes
        assert first.content["metrics"]["times"] == times
    assert second.content["metrics"]["times"] == 2


def test_flowers_strategy_trains_the_available_clients():
    trained = []

    class Watched(InProcessGrid):
        def push_messages(self, messages):
            messages = list(messages)
            if messages:
                trained.append({self.client_of(message.metadata.dst_node_id) for message in messages})
            return super().push_messages(messages)

    grid = Watched(counting_app(), numbers(4), availability=table([0, 1, 2], [2, 3], [0, 3], [1, 2, 3]))
    FedAvg(fraction_evaluate=0.0).start(grid, model(0), num_rounds=4)
    assert trained == [{0, 1, 2}, {2, 3}, {0, 3}, {1, 2, 3}]


def test_a_strategy_waits_for_its_quorum():
    availability = table([0, 1, 2], [], [1], [1, 2])
    records = run_selection(named(availability), 3, clients_per_round=2, faults=Faults(quorum=2))
    # The strategy waits during rounds 2 and 3; after round 4 the trace repeats.
    assert [record.selection.clients.tolist() for record in records[1:2]] == [[1, 2]]
    assert records[2].num_available == 3
    with pytest.raises(NotEnoughClientsError, match="the quorum is 1, and 0 clients are available"):
        run_selection(named(table([0, 1], *[[]] * 20, [0])), 3, clients_per_round=1, min_available_clients=2)


def test_training_takes_the_response_times_and_dropouts_never_reply():
    times = ResponseTimes(12, seed=3, median=20, dropout=0.25, tail=1.5)
    grid = named(create("always", 12), latency=times)
    records = run_selection(
        grid, 15, clients_per_round=6, deadlines=Deadlines(round=45.0), faults=Faults(over_selection=1.5)
    )
    late = 0
    for record in records:
        chosen = record.selection.clients
        answered, waited = arrivals(times.seconds(record.round, chosen), 45.0, ceil(chosen.size / 1.5))
        assert record.seconds == pytest.approx(waited, abs=0.2)
        # The strategy polls every 0.1 s: a reply just after the last one may arrive with it.
        seen = record.feedback.responded
        assert (seen | ~answered).all()
        assert (times.seconds(record.round, chosen[seen]) <= waited + 0.2).all()
        late += int((~answered).sum())
    assert late > 30
    silent = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    with pytest.raises(ValueError, match="server-round: must be in a config"):
        grid.push_messages(silent)


def test_a_missing_reply_leaves_only_the_error():
    grid, nodes = grid_of(echo, latency=np.inf)
    (message_id,) = grid.push_messages(ask(*nodes, ttl=5.0))
    assert not grid._in_flight
    grid.clock.sleep(10)
    grid.push_messages([])
    assert not grid._expires
    (reply,) = grid.pull_messages([message_id])
    assert reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert grid.pull_messages([message_id]) == []
    assert not grid._expired


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((3, 4), np.float32),
        np.float64(1.5),
        np.zeros(0),
        np.zeros((2, 3)).T,
        np.arange(10, dtype=">i2")[::2],
        np.zeros((1,) * 20, bool),
    ],
)
def test_the_bytes_of_an_array_are_known_without_serialising_it(values):
    array = LazyArray(np.asarray(values))
    assert array.num_bytes == len(array.data)
    array.data = b"123"
    assert array.num_bytes == 3
