"""Apps that were written for Flower alone: what the server asks them, and `ReportingClientApp`."""

from collections import Counter

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from strategies import (
    AdaptiveOSMD,
    Flics,
    MissingHandlerError,
    Overrides,
    Polling,
    PowerOfChoice,
    Report,
    ReportingClientApp,
    SelectionStrategy,
)

from ...support.federations import model, weights
from ...support.toy_grid import ToyGrid, node_of

M = 6


def quickstart(app):
    """Register the functions of Flower's quickstart with PyTorch: their names of metrics, and no query."""

    @app.train()
    def train(message, context):
        partition = int(context.node_config["partition-id"])
        metrics = MetricRecord({"train_loss": 1.0 + partition, "num-examples": 10 * (1 + partition)})
        arrays = model(*weights(message) + 1)
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        loss = float(context.node_config["partition-id"])
        metrics = MetricRecord({"eval_loss": loss, "eval_acc": 0.5, "num-examples": 3})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def grid_of(app, **node_config):
    return ToyGrid({100 + m: node_of(app, {"partition-id": m, **node_config}, {}) for m in range(M)})


def play(grid, strategy, rounds=2):
    """Run some rounds, and return how many messages of each type were sent."""
    strategy.start(grid, model(0, 0), num_rounds=rounds)
    return Counter(message.metadata.message_type for message in grid.sent)


OPTIONS = {"clients_per_round": 2, "min_available_clients": M}


def test_an_app_of_flower_gets_no_message_that_it_cannot_answer():
    strategy = AdaptiveOSMD(**OPTIONS)
    assert play(grid_of(quickstart(ClientApp())), strategy, 4).keys() == {"train"}
    sizes = strategy.roster.sizes()
    assert np.nanmax(sizes) >= 10  # learned from the replies


def test_power_of_choice_evaluates_an_app_of_flower():
    strategy = PowerOfChoice(**OPTIONS, num_candidates=M)
    assert play(grid_of(quickstart(ClientApp())), strategy).keys() == {"train", "evaluate"}


def test_the_train_loss_of_an_app_of_flower_is_known():
    records = []
    strategy = PowerOfChoice(**OPTIONS, variant="rpow-d", on_round=records.append)
    play(grid_of(quickstart(ClientApp())), strategy)
    assert all(np.isfinite(record.train_loss) for record in records)


@pytest.mark.parametrize("strategy", ["declared", "groups"])
def test_one_client_is_asked_if_its_status_matters(strategy, caplog):
    made = (
        AdaptiveOSMD(**OPTIONS, overrides=Overrides(sizes={"hospital-1": 5000}))
        if strategy == "declared"
        else Flics(**OPTIONS)
    )
    sent = play(grid_of(quickstart(ClientApp())), made, 3)
    assert sent["query.status"] == 1
    (line,) = {line for line in caplog.messages if "no other client" in line}
    assert "ReportingClientApp" in line
    assert len(made.roster) == M


def test_cpow_d_asks_one_client_for_its_loss_and_then_evaluates():
    strategy = PowerOfChoice(**OPTIONS, variant="cpow-d", num_candidates=M)
    sent = play(grid_of(quickstart(ClientApp())), strategy, 3)
    assert sent["query.loss"] == 1
    assert sent["evaluate"] == 3 * M


def test_three_clients_without_the_handler_are_believed():
    """`optimal` cannot go on without norms, and a single client may lie."""
    grid = grid_of(quickstart(ClientApp()))
    with pytest.raises(MissingHandlerError, match=r"no query\.norm handler"):
        play(grid, SelectionStrategy("optimal", **OPTIONS, polling=Polling(ask_status=False)))
    assert [message.metadata.message_type for message in grid.sent] == ["query.norm"] * 3


def test_the_first_liar_does_not_speak_for_the_others():
    grid = grid_of(quickstart(ReportingClientApp()))
    grid.nodes[100] = node_of(quickstart(ClientApp()), {"partition-id": 0}, {})
    strategy = SelectionStrategy("optimal", **OPTIONS, polling=Polling(ask_status=False))
    assert play(grid, strategy, 1)["query.norm"] == M


