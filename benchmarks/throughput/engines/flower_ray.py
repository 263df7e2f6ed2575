"""Flower's own simulation: Ray's worker processes train the clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

import ray  # noqa: F401 (if Ray is missing, this raises an error; Flower would end the process)
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from benchmarks.throughput.workloads import Parameters, Workload, load
from tasks.federated_data import FederatedData

from . import sgd
from .gate import ENDLESS, Gate


@lru_cache(maxsize=1)
def _client_side(workload: Workload, folder: str) -> tuple[nn.Sequential, FederatedData]:
    """Return the network and the samples, which a worker process keeps for all clients that it trains."""
    return sgd.network(workload), load(Path(folder))


def client_app(workload: Workload, folder: str) -> ClientApp:
    """Return the app of every client."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, data = _client_side(workload, folder)
        client = data.client(int(context.node_config["partition-id"]))
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        sgd.train(model, torch.from_numpy(client.inputs), torch.from_numpy(client.labels), workload)
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(client)}),
            }
        )
        return Message(content, reply_to=message)

    return app


class _Strict(FedAvg):
    """FedAvg that ends the run if a client or Ray fails, since a round without replies would look fast."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
        return super().aggregate_train(server_round, replies)


class FlowerRay(Gate):
    """FedAvg over clients drawn uniformly, with one CPU per client."""

    def __init__(self, workload: Workload, data: FederatedData, folder: Path) -> None:
        self._network = sgd.network(workload)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

        def serve(pause: Callable[[int, ArrayRecord], None]) -> None:
            server = ServerApp()

            @server.main()
            def main(grid: Grid, context: Context) -> None:
                strategy = _Strict(
                    fraction_train=workload.clients_per_round / workload.num_clients,
                    fraction_evaluate=0.0,
                    min_train_nodes=1,
                    min_available_nodes=workload.num_clients,
                )
                strategy.start(
                    grid, ArrayRecord(self._network.state_dict()), num_rounds=ENDLESS, evaluate_fn=pause
                )

            run_simulation(
                server,
                client_app(workload, str(folder)),
                workload.num_clients,
                backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
            )

        super().__init__(serve)

    def model(self) -> Parameters:
        self._network.load_state_dict(self.arrays.to_torch_state_dict())
        return sgd.parameters(self._network)
