"""A Flower app whose clients do not train; the benchmarks of rounds, of messages and of large models copy it.

The rounds come in turns N = 1, 2, and so on. In each, the ServerApp waits for the file ``turn-N.json``, which
says how many rounds the turn has, whether each of them first polls all clients, and whether it is the last
turn. The seconds of each round go to ``done-N.json``, with the sum of the clients' metric ``cpu``.
"""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

client = ClientApp()
server = ServerApp()

NUM_PARAMETERS = 1000
LIMIT = 300.0  # seconds that the server waits for replies
LOOK = 0.02  # seconds between checks for the file of the next turn


@client.query("loss")
def loss(message: Message, context: Context) -> Message:
    """Report a made-up loss."""
    return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)


@client.train()
def train(message: Message, context: Context) -> Message:
    """Send the model back unchanged."""
    content = RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the turns, with a first model of `NUM_PARAMETERS` zeros."""
    run_turns(grid, context, ArrayRecord([np.zeros(NUM_PARAMETERS, np.float32)]))


def run_turns(grid: Grid, context: Context, arrays: ArrayRecord) -> None:
    """Run the turns that the module's docstring describes, until a turn is the last.

    A round makes the same calls as a round in `Strategy.start` of Flower. `arrays` is the first model.
    """
    folder = Path(str(context.run_config["folder"]))
    num_nodes, per_round = int(context.run_config["nodes"]), int(context.run_config["per-round"])
    strategy: Strategy
    if context.run_config["stock"]:
        strategy = FedAvg(
            fraction_train=per_round / num_nodes,
            fraction_evaluate=0.0,
            min_train_nodes=per_round,
            min_available_nodes=num_nodes,
        )
    else:
        from strategies import Polling, SelectionStrategy
        from strategies.flower.exchanges import ExchangeGrid

        selection = SelectionStrategy(
            "uniform",
            clients_per_round=per_round,
            selector_settings={"replacement": False},  # exactly K clients, as FedAvg selects
            min_available_clients=num_nodes,
            polling=Polling(ask_status=False),
        )
        strategy, grid = selection, ExchangeGrid(grid, selection.settings.polling.interval)
    number = turn = 0
    while True:
        turn += 1
        file = folder / f"turn-{turn}.json"
        while not file.exists():
            time.sleep(LOOK)
        what = json.loads(file.read_text())
        seconds, cpu = [], 0.0
        for _ in range(what["rounds"]):
            number += 1
            began = time.perf_counter()
            if what["poll"]:
                _ask_all(grid)
            arrays, spent = _train(strategy, grid, number, arrays, per_round)
            seconds.append(time.perf_counter() - began)
            cpu += spent
        done = folder / f"done-{turn}.json"
        done.with_suffix(".new").write_text(json.dumps({"seconds": seconds, "cpu": cpu}))
        done.with_suffix(".new").rename(done)
        if what["last"]:
            return


def _ask_all(grid: Grid) -> None:
    questions = [Message(RecordDict(), node, "query.loss") for node in grid.get_node_ids()]
    _check(list(grid.send_and_receive(questions, timeout=LIMIT)), len(questions))


def _train(
    strategy: Strategy, grid: Grid, number: int, arrays: ArrayRecord, per_round: int
) -> tuple[ArrayRecord, float]:
    messages = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
    replies = list(grid.send_and_receive(messages, timeout=LIMIT))
    _check(replies, per_round)
    cpu = sum(float(str(reply.content["metrics"].get("cpu", 0.0))) for reply in replies)
    aggregated, _ = strategy.aggregate_train(number, replies)
    if aggregated is None:
        raise RuntimeError(f"round {number} has no aggregate")
    return aggregated, cpu


def _check(replies: list[Message], wanted: int) -> None:
    errors = [reply.error for reply in replies if reply.has_error()]
    if len(replies) != wanted or errors:
        raise RuntimeError(f"{wanted} replies wanted, got {len(replies)}, with these errors: {errors}")
