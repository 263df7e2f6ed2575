"""A plain PyTorch loop without a framework, which trains one client after another."""

from pathlib import Path

import numpy as np
import torch

from benchmarks.throughput.workloads import Parameters, Workload
from tasks.federated_data import FederatedData

from . import Engine, sgd


class Loop(Engine):
    """FedAvg over clients drawn uniformly without replacement, weighted by their numbers of samples."""

    def __init__(self, workload: Workload, data: FederatedData, folder: Path) -> None:
        self._workload = workload
        self._clients = [
            (torch.from_numpy(client.inputs), torch.from_numpy(client.labels))
            for client in map(data.client, range(data.num_clients))
        ]
        self._random = np.random.default_rng(workload.seed)
        self._model = sgd.network(workload)
        self._global = {name: value.clone() for name, value in self._model.state_dict().items()}

    def run(self, rounds: int) -> None:
        count, chosen = self._workload.num_clients, self._workload.clients_per_round
        for _ in range(rounds):
            sums = {name: torch.zeros_like(value) for name, value in self._global.items()}
            samples = 0
            for m in self._random.choice(count, chosen, replace=False):
                inputs, labels = self._clients[m]
                self._model.load_state_dict(self._global)
                sgd.train(self._model, inputs, labels, self._workload)
                for name, value in self._model.state_dict().items():
                    sums[name] += len(labels) * value
                samples += len(labels)
            self._global = {name: value / samples for name, value in sums.items()}

    def model(self) -> Parameters:
        self._model.load_state_dict(self._global)
        return sgd.parameters(self._model)
