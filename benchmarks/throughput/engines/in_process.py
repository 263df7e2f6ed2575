"""The strategy of this project with a NumPy ClientApp on the in-process Grid, one client after another."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from benchmarks.throughput.workloads import HORIZON, Parameters, Workload
from simulation.grid import InProcessGrid, LazyArray
from strategies import SelectionStrategy
from strategies.clients.reports import Report
from strategies.flower.messages import write_report
from strategies.options import Polling
from strategies.rounds.record import RoundRecord
from tasks.base import batches
from tasks.federated_data import Dataset, FederatedData

from .gate import ENDLESS, Gate


def train(model: Parameters, data: Dataset, workload: Workload, seed: int) -> float:
    """Train a model in place for one client. Return the mean of the batches' losses, each before its step."""
    losses = []
    for batch in batches(len(data), workload.batch_size, workload.steps, seed):
        values = [data.inputs[batch]]  # the inputs, the output of each layer, and at the end the logits
        for weight, bias in zip(model[::2], model[1::2], strict=True):
            below = values[-1] if len(values) == 1 else np.maximum(values[-1], 0, out=values[-1])
            values.append(below @ weight + bias)
        error, labels, rows = values.pop(), data.labels[batch], np.arange(len(batch))
        error -= error.max(axis=1, keepdims=True)
        own = error[rows, labels]
        np.exp(error, out=error)
        totals = error.sum(axis=1)
        losses.append(float(np.mean(np.log(totals) - own)))
        error /= totals[:, None]
        error[rows, labels] -= 1
        error *= np.float32(workload.learning_rate / len(batch))
        for layer in reversed(range(0, len(model), 2)):
            below = values.pop()
            back = (error @ model[layer].T) * (below > 0) if layer else error
            model[layer] -= below.T @ error
            model[layer + 1] -= error.sum(axis=0)
            error = back
    return float(np.mean(losses))


def client_app(workload: Workload, data: FederatedData) -> ClientApp:
    """Return the app of every client."""
    app = ClientApp()

    def report(context: Context) -> Report:
        m = int(context.node_config["partition-id"])
        return Report(client_id=f"client-{m:05d}", num_examples=len(data.client(m)))

    @app.query("status")
    def status(message: Message, context: Context) -> Message:
        return Message(write_report(report(context)), reply_to=message)

    @app.train()
    def update(message: Message, context: Context) -> Message:
        seed = message.content.config_records["config"]["seed"]
        assert isinstance(seed, int)
        model = [array.numpy().copy() for array in message.content.array_records["arrays"].values()]
        mine = data.client(int(context.node_config["partition-id"]))
        loss = train(model, mine, workload, seed)
        content = write_report(report(context).model_copy(update={"train_loss": loss}))
        content["arrays"] = _record(model)
        return Message(content, reply_to=message)

    return app


def _record(model: Parameters) -> ArrayRecord:
    record = ArrayRecord()
    for number, values in enumerate(model):
        record[str(number)] = LazyArray(values, copy=False)
    return record


class InProcess(Gate):
    """Selects by Adaptive-OSMD with its experts, so that the aggregate is unbiased."""

    def __init__(self, workload: Workload, data: FederatedData, folder: Path) -> None:
        def expect_all(record: RoundRecord) -> None:
            if record.failures or record.skipped:
                raise RuntimeError(f"round {record.round}: {record.skipped or dict(record.failures)}")

        def serve(pause: Callable[[int, ArrayRecord], None]) -> None:
            nodes = ({"partition-id": m} for m in range(workload.num_clients))
            grid = InProcessGrid(client_app(workload, data), nodes, frozen=True)
            strategy = SelectionStrategy(
                "adaptive-osmd",
                clients_per_round=workload.clients_per_round,
                num_rounds=HORIZON,
                min_available_clients=workload.num_clients,
                seed=workload.seed,
                on_round=expect_all,
                polling=Polling(ask_status=True),
            )
            strategy.start(grid, _record(workload.initial()), ENDLESS, evaluate_fn=pause)

        super().__init__(serve)

    def model(self) -> Parameters:
        return [array.numpy() for array in self.arrays.values()]
