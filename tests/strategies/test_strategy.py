"""The Flower layer, in process: real messages and strategies, nodes that are functions."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Krum

from strategies import NotEnoughClientsError, SelectionStrategy
from strategies.clients.reports import STATUS
from strategies.flower.exchanges import ExchangeGrid
from strategies.options import Checkpoints, Deadlines, Faults, Overrides, Polling

from ..support.federations import model, play, reply, weights
from ..support.toy_grid import ToyGrid


def trained(message, step, **report):
    """Reply with every parameter moved by ``step``."""
    return reply(message, weights(message) + np.float32(step), **report)


def client(client_id, step=1.0, size=10, **status):
    """A client with a status handler."""

    def node(message):
        if message.metadata.message_type == STATUS:
            return reply(message, client_id=client_id, num_examples=size, **status)
        return trained(message, step, num_examples=size, train_loss=abs(step))

    return node


def measuring(name, size=10, **measured):
    """A client that replies with these metrics."""

    def node(message):
        if message.metadata.message_type == STATUS:
            return client(name, size=size)(message)
        reply = trained(message, 1.0)
        reply.content["metrics"] = MetricRecord(measured)
        return reply

    return node


def evaluating(number, asked, size=1):
    """A client that evaluates: its loss is its number."""

    def node(message):
        if message.metadata.message_type != "evaluate":
            return client(f"c{number}")(message)
        asked.append(number)
        metrics = MetricRecord({"loss": number, "num-examples": size})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return node


def stranger(step=1.0, size=10):
    """A client of a foreign app: no status handler, arrays and num-examples only."""

    def node(message):
        if message.metadata.message_type == STATUS:
            raise ValueError("No query function registered with name 'status'")  # as Flower does
        content = {
            "my-arrays": model(*weights(message) + step),
            "my-metrics": MetricRecord({"num-examples": size}),
        }
        return Message(RecordDict(content), reply_to=message)

    return node


def run(grid, rounds=1, selector="uniform", start=None, **options):
    options = {"clients_per_round": len(grid.nodes), "deadlines": Deadlines(join=0.2), **options}
    return play(grid, selector, rounds, start, **options)[:3]


def silent(message):
    return client("silent")(message) if message.metadata.message_type == STATUS else None


def silent_to_all(message):
    return None


def dead(message):
    """Flower's error reply for a node that died while training: its source is node 1."""
    if message.metadata.message_type == STATUS:
        return client("dead")(message)
    reply = Message(Error(code=5, reason="Node Unavailable"), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = 1
    return reply


def garbage(content):
    def node(message):
        if message.metadata.message_type == STATUS:
            return client("garbage")(message)
        return Message(content(), reply_to=message)

    return node


def test_with_all_clients_selected_the_model_is_the_weighted_mean():
    w, records, _ = run(ToyGrid({1: client("a", 1.0, size=10), 2: client("b", 4.0, size=30)}))
    assert w == pytest.approx([3.25, 3.25])
    assert records[0].train_loss == pytest.approx(3.25)
    assert records[0].failures == {}


@pytest.mark.parametrize("order", [[1, 2, 3, 4, 5, 6], [4, 6, 2, 1, 5, 3]])
def test_arrival_order_and_node_ids_change_nothing(order):
    grid = ToyGrid({n * 1000 + order[0]: client(f"c{n}", n, size=10 * n) for n in order})
    w, records, _ = run(
        grid, rounds=5, selector="adaptive-osmd", clients_per_round=2, min_available_clients=6, seed=3
    )
    chosen = [record.selection.clients.tolist() for record in records]
    reference = ToyGrid({n: client(f"c{n}", n, size=10 * n) for n in range(1, 7)})
    w2, records2, _ = run(
        reference, rounds=5, selector="adaptive-osmd", clients_per_round=2, min_available_clients=6, seed=3
    )
    assert chosen == [record.selection.clients.tolist() for record in records2]
    assert np.array_equal(w, w2)


def test_a_foreign_app_is_served_and_its_sizes_are_learned():
    grid = ToyGrid({1: stranger(1.0, 10), 2: stranger(4.0, 30)})
    w, records, strategy = run(grid, rounds=2)
    assert strategy.roster.ids() == ["node-1", "node-2"]
    assert strategy.selector.client_sizes.tolist() == [10, 30]
    # Both rounds have the weights 1/4 and 3/4: the replies of round 1 have told the sizes.
    assert w == pytest.approx([3.25 + 3.25] * 2)
    assert records[1].failures == {}


def test_without_ask_status_no_query_is_sent():
    grid = ToyGrid({1: stranger(), 2: stranger()})
    run(grid, polling=Polling(ask_status=False))
    assert {message.metadata.message_type for message in grid.sent} == {"train"}


def test_each_message_has_the_round_and_a_seed_of_its_own():
    grid = ToyGrid({n: client(f"c{n}") for n in (1, 2, 3)})
    run(grid, rounds=2)
    trains = [message for message in grid.sent if message.metadata.message_type == "train"]
    configs = [message.content.config_records["config"] for message in trains]
    assert [config["server-round"] for config in configs] == [1, 1, 1, 2, 2, 2]
    assert len({config["seed"] for config in configs}) == 6
    again = ToyGrid({n: client(f"c{n}") for n in (1, 2, 3)})
    run(again, rounds=1)
    assert [message.content.config_records["config"]["seed"] for message in again.sent[3:]] == [
        config["seed"] for config in configs[:3]
    ]


def test_the_callers_config_is_not_written_into():
    grid = ToyGrid({1: client("a"), 2: client("b")})
    strategy = SelectionStrategy("uniform", clients_per_round=2)
    config = ConfigRecord({"lr": 0.1})
    strategy.start(grid, model(0), num_rounds=1, train_config=config)
    assert dict(config) == {"lr": 0.1}
    assert grid.sent[-1].content.config_records["config"]["lr"] == 0.1


BAD_NODES = {
    "crash": garbage(lambda: 1 / 0),
    "dead": dead,
    "silent": silent,
    "empty": garbage(RecordDict),
    "two models": garbage(lambda: RecordDict({"a": model(1, 1), "b": model(1, 1)})),
    "other names": garbage(lambda: RecordDict({"a": ArrayRecord({"v": Array(np.zeros(2))})})),
    "other shape": garbage(lambda: RecordDict({"a": model(1, 1, 1)})),
    "nan": garbage(lambda: RecordDict({"a": model(1, np.nan)})),
    "not an array": garbage(
        lambda: RecordDict({"a": ArrayRecord({"w": Array("float32", (2,), "numpy.ndarray", b"junk")})})
    ),
    "negative size": garbage(lambda: RecordDict({"a": model(1, 1), "m": MetricRecord({"num-examples": -3})})),
    "absurd size": garbage(
        lambda: RecordDict({"a": model(1, 1), "m": MetricRecord({"num-examples": 1e200})})
    ),
    "beyond float32": garbage(lambda: RecordDict({"a": ArrayRecord({"w": Array(np.array([1e300, 0.0]))})})),
}


@pytest.mark.parametrize("kind", BAD_NODES)
def test_a_bad_client_does_not_stop_the_round(kind):
    grid = ToyGrid({1: client("a", 1.0), 2: BAD_NODES[kind], 3: client("z", 3.0)})
    w, records, strategy = run(grid, rounds=2, deadlines=Deadlines(round=0.05), faults=Faults(silence=False))
    assert w == pytest.approx([4.0, 4.0])  # twice the mean of 1 and 3
    bad = strategy.roster.client_at(2)
    assert all(list(record.failures) == [bad] for record in records)
    assert all(record.failures[bad] for record in records)


def test_a_second_reply_to_a_message_is_ignored():
    def twice(message):
        first = client("a", 1.0)(message)
        return [first, trained(message, 100.0)] if message.metadata.message_type != STATUS else first

    w, _, _ = run(ToyGrid({1: twice, 2: client("b", 1.0)}))
    assert w == pytest.approx([1.0, 1.0])


def test_without_any_reply_the_model_stays_and_the_run_goes_on():
    answers = iter([silent, silent, client("a", 1.0), client("a", 1.0)])

    def node(message):
        return client("a")(message) if message.metadata.message_type == STATUS else next(answers)(message)

    w, records, _ = run(
        ToyGrid({1: node, 2: node}),
        rounds=2,
        deadlines=Deadlines(round=0.05),
        polling=Polling(ask_status=False),
    )
    assert w == pytest.approx([1.0, 1.0])
    assert [record.feedback.responded.tolist() for record in records] == [[False, False], [True, True]]


def test_all_clients_leave_and_one_comes_back():
    grid = ToyGrid({1: client("a"), 2: client("b")})
    strategy = SelectionStrategy(
        "uniform",
        clients_per_round=2,
        polling=Polling(ask_status=True),
        num_rounds=3,
        deadlines=Deadlines(absence=0.2),
    )
    arrays = model(0)
    sent = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    strategy.aggregate_train(1, grid.send_and_receive(sent))
    nodes, grid.nodes = grid.nodes, {}
    with pytest.raises(NotEnoughClientsError, match=r"the quorum is 1, and 0 clients are available after"):
        strategy.configure_train(2, arrays, ConfigRecord(), grid)
    grid.nodes = {77: nodes[2]}  # b, through another node
    sent = list(strategy.configure_train(3, arrays, ConfigRecord(), grid))
    assert [message.metadata.dst_node_id for message in sent] == [77]
    assert strategy.roster.ids() == ["a", "b"]


def test_a_claim_does_not_take_the_identity_of_another_client():
    claims = {9: "node-5", 5: None, 7: "x", 1: "c2", 2: "me"}
    grid = ToyGrid({node: client(claim) for node, claim in claims.items()}, names={2: "c2"})
    _, _, strategy = run(grid, rounds=2)
    assert strategy.roster.ids() == ["c2", "node-1", "node-5", "node-9", "x"]
    assert strategy.roster.node_of_id("c2") == 2
    assert strategy.roster.node_of_id("node-5") == 5
    # Not while its owner is away, either.
    grid.nodes = {9: grid.nodes[9], 5: grid.nodes[5], 30: client("c2")}
    list(strategy.configure_train(3, model(0), ConfigRecord(), grid))
    assert strategy.roster.node_of_id("c2") == 2
    assert "node-30" in strategy.roster.ids()


def test_a_registered_name_takes_its_identity_back_from_a_claim():
    grid = ToyGrid({1: client("c2"), 3: client("c3")})
    strategy = SelectionStrategy(
        "uniform", clients_per_round=2, polling=Polling(ask_status=True), num_rounds=9
    )
    list(strategy.configure_train(1, model(0), ConfigRecord(), grid))
    assert strategy.roster.node_of_id("c2") == 1
    grid.nodes[2], grid.names[2] = client(None), "c2"
    for number in (2, 3):
        list(strategy.configure_train(number, model(0), ConfigRecord(), grid))
    assert strategy.roster.node_of_id("c2") == 2
    assert strategy.roster.node_of_id("node-1") == 1


def test_two_nodes_under_one_registered_name_are_two_clients():
    grid = ToyGrid({1: client("a"), 2: client("b"), 3: client("c")}, names={1: "twin", 2: "twin"})
    _, records, strategy = run(grid, rounds=3)
    assert strategy.roster.ids() == ["c", "node-2", "twin"]
    assert all(record.feedback.responded.all() for record in records)
    questions = [message for message in grid.sent if message.metadata.message_type == STATUS]
    assert len(questions) == 3  # no client is asked again in each round


def test_a_server_strategy_that_a_resume_could_not_restore_is_refused(tmp_path):
    class Half(FedAvg):
        def state_dict(self):
            return {}

    options = {"clients_per_round": 1, "server_strategy": Half()}
    SelectionStrategy("uniform", **options)
    with pytest.raises(TypeError, match="Half: must have both state_dict and load_state_dict, or neither"):
        SelectionStrategy("uniform", **options, checkpoints=Checkpoints(tmp_path))


def test_the_callers_settings_may_change_later():
    given = {"alpha": 0.4}
    strategy = SelectionStrategy("osmd", clients_per_round=2, selector_settings=given)
    given["alpha"] = -5.0
    strategy.start(ToyGrid({1: client("a"), 2: client("b")}), model(0), num_rounds=1)
    assert strategy.selector.settings.alpha == 0.4


def test_a_strategy_object_runs_once():
    grid = ToyGrid({1: client("a"), 2: client("b")})
    strategy = SelectionStrategy("uniform", clients_per_round=2, min_available_clients=2)
    strategy.start(grid, model(0, 0), num_rounds=1)
    with pytest.raises(RuntimeError, match="make a new strategy object"):
        strategy.start(grid, model(0, 0), num_rounds=1)


def test_round_1_starts_without_clients_that_never_joined():
    grid = ToyGrid({1: client("a"), 2: client("b"), 3: silent_to_all})
    w, _, strategy = run(grid, clients_per_round=1, min_available_clients=3, deadlines=Deadlines(status=0.05))
    assert strategy.roster.ids() == ["a", "b"]
    assert w == pytest.approx([1.0, 1.0])


def test_with_too_few_clients_the_run_ends_with_a_reason():
    with pytest.raises(NotEnoughClientsError, match=r"1 of 2 clients joined within 0\.2 s .*; 1 node is"):
        run(ToyGrid({1: client("a")}), clients_per_round=2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAvg(fraction_evaluate=0.0),
        lambda: FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.5, server_momentum=0.9),
        lambda: FedAdam(fraction_evaluate=0.0, beta_1=0.9, beta_2=0.99),
    ],
)
def test_with_all_clients_selected_a_server_strategy_steps_as_it_does_alone(make):
    def nodes():
        return {n: client(f"c{n}", float(n), size=10 * n) for n in (1, 2, 3)}

    alone = make().start(ToyGrid(nodes()), model(0, 1), num_rounds=3).arrays["w"].numpy()
    ours, _, _ = run(ToyGrid(nodes()), rounds=3, start=model(0, 1), server_strategy=make())
    assert ours == pytest.approx(alone, rel=1e-5)


