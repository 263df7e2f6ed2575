"""Trains the clients of any task one after another: slow, but correct for every model."""

from collections.abc import Mapping

import numpy as np

from strategies.numerics.arrays import Floats, Ints
from strategies.rounds.seeds import client_seed
from tasks.base import Arrays, Metrics, Task
from tasks.federated_data import Dataset, FederatedData

from .base import Kernel, Plan, StackedUpdates, Trained, splitter


class Loop(Kernel):
    """Calls the training of a ``task``, which provides the model, for each client; its data are not used."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def initial_arrays(self, seed: int) -> Arrays:
        return self._task.initial_arrays(seed)

    def train(
        self,
        arrays: Arrays,
        data: FederatedData,
        clients: Ints,
        plan: Plan,
        controls: Mapping[int, Arrays] | None = None,
    ) -> Trained:
        rows = np.empty((clients.size, sum(array.size for array in arrays.values())), dtype=np.float32)
        losses, variances = np.empty(clients.size), np.empty(clients.size)
        steps = plan.num_steps(data.sizes()[clients])
        for row, client in enumerate(clients.tolist()):
            result = self._task.train(
                arrays,
                data.client(client),
                learning_rate=plan.learning_rate,
                steps=int(steps[row]),
                batch_size=plan.batch_size,
                seed=client_seed(plan.seed, plan.round, client),
                proximal_mu=plan.proximal_mu,
                control=None if controls is None else controls[client],
                measure_variance=plan.measure_variance,
            )
            np.concatenate(
                [(result.arrays[name] - array).reshape(-1) for name, array in arrays.items()], out=rows[row]
            )
            losses[row], variances[row] = result.loss, result.gradient_variance
        return Trained(StackedUpdates(rows, arrays, splitter(arrays)), losses, variances)

    def losses(self, arrays: Arrays, data: FederatedData, clients: Ints) -> Floats:
        return np.array([self._task.evaluate(arrays, data.client(m)).loss for m in clients.tolist()])

    def evaluate(self, arrays: Arrays, data: Dataset) -> Metrics:
        return self._task.evaluate(arrays, data)
