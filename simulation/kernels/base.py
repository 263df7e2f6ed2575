"""What local training of a whole cohort is, whatever the model: a kernel trains many clients in one call."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strategies.numerics.arrays import Floats, Ints
from strategies.rounds.seeds import client_seed
from strategies.rounds.trained_clients import ClientUpdates
from tasks.base import Arrays, Metrics, batches
from tasks.data import Dataset, FederatedData

Floats32 = NDArray[np.float32]


@dataclass(frozen=True)
class Plan:
    """What each client of a round does, and on which mini-batches: those that its ClientApp would take.

    Attributes
    ----------
    seed, round : int
        Of which, with the client, the mini-batches are a function (`tasks.base.batches`).
    learning_rate : float
        Of local SGD, > 0.
    batch_size : int
        B >= 1; a client with n samples takes mini-batches of min(B, n).
    steps : int
        Mini-batches a client, >= 1; not looked at if there are epochs.
    epochs : int (default: 0)
        If above 0, a client takes so many times max(1, n // B) mini-batches.
    proximal_mu : float (default: 0.0)
        μ of FedProx, >= 0.
    measure_variance : bool (default: False)
        Whether to measure the variance of gradients (`tasks.base.GradientVariance`).
    """

    seed: int
    round: int
    learning_rate: float
    batch_size: int
    steps: int
    epochs: int = 0
    proximal_mu: float = 0.0
    measure_variance: bool = False

    def num_steps(self, sizes: Ints) -> Ints:
        """Return (R,) how many mini-batches clients with so many samples take."""
        if self.epochs:
            return self.epochs * np.maximum(1, sizes // self.batch_size)
        return np.full(sizes.size, self.steps, dtype=np.int64)

    def batches(self, client: int, size: int, steps: int) -> Iterator[NDArray[np.intp]]:
        """Yield the indexes of a client's mini-batches, in 0..size - 1."""
        return batches(size, self.batch_size, steps, client_seed(self.seed, self.round, client))


class Trained(NamedTuple):
    """What R clients' local training brought."""

    updates: ClientUpdates
    losses: Floats  # (R,) mean over the mini-batches, each before its step
    gradient_variances: Floats  # (R,) σ²; NaN where it was not asked for, or there was one step only


class Kernel(ABC):
    """The local training of a model, for many clients at once.

    A kernel has nothing that changes: it may be copied to other processes.
    """

    @abstractmethod
    def initial_arrays(self, seed: int) -> Arrays:
        """Return the model that round 1 starts from; the same for the same seed."""

    def check(self, data: FederatedData) -> None:
        """Look whether the data fit the model, as far as that can be told beforehand.

        Raises
        ------
        ValueError
            If they do not: not all kernels would notice later.
        """
        data.check()

    @abstractmethod
    def train(
        self,
        arrays: Arrays,
        data: FederatedData,
        clients: Ints,
        plan: Plan,
        controls: Mapping[int, Arrays] | None = None,
    ) -> Trained:
        """Train each of the clients from ``arrays``, which stay as they are.

        Parameters
        ----------
        arrays : Arrays
            w_t.
        data : FederatedData
            Everybody's samples.
        clients : ndarray of int, shape (R,)
            Distinct, each with at least one sample.
        plan : Plan
            What they do.
        controls : mapping of int to Arrays, optional
            What is added to each gradient of a client (SCAFFOLD: c - c_m).
        """

    @abstractmethod
    def losses(self, arrays: Arrays, data: FederatedData, clients: Ints) -> Floats:
        """Return (R,) the mean loss of ``arrays`` on all samples of each client."""

    @abstractmethod
    def evaluate(self, arrays: Arrays, data: Dataset) -> Metrics:
        """Return the mean loss and the accuracy of ``arrays`` on ``data``."""


def chunks(steps: Ints, widths: Ints, at_once: Callable[[int], int]) -> Iterator[Ints]:
    """Yield the positions of clients that can be trained together, all in all each once.

    Parameters
    ----------
    steps, widths : ndarray of int, shape (R,)
        How many mini-batches each client takes, and of how many samples.
    at_once : callable
        How many clients may be in a chunk, given the samples of their mini-batches.
    """
    order = np.lexsort((widths, steps))
    begin = 0
    while begin < order.size:
        narrowest = int(widths[order[begin]])
        chunk = order[begin : begin + max(1, at_once(narrowest))]
        # What is filled up costs as much as what counts.
        alike = (steps[chunk] == steps[chunk[0]]) & (widths[chunk] <= 2 * narrowest)
        chunk = chunk[: chunk.size if alike.all() else int(np.argmin(alike))]
        yield chunk
        begin += chunk.size


class MiniBatches:
    """The mini-batches of G clients: iterating gives (inputs (G, b, features), labels (G, b)) for each step.

    b is the largest of the clients' batches; a smaller one is filled up with samples that count for nothing.
    """

    def __init__(self, data: FederatedData, clients: Ints, plan: Plan, steps: int, widths: Ints) -> None:
        self._data, self._clients, self._plan, self.steps = data, clients, plan, steps
        self.shape = (clients.size, int(widths.max()))
        used = np.arange(self.shape[1]) < widths[:, None]
        self.shares: Floats32 = (used / widths[:, None]).astype(np.float32)
        """(G, b) 1/b_m for the samples of client m's mini-batches, 0 for what fills up."""
        self._widths, self._used = widths, used

    def __iter__(self) -> Iterator[tuple[Floats32, NDArray[np.int64]]]:
        data, first = self._data, self._data.offsets[self._clients]
        sizes = data.offsets[self._clients + 1] - first
        all_of_it = first[:, None] + np.where(self._used, np.arange(self.shape[1]), 0)
        small = sizes <= self._plan.batch_size
        if small.all():  # the order within a mini-batch changes nothing
            if len(first) == 1:
                rows = slice(first[0], first[0] + sizes[0])
                inputs, labels = data.inputs[None, rows], data.labels[None, rows]
            else:
                inputs, labels = data.inputs[all_of_it], data.labels[all_of_it]
            for _ in range(self.steps):
                yield inputs, labels
            return
        index = np.tile(all_of_it, (self.steps, 1, 1))
        for row in np.flatnonzero(~small).tolist():
            batches = self._plan.batches(int(self._clients[row]), int(sizes[row]), self.steps)
            index[:, row, : self._widths[row]] = first[row] + np.stack(list(batches))
        inputs = np.empty((*self.shape, data.inputs.shape[1]), dtype=np.float32)
        for drawn in index:
            np.take(data.inputs, drawn, axis=0, out=inputs, mode="clip")  # "raise" would copy once more
            yield inputs, data.labels[drawn]


class StackedUpdates(ClientUpdates):
    """Updates as the rows of a matrix.

    Parameters
    ----------
    rows : ndarray, shape (R, P)
        w_m - w_t, all of a model's parameters one after another.
    arrays : Arrays
        w_t.
    split : callable
        Gives a row of P numbers the names and shapes of the model (views where it can).
    """

    def __init__(self, rows: Floats32, arrays: Arrays, split: Callable[[Floats32], Arrays]) -> None:
        self.rows, self.split, self._arrays = rows, split, arrays

    def norms(self) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not finite
            return np.sqrt([squared_norm(row) for row in self.rows])

    def combined(self, coefficients: Floats) -> Arrays:
        rows, factors = self.rows, coefficients.astype(np.float32)
        if not coefficients.all():  # what has no part in it may be NaN
            rows, factors = rows[coefficients != 0], factors[coefficients != 0]
        return self.split(factors @ rows)

    def model(self, row: int) -> Mapping[str, NDArray[Any]]:
        moves = self.split(self.rows[row])
        return {name: array + moves[name] for name, array in self._arrays.items()}


_CHUNK = 16384  # numbers that are summed in float32 before the sums are added up in float64


def squared_norm(row: Floats32) -> float:
    """Return the sum of squares, to float32's precision however long the row is."""
    total = 0.0
    for begin in range(0, row.size, _CHUNK):
        part = row[begin : begin + _CHUNK]
        total += float(part @ part)
    return total


def splitter(arrays: Arrays) -> Callable[[Floats32], Arrays]:
    """Return what gives a row of all parameters, one after another, the names and shapes of a model."""
    ends = np.cumsum([array.size for array in arrays.values()])[:-1]

    def split(row: Floats32) -> Arrays:
        parts = zip(arrays.items(), np.split(row, ends), strict=True)
        return {name: part.reshape(array.shape) for (name, array), part in parts}

    return split