def test_federated_evaluation_takes_its_share_of_the_nodes():
    asked = []
    grid = ToyGrid({n: evaluating(float(n), asked) for n in (1, 2, 3, 4)})
    strategy = SelectionStrategy(
        "uniform", clients_per_round=2, server_strategy=FedAvg(fraction_evaluate=0.5)
    )
    result = strategy.start(grid, model(0), num_rounds=2)
    assert len(asked) == 4
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(np.mean(asked[:2]))


def test_one_bad_reply_does_not_spoil_the_evaluation():
    def evaluations(*nodes):
        grid = ToyGrid({n: evaluating(loss, [], size) for n, (loss, size) in enumerate(nodes, 1)})
        strategy = SelectionStrategy("uniform", clients_per_round=2, server_strategy=FedAvg())
        return strategy.start(grid, model(0), num_rounds=1).evaluate_metrics_clientapp

    found = evaluations((1.0, 10), (3.0, 10), (9.0, 0), (float("nan"), 10))
    assert found[1]["loss"] == pytest.approx(2.0)
    assert evaluations((1.0, 0), (2.0, 0)) == {}


def test_client_metrics_are_averaged_as_fedavg_does():
    said = {"c10": (10, 0.5), "c30": (30, 0.9)}
    grid = ToyGrid(
        {
            n: measuring(name, size, **{"num-examples": size, "train-accuracy": accuracy})
            for n, (name, (size, accuracy)) in enumerate(said.items(), 1)
        }
    )
    result = SelectionStrategy("uniform", clients_per_round=2).start(grid, model(0), num_rounds=1)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["train-accuracy"] == pytest.approx((10 * 0.5 + 30 * 0.9) / 40)
    assert metrics["num-clients"] == 2


