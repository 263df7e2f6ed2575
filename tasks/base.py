"""The interface that every task has: arrays in, arrays out."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]
"""A model: its parameters by name."""


class Dataset(NamedTuple):
    """Samples and their labels."""

    inputs: NDArray[np.float32]  # (n, features)
    labels: NDArray[np.int64]  # (n,)

    def __len__(self) -> int:
        """Return the number of samples n (not of fields)."""
        return len(self.labels)


class TrainResult(NamedTuple):
    """What local training brings back."""

    arrays: Arrays
    loss: float  # mean over the mini-batches, each before its step
    steps: int


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
    def test_data(self) -> Dataset:
        """Return the held-out samples, which no client has."""

    @abstractmethod
    def train(
        self, arrays: Arrays, data: Dataset, *, learning_rate: float, steps: int, batch_size: int, seed: int
    ) -> TrainResult:
        """Take ``steps`` steps of SGD from ``arrays``, which stay as they are."""

    @abstractmethod
    def evaluate(self, arrays: Arrays, data: Dataset) -> Metrics:
        """Return the mean loss and the accuracy of ``arrays`` on ``data``."""


def batches(num_samples: int, batch_size: int, steps: int, seed: int) -> Iterator[NDArray[np.intp]]:
    """Yield the sample indexes of ``steps`` mini-batches, each of min(batch_size, num_samples).

    Samples are taken without replacement until all had their turn, then shuffled anew. One plan for
    every model, so that models are compared on the same batches.
    """
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