def test_the_first_replies_tell_who_the_clients_are():
    grid = grid_of(quickstart(ReportingClientApp()))
    strategy = AdaptiveOSMD(**OPTIONS)
    sent = play(grid, strategy, 1)
    assert sent["query.status"] == 0
    named = [name for name in strategy.roster.ids() if name.startswith("partition-")]
    assert 1 <= len(named) <= 2
    again = AdaptiveOSMD(**OPTIONS)
    sent = play(grid_of(quickstart(ReportingClientApp())), again, 2)
    assert again.roster.ids() == [f"partition-{m}" for m in range(M)]  # the others were asked in round 2
    assert sent["query.status"] == M - len(named)


def test_a_claim_in_a_reply_does_not_take_the_identity_of_another_client():
    app = quickstart(ReportingClientApp(report=lambda context: Report(client_id="twin")))
    strategy = SelectionStrategy("full", clients_per_round=M)
    play(grid_of(app), strategy, 3)
    assert sorted(strategy.roster.ids()) == [*(f"node-{100 + m}" for m in range(1, M)), "twin"]


def test_with_the_status_known_before_round_1_the_clients_are_asked_for_losses():
    strategy = PowerOfChoice(**OPTIONS, num_candidates=M, polling=Polling(ask_status=True))
    sent = play(grid_of(quickstart(ReportingClientApp())), strategy, 1)
    assert sent == {"query.status": M, "query.loss": M, "train": 2}
    assert strategy.roster.ids() == [f"partition-{m}" for m in range(M)]


def ask(app, kind):
    """Return the answer of an app with 3 as its partition."""
    grid = ToyGrid({1: node_of(app, {"partition-id": 3}, {})})
    arrays = model(0, 0, 0, 0)
    (reply,) = grid.send_and_receive(
        [Message(RecordDict({"arrays": arrays, "config": ConfigRecord()}), 1, kind)], timeout=5
    )
    assert reply.metadata.message_type == kind
    return reply.content


def test_the_answers_of_a_reporting_app():
    app = quickstart(ReportingClientApp())
    assert ask(app, "query.status")["identity"] == {"client-id": "partition-3"}
    assert ask(app, "query.loss")["metrics"]["loss"] == 3.0
    norm = ask(app, "query.norm")
    assert norm["metrics"] == {"update-norm": 2.0, "num-examples": 40.0, "available": 1}
    assert not norm.array_records
    trained = ask(app, "train")
    assert trained["identity"] == {"client-id": "partition-3"}
    assert trained["metrics"] == {"train_loss": 4.0, "num-examples": 40}
    assert "identity" not in ask(app, "evaluate")


def test_the_size_is_that_of_the_last_training():
    app = quickstart(ReportingClientApp())
    node = node_of(app, {"partition-id": 3}, {})
    grid = ToyGrid({1: node})
    arrays = model(0, 0, 0, 0)
    for kind in ("train", "query.status"):
        message = Message(RecordDict({"arrays": arrays, "config": ConfigRecord()}), 1, kind)
        (reply,) = grid.send_and_receive([message], timeout=5)
    assert reply.content["metrics"]["num-examples"] == 40


def test_a_handler_of_the_app_takes_precedence():
    app = quickstart(ReportingClientApp())

    @app.query("loss")
    def loss(message, context):
        return Message(RecordDict({"m": MetricRecord({"loss": 7.0})}), reply_to=message)

    assert ask(app, "query.loss")["m"] == {"loss": 7.0}


def test_a_client_that_is_not_available_does_not_train():
    app = ReportingClientApp(report=lambda context: Report(client_id="phone", available=False))
    for kind in ("train", "query.loss", "query.status"):
        assert ask(app, kind)["metrics"] == {"available": 0}


def test_an_unclear_loss_is_named():
    app = ClientApp()

    @app.evaluate()
    def evaluate(message, context):
        metrics = MetricRecord({"loss_a": 1.0, "loss_b": 2.0})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    with pytest.raises(MissingHandlerError, match=r"returns loss_a, loss_b, but not 'loss' \(Polling"):
        play(grid_of(app), PowerOfChoice(**OPTIONS, num_candidates=M))


def test_of_a_long_error_whole_words_at_its_end_are_shown():
    def failing(message):
        text = "Traceback " + "lorem " * 20_000 + "<class 'ValueError'>"
        return Message(Error(2, text), reply_to=message)

    records = []
    strategy = SelectionStrategy("uniform", clients_per_round=1, on_round=records.append)
    strategy.start(ToyGrid({1: failing}), model(0, 0), num_rounds=1)
    (told,) = records[0].failures.values()
    assert len(told) <= 300
    assert told.startswith("error 2: … lorem lorem ")
    assert told.endswith("lorem <class 'ValueError'>")