def test_one_bad_reply_does_not_spoil_the_client_metrics():
    """NaN, a list where others have a number, another name, an implausible size."""
    said = [*({"f1": 0.5},) * 8, {"f1": 1.0}, {"f1": float("nan")}, {"f1": [0.1, 0.2]}, {"f2": 1.0}]
    sizes = [10] * 8 + [10**9] + [10] * 3
    nodes = {
        n: measuring(f"c{n}", size, **{"num-examples": size, **each})
        for n, (size, each) in enumerate(zip(sizes, said, strict=True))
    }
    result = SelectionStrategy("full", clients_per_round=12).start(ToyGrid(nodes), model(0), num_rounds=1)
    metrics = result.train_metrics_clientapp[1]
    assert metrics.keys() == {"f1", "num-clients"}
    assert metrics["num-clients"] == 12
    assert 0.5 < metrics["f1"] < 0.7  # the ninth counts with its clipped size


def test_a_selector_whose_report_no_client_has_says_so_once(caplog):
    nothing = (
        "selector afl learns from train-loss, and no client has reported it: the selector has learned nothing"
    )
    some = "no client has reported it: the selector learns from diversities alone"
    for selector, reported, line in (
        ("afl", {}, nothing),
        ("afl", {"train-loss": 0.5}, ""),
        ("md", {}, ""),
        ("prac-delta", {}, some),
        ("prac-delta", {"gradient-variance": 0.5}, ""),
    ):
        caplog.clear()
        metrics = {"num-examples": 10, **reported}
        grid = ToyGrid({1: measuring("a", **metrics), 2: measuring("b", **metrics)})
        SelectionStrategy(selector, clients_per_round=1, min_available_clients=2).start(
            grid, model(0), num_rounds=3
        )
        warned = [each for each in caplog.messages if "no client has reported" in each]
        assert len(warned) == bool(line)
        assert all(line in each for each in warned)


