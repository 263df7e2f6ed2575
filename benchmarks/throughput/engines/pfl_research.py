"""pfl-research (Apple, PyPI `pfl`): its simulated backend with a PyTorch model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
from pfl.aggregate.weighting import WeightByDatapoints  # type: ignore[import-not-found]
from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
from pfl.algorithm.federated_averaging import (  # type: ignore[import-not-found]
    FederatedAveraging,
)
from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
from pfl.data.pytorch import PyTorchTensorDataset  # type: ignore[import-not-found]
from pfl.hyperparam import NNTrainHyperParams  # type: ignore[import-not-found]
from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]
from torch.nn.functional import cross_entropy

from benchmarks.throughput.workloads import Parameters, Workload
from tasks.federated_data import FederatedData

from . import Engine, sgd

# Rounds between two evaluations. pfl always evaluates in round 0, which is not measured.
NEVER = 1_000_000_000


class _Client(PyTorchTensorDataset):  # type: ignore[misc]
    """A client's shuffled mini-batches, one for each step of the workload.

    The batches of pfl's own class are not shuffled, and end after one pass over the samples.
    """

    def __init__(self, tensors: tuple[torch.Tensor, torch.Tensor], workload: Workload) -> None:
        super().__init__(tensors)
        self._workload = workload

    def iter(self, batch_size: int | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        inputs, labels = self.raw_data
        for batch in sgd.batches(len(labels), self._workload):
            yield inputs[batch], labels[batch]


class _Network(torch.nn.Module):
    """The workload's network with the two methods that pfl calls."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.layers = sgd.network(workload)

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.layers(inputs), labels)

    def metrics(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        return {}


class Pfl(Engine):
    """FedAvg over clients drawn uniformly with replacement, weighted by their numbers of samples."""

    def __init__(self, workload: Workload, data: FederatedData, folder: Path) -> None:
        self._workload = workload
        self._clients = [
            (torch.from_numpy(client.inputs), torch.from_numpy(client.labels))
            for client in map(data.client, range(data.num_clients))
        ]
        self._rounds = 0
        np.random.seed(workload.seed)  # noqa: NPY002 (pfl draws from NumPy's global stream)
        dataset = FederatedDataset(
            lambda m: _Client(self._clients[m], workload),
            lambda: np.random.randint(workload.num_clients),  # noqa: NPY002
        )
        self._backend = SimulatedBackend(dataset, dataset, postprocessors=[WeightByDatapoints()])
        self._network = _Network(workload)
        self._model = PyTorchModel(
            self._network,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(self._network.parameters(), lr=1.0),
        )
        self._algorithm = FederatedAveraging()
        self._training = NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=workload.learning_rate,
            local_batch_size=workload.batch_size,
        )

    def run(self, rounds: int) -> None:
        self._rounds += rounds
        settings = NNAlgorithmParams(
            central_num_iterations=self._rounds,
            evaluation_frequency=NEVER,
            train_cohort_size=self._workload.clients_per_round,
            val_cohort_size=None,
        )
        # pfl continues where the previous call ended, up to `central_num_iterations` rounds in total.
        self._algorithm.run(
            settings, self._backend, self._model, self._training, send_metrics_to_platform=False
        )

    def model(self) -> Parameters:
        return sgd.parameters(self._network)
