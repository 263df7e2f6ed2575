"""The interface that every task has: arrays in, arrays out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from math import isfinite, nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .data import Dataset, FederatedData

Arrays = dict[str, NDArray[np.float32]]
"""A model: its parameters by name."""


class TrainResult(NamedTuple):
    """What local training brings back."""

    arrays: Arrays
    loss: float  # mean over the mini-batches, each before its step
    steps: int
    gradient_variance: float = nan  # σ²; NaN where it was not asked for, or there was one step only


class Metrics(NamedTuple):
    """How good a model is on a data set."""

    loss: float  # mean cross-entropy, nats
    accuracy: float  # in [0, 1]


class Task(ABC):
    """A model, its loss and its data."""

    @abstractmethod
    def initial_arrays(self, seed: int) -> Arrays:
        """Return the model that round 1 starts from; the same for the same seed."""

    @abstractmethod
    def client_data(self, partition: int, num_partitions: int, seed: int) -> Dataset:
        """Return the training samples of one client, 0 <= partition < num_partitions."""

    @abstractmethod
    def federated_data(self, num_clients: int, seed: int) -> FederatedData:
        """Return what `client_data` gives each of ``num_clients``, client after client, in three arrays."""

    def client_group(self, partition: int, num_partitions: int, seed: int) -> int | None:
        """Return the group that one client belongs to, where the data make groups; else None."""
        return None

    @abstractmethod
    def test_data(self) -> Dataset:
        """Return the held-out samples, which no client has."""

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
        """Take ``steps`` steps of SGD from ``arrays``, which stay as they are.

        Parameters
        ----------
        arrays : Arrays
            w_t, where training starts.
        data : Dataset
            The client's samples.
        learning_rate : float
            > 0.
        steps, batch_size : int
            How many mini-batches, and of how many samples each; >= 1.
        seed : int
            Which samples make which mini-batch.
        proximal_mu : float (default: 0.0)
            μ >= 0 of FedProx: each gradient gets μ (w - w_t) added (Li et al. 2020, eq. 2).
        control : Arrays, optional
            Added to each gradient; c - c_m of SCAFFOLD (Karimireddy et al. 2020, eq. 3).
        measure_variance : bool (default: False)
            Whether to measure how far the loss's gradient is from one mini-batch to the next, see
            `GradientVariance`; what the two options above add does not count.

        Raises
        ------
        ValueError
            If there are no samples, or ``steps`` or ``batch_size`` is below 1.
        """

    @abstractmethod
    def evaluate(self, arrays: Arrays, data: Dataset) -> Metrics:
        """Return the mean loss and the accuracy of ``arrays`` on ``data``."""


class GradientVariance:
    """σ² of mini-batch gradients, in one pass: Welford's method on the gradient as one long vector.

    Memory is one model: the mean so far. Of n gradients g_b it is sum_b ||g_b - mean||² / (n - 1), unbiased
    for gradients drawn independently at one model. Local steps move the model, so that their drift is in it:
    with one batch that holds all samples it is the drift alone.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean: list[NDArray[Any]] = []
        self._squares = 0.0

    def add(self, gradient: Iterable[NDArray[Any]]) -> None:
        """Count a mini-batch's gradient, given by arrays that are not kept."""
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
        """σ²; NaN after fewer than two gradients, or if it is not finite."""
        if self._count < 2 or not isfinite(self._squares):
            return nan
        return self._squares / (self._count - 1)


def batches(num_samples: int, batch_size: int, steps: int, seed: int) -> Iterator[NDArray[np.intp]]:
    """Yield the sample indexes of ``steps`` mini-batches, each of min(batch_size, num_samples).

    Samples are taken without replacement until all had their turn, then shuffled anew. One plan for
    every model, so that models are compared on the same batches.

    Raises
    ------
    ValueError
        If a number is below 1.
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