@pytest.mark.parametrize(
    ("usable", "line"),
    [(3, ""), (2, "1 of 3 rounds was skipped"), (0, "No round changed the model: all 3 were skipped.")],
)
def test_the_end_says_how_many_rounds_were_skipped(usable, line, caplog):
    def node(message):
        good = message.metadata.group_id <= str(usable)
        return trained(message, 1.0 if good else np.nan, num_examples=10)

    strategy = SelectionStrategy("uniform", clients_per_round=1)
    strategy.start(ToyGrid({1: node}), model(0), num_rounds=3)
    found = [each for each in caplog.messages if "skipped" in each and "is skipped" not in each]
    assert len(found) == bool(line)
    assert all(each.startswith(line) for each in found)


@pytest.mark.parametrize(
    ("size", "options", "warnings"),
    [
        ("examples", {}, 1),
        ("num-examples", {}, 0),
        ("num_examples", {}, 0),
        ("examples", {"overrides": Overrides(sizes={"a": 5})}, 0),
        ("examples", {"polling": Polling(ask_status=True)}, 0),
    ],
)
def test_it_is_logged_once_that_no_client_reports_its_size(size, options, warnings, caplog):
    node = measuring(None, **{size: 10})
    strategy = SelectionStrategy("uniform", clients_per_round=2, **options)
    strategy.start(ToyGrid({1: node, 2: node}, names={1: "a", 2: "b"}), model(0), num_rounds=2)
    assert caplog.messages.count("No client reports num-examples: all count equally") == warnings


