"""The interface of all tasks: a task takes a model as arrays, and returns the trained model as arrays."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from math import isfinite, nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .federated_data import Dataset, FederatedData

Arrays = dict[str, NDArray[np.float32]]
"""A model: its parameters by name."""


class TrainResult(NamedTuple):
    """The result of local training."""

    arrays: Arrays
    loss: float  # mean over the mini-batches; the loss on each is measured before the step on it
    steps: int
    gradient_variance: float = nan  # σ²; NaN if it was not measured or there was only one step


class Metrics(NamedTuple):
    """The quality of a model on a data set."""

    loss: float  # mean cross-entropy, nats
    accuracy: float  # in [0, 1]


class Task(ABC):
    """A model, its loss and its data."""

    @abstractmethod
    def initial_arrays(self, seed: int) -> Arrays:
        """Return the model that round 1 starts from, as a function of the seed."""

    @abstractmethod
    def client_data(self, partition: int, num_partitions: int, seed: int) -> Dataset:
        """Return the training samples of one client, 0 <= partition < num_partitions."""

    @abstractmethod
    def federated_data(self, num_clients: int, seed: int) -> FederatedData:
        """Return the `client_data` of all ``num_clients``, client after client, in three arrays."""

    def client_group(self, partition: int, num_partitions: int, seed: int) -> int | None:
        """Return the client's group, or None if the partition makes no groups."""
        return None

    @abstractmethod
    def test_data(self) -> Dataset:
        """Return the held-out samples, which no client holds."""

    @abstractmethod
    def train(
        self,
        arrays: Arrays,
        data: Dataset,
        *,
        learning_rate: float,
        steps: int,
        batch_size: int,
        seed: int,
        proximal_mu: float = 0.0,
        control: Arrays | None = None,
        measure_variance: bool = False,
    ) -> TrainResult:
        """Take ``steps`` steps of SGD from ``arrays``, which are not changed.

        ``steps`` and ``batch_size`` are >= 1, and ``seed`` is that of the mini-batches (`batches`).
        ``proximal_mu`` is μ >= 0 of FedProx: μ (w - w_t) is added to each gradient (Li et al. 2020, eq. 2).
        ``control`` is c - c_m of SCAFFOLD, the server's control variate minus the client's, added to each
        gradient (Karimireddy et al. 2020, eq. 3). ``measure_variance`` measures the variance of the loss's
        gradient over the mini-batches (`GradientVariance`), without these terms. Raises ValueError without
        samples, or if a number is below 1.
        """

    @abstractmethod
    def evaluate(self, arrays: Arrays, data: Dataset) -> Metrics:
        """Return the mean loss and the accuracy of ``arrays`` on ``data``."""


class GradientVariance:
    """The variance σ² of mini-batch gradients, in one pass (Welford's method on the gradient as one vector).

    σ² = sum_b ||g_b - mean||² / (n - 1) over n gradients g_b; the running mean takes the memory of one model.
    The estimate is unbiased if all gradients are drawn independently at one model. Local steps move the
    model, so σ² includes the drift of the gradient; it is the drift alone if each mini-batch holds all
    samples.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean: list[NDArray[Any]] = []
        self._squares = 0.0

    def add(self, gradient: Iterable[NDArray[Any]]) -> None:
        """Include a mini-batch's gradient. The arrays are not kept."""
        self._count += 1
        if self._count == 1:
            self._mean = [array.copy() for array in gradient]
            return
        for mean, array in zip(self._mean, gradient, strict=True):
            delta = array - mean
            mean += delta / self._count
            self._squares += float(np.vdot(delta, delta)) * (1 - 1 / self._count)

    @property
    def value(self) -> float:
        """σ²; NaN after fewer than two gradients or if the sum of squares is not finite."""
        if self._count < 2 or not isfinite(self._squares):
            return nan
        return self._squares / (self._count - 1)


def batches(num_samples: int, batch_size: int, steps: int, seed: int) -> Iterator[NDArray[np.intp]]:
    """Yield the sample indexes of ``steps`` mini-batches of min(batch_size, num_samples) samples each.

    Samples are drawn without replacement; when too few are left, all are shuffled again. Client and
    simulation train on these mini-batches, so both get the same updates from the same seed.
    """
    for name, value in (("num_samples", num_samples), ("batch_size", batch_size), ("steps", steps)):
        if value < 1:
            raise ValueError(f"{name} = {value}: must be >= 1")
    random = np.random.default_rng(seed)
    size = min(batch_size, num_samples)
    order = random.permutation(num_samples)
    start = 0
    for _ in range(steps):
        if start + size > num_samples:
            order = random.permutation(num_samples)
            start = 0
        yield order[start : start + size]
        start += size
