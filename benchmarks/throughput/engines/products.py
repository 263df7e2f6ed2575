"""The matrix products of the `batched` engine alone: with this BLAS, its training cannot take less time."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.throughput.workloads import Parameters, Workload
from tasks.federated_data import FederatedData

from . import Engine


class Products(Engine):
    """Multiplies float32 matrices of the workload's shapes, one client after another, and learns nothing.

    A step multiplies, as `simulation.kernels.dense` does: for each layer, the inputs by the weights; then
    backwards the transposed inputs by the errors, and, except at the first layer, the errors by the
    transposed weights. The operands stay the same, so they are in the cache. Mini-batches have each client's
    own size.
    """

    def __init__(self, workload: Workload, data: FederatedData, folder: Path) -> None:
        self._workload, self._client = workload, 0
        self._widths = np.minimum(data.sizes(), workload.batch_size).tolist()
        random = np.random.default_rng(workload.seed)

        def filled(*shape: int) -> NDArray[np.float32]:
            return random.standard_normal(shape, np.float32) / np.float32(shape[-1])

        self._weights = [filled(*pair) for pair in pairwise(workload.layers)]
        self._moves = [np.empty_like(weight) for weight in self._weights]
        widest = max(self._widths)
        self._values = [filled(widest, units) for units in workload.layers]  # the inputs, then all outputs
        self._results = [np.empty_like(values) for values in self._values]

    def run(self, rounds: int) -> None:
        for _ in range(rounds * self._workload.clients_per_round):
            width = self._widths[self._client]
            self._client = (self._client + 1) % len(self._widths)
            values, results = ([each[:width] for each in arrays] for arrays in (self._values, self._results))
            for _ in range(self._workload.steps):
                for number, weight in enumerate(self._weights):
                    np.matmul(values[number], weight, out=results[number + 1])
                for number in reversed(range(len(self._weights))):
                    np.matmul(values[number].T, values[number + 1], out=self._moves[number])
                    if number:
                        np.matmul(values[number + 1], self._weights[number].T, out=results[number])

    def model(self) -> Parameters:
        raise RuntimeError("the matrix products alone train no model")