def test_the_log_says_why_evaluations_are_not_used(caplog):
    def node(message):
        if message.metadata.message_type != "evaluate":
            return stranger()(message)
        if message.metadata.dst_node_id == 3:
            return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=message)
        raise ValueError("no evaluate function\x1b[2J")

    strategy = SelectionStrategy("uniform", clients_per_round=3, server_strategy=FedAdam())
    strategy.start(ToyGrid(dict.fromkeys((1, 2, 3), node)), model(0), num_rounds=1)
    (errors, sizes) = [each for each in caplog.messages if each.startswith("Evaluation of round 1: ")]
    assert errors.startswith("Evaluation of round 1: errors in 2 of 3 replies; the first is error 2: ")
    assert "no evaluate function\\x1b[2J" in errors
    assert sizes == "Evaluation of round 1: no usable num-examples in 1 of 3 replies"


def test_the_default_settings_log_no_warning(caplog):
    strategy = SelectionStrategy("uniform", clients_per_round=2)
    assert strategy.server_strategy.fraction_evaluate == 0.0
    assert caplog.records == []


def test_messages_expire_soon_after_their_deadline():
    grid = ToyGrid({1: client("a"), 2: client("b")})
    run(grid, deadlines=Deadlines(round=50, status=20), server_strategy=FedAvg())
    assert {(m.metadata.message_type, m.metadata.ttl) for m in grid.sent} == {
        (STATUS, 320),
        ("train", 350),
        ("evaluate", 350),
    }
    assert {m.metadata.group_id for m in grid.sent if m.metadata.message_type == "evaluate"} == {"1"}


