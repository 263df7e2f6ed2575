"""What the log says about a round, and what it leaves out."""

import logging

from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam

from strategies import SelectionStrategy

from ..support.federations import model, weights
from ..support.toy_grid import ToyGrid, node_of


def app_of(name_of_loss):
    app = ClientApp()

    @app.train()
    def train(message, context):
        metrics = MetricRecord({name_of_loss: 2.3456789, "num-examples": 10})
        arrays = model(*weights(message) + 1)
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        metrics = MetricRecord({"eval_loss": 1.5, "num-examples": 3, "per-class": [0.5, 1 / 3]})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def lines_of(caplog, name_of_loss="train_loss"):
    """Play two rounds, and return the lines of the log without their indentation."""
    grid = ToyGrid({100 + m: node_of(app_of(name_of_loss), {}, {}) for m in range(4)})
    strategy = SelectionStrategy(
        "uniform",
        clients_per_round=2,
        min_available_clients=4,
        server_strategy=FedAdam(fraction_evaluate=1.0),
    )
    with caplog.at_level(logging.INFO, logger="flwr"):
        strategy.start(
            grid,
            model(0, 0),
            num_rounds=2,
            evaluate_fn=lambda round, arrays: MetricRecord({"loss": 0.25 * round}),
        )
    return [line.strip("\t└─> ") for line in dict.fromkeys(caplog.messages)]


def test_each_line_of_metrics_says_whose_they_are(caplog):
    lines = lines_of(caplog)
    assert "clients, training: train_loss 2.346, num-clients 2" in lines
    assert "clients, evaluation: eval_loss 1.5, per-class [0.5, 0.3333]" in lines
    assert "server, evaluation: loss 0.5" in lines


def test_the_end_names_the_newest_metrics_only(caplog):
    lines = lines_of(caplog)
    assert lines[lines.index("Finished after round 2 of 2") + 1 :] == [
        "clients, training, round 2: train_loss 2.346, num-clients 2",
        "clients, evaluation, round 2: eval_loss 1.5, per-class [0.5, 0.3333]",
        "server, evaluation, round 2: loss 0.5",
    ]


def test_the_counts_of_the_server_strategy_are_left_out(caplog):
    assert not [line for line in lines_of(caplog) if "Sampled" in line or "Received" in line]
    with caplog.at_level(logging.INFO, logger="flwr"):
        logging.getLogger("flwr").info("configure_train: Sampled 1 nodes (out of 1)")
    assert "configure_train: Sampled 1 nodes (out of 1)" in caplog.messages  # other strategies keep theirs


def test_a_loss_with_the_name_of_cohort_is_listed_once(caplog):
    assert "clients, training: train-loss 2.346, num-clients 2" in lines_of(caplog, "train-loss")