def test_the_rounds_deadline_holds_whatever_flowers_default(monkeypatch):
    timeouts = []
    original = ExchangeGrid.send_and_receive

    def spy(self, messages, *, timeout=None, **more):
        timeouts.append(timeout)
        return original(self, messages, timeout=timeout, **more)

    monkeypatch.setattr(ExchangeGrid, "send_and_receive", spy)
    for timeout, expected in ((None, 7200), (5, 5)):
        grid = ToyGrid({1: client("a"), 2: client("b")})
        strategy = SelectionStrategy(
            "uniform", clients_per_round=2, deadlines=Deadlines(round=7200), polling=Polling(ask_status=False)
        )
        strategy.start(grid, model(0), num_rounds=1, timeout=timeout)
        assert timeouts[-1] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"selector": "best"}, "selector = 'best': must be one of"),
        ({"clients_per_round": 0}, "clients_per_round = 0: must be >= 1"),
        ({"faults": Faults(quorum=3)}, r"faults.quorum = 3: must be between 1 and 2 \(clients_per_round\)"),
        ({"seed": -1}, "seed = -1: must be >= 0"),
        ({"num_rounds": 0}, "num_rounds = 0: must be >= 1"),
        ({"local_learning_rate": float("inf")}, "local_learning_rate = inf: must be finite and greater"),
        ({"local_learning_rate": "0.5@1/0@3"}, "local_learning_rate = 0.5@1/0@3: must be finite and greater"),
        ({"local_learning_rate": "fast"}, "local_learning_rate = 'fast': must be a number, or "),
        (
            {"selector": "lipschitz-is", "overrides": Overrides(settings={"lipschitz": {"a": -1.0}})},
            r"overrides.settings\['lipschitz'\] holds -1\.0: must be between",
        ),
        ({"variates": "svrg"}, "variates = 'svrg': must be one of fedvarp, fedvarp-mean, scaffold"),
        ({"variates": "scaffold"}, "local_learning_rate = None: must be the clients'"),
        ({"selector_settings": {"alpha": 0.4}}, "alpha"),
        ({"selector": "adaptive-osmd", "selector_settings": {"alpha": 1.5}}, r"alpha = 1\.5"),
        ({"min_available_clients": 1}, r"min_available_clients = 1: must be >= 2 \(clients_per_round\)"),
        (
            {"selector": "osmd", "server_strategy": Krum()},
            r"server_strategy = Krum\(\) with selector = ",
        ),
        ({"clients_per_round": "2"}, "clients_per_round = '2': must be an integer >= 1"),
        ({"seed": 1.5}, r"seed = 1\.5: must be an integer >= 0"),
        ({"min_available_clients": 2.5}, r"min_available_clients = 2\.5: must be an integer >= 2"),
    ],
)
def test_a_wrong_setting_is_refused_at_construction(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        SelectionStrategy(**{"selector": "uniform", "clients_per_round": 2, **options})


def test_waiting_for_replies_ignores_messages_that_were_not_sent():
    inner = ToyGrid({1: client("a")})
    push = inner.push_messages
    inner.push_messages = lambda messages: [push(messages)[0], None]
    replies = ExchangeGrid(inner, 0.01).send_and_receive(
        [Message(RecordDict({"a": model(0)}), 1, "train") for _ in range(2)], timeout=5
    )
    assert len(replies) == 1


class Overloaded(ToyGrid):
    """A grid whose SuperLink cannot take the TRAIN messages of some rounds."""

    def __init__(self, rounds):
        super().__init__({1: client("a"), 2: client("b")})
        self.rounds = rounds
        self.round = 0

    def push_messages(self, messages):
        messages = list(messages)
        self.round += messages[0].metadata.message_type == "train"
        if self.round in self.rounds:
            raise RuntimeError("Failed to push object: the session may have expired")
        return super().push_messages(messages)


def test_messages_that_were_not_sent_cost_only_the_round():
    w, records, _ = run(Overloaded(range(2, 5)), rounds=6)
    assert [bool(record.skipped) for record in records] == [False, True, True, True, False, False]
    assert records[1].failures == dict.fromkeys((0, 1), "the message could not be sent")
    assert w.tolist() == [3, 3]


def test_a_superlink_that_never_accepts_messages_ends_the_run():
    with pytest.raises(RuntimeError, match="the session may have expired"):
        run(Overloaded(range(2, 99)), rounds=9)
