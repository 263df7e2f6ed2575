"""The interface of kernels, which train many clients in one call, and code that kernels share."""

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
from tasks.federated_data import Dataset, FederatedData

Floats32 = NDArray[np.float32]


@dataclass(frozen=True)
class Plan:
    """The local training of one round; its mini-batches are those of the ClientApp."""

    seed: int  # with the round and a client's index, determines the client's mini-batches
    round: int
    learning_rate: float  # of local SGD, > 0
    batch_size: int  # B >= 1; a client with n samples takes mini-batches of min(B, n) samples
    steps: int  # mini-batches per client, >= 1; not used if ``epochs`` is above 0
    epochs: int = 0  # if above 0, a client takes epochs · max(1, n // B) mini-batches
    proximal_mu: float = 0.0  # μ of FedProx, >= 0
    measure_variance: bool = False  # of gradients (`tasks.base.GradientVariance`)

    def num_steps(self, sizes: Ints) -> Ints:
        """Return (R,) the number of mini-batches of clients with ``sizes`` samples."""
        if self.epochs:
            return self.epochs * np.maximum(1, sizes // self.batch_size)
        return np.full(sizes.size, self.steps, dtype=np.int64)

    def work(self, data: FederatedData, clients: Ints) -> tuple[Ints, Ints]:
        """Return (R,) how many mini-batches each client takes, and (R,) how many samples each of them has."""
        sizes = data.offsets[clients + 1] - data.offsets[clients]
        return self.num_steps(sizes), np.minimum(self.batch_size, sizes)

    def batches(self, client: int, size: int, steps: int) -> Iterator[NDArray[np.intp]]:
        """Yield a client's mini-batches, as indexes from 0 to size - 1 of the client's samples."""
        return batches(size, self.batch_size, steps, client_seed(self.seed, self.round, client))


class Trained(NamedTuple):
    """The result of R clients' local training."""

    updates: ClientUpdates
    losses: Floats  # (R,) mean loss of the mini-batches, each measured before its step
    gradient_variances: Floats  # (R,) σ²; NaN if not measured, or with a single step


class Kernel(ABC):
    """The local training of a model, for many clients in one call. Immutable: processes may copy it."""

    @abstractmethod
    def initial_arrays(self, seed: int) -> Arrays:
        """Return the model at the start of round 1, a function of the seed."""

    def check(self, data: FederatedData) -> None:
        """Raise a ValueError if the data do not fit the model: some kernels would train without an error."""
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
        """Train each client from ``arrays``, which are not changed.

        ``arrays``: w_t, the model from which every client trains. ``data``: the samples of all clients.
        ``clients`` (R,): Distinct clients, each with at least one sample. ``plan``: Mini-batches, learning
        rate and so on. ``controls``: By client, the arrays that are added to each of the client's gradients
        (SCAFFOLD: c - c_m).
        """

    def chunks(self, data: FederatedData, clients: Ints, plan: Plan, controlled: bool = False) -> list[Ints]:
        """Divide the clients into chunks, each of which `train` trains as one computation.

        A chunk holds positions in ``clients``. Each client is in one chunk. The results of a chunk do not
        depend on the other chunks in the call of `train`, bit for bit. If there are several chunks, the
        updates of a kernel that trains on the CPU are `StackedUpdates`. The arguments are those of `train`;
        ``controlled`` says whether `train` gets ``controls``.
        """
        return [np.array([position]) for position in range(clients.size)]

    @abstractmethod
    def losses(self, arrays: Arrays, data: FederatedData, clients: Ints) -> Floats:
        """Return (R,) the mean loss of ``arrays`` on all samples of each client."""

    @abstractmethod
    def evaluate(self, arrays: Arrays, data: Dataset) -> Metrics:
        """Return the mean loss and the accuracy of ``arrays`` on ``data``."""


def chunked(steps: Ints, widths: Ints, capacity: Callable[[int], int]) -> list[Ints]:
    """Divide clients into chunks that can be trained together; return the positions of each chunk's clients.

    Clients are sorted by steps, then by widths, and cut greedily into chunks. So a call with only the clients
    of some of these chunks, in the same order, returns these chunks again. A client takes ``steps`` (R,)
    mini-batches of ``widths`` (R,) samples. ``capacity`` returns the largest number of clients in a chunk for
    a number of samples per mini-batch.
    """
    found = []
    order = np.lexsort((widths, steps))
    begin = 0
    while begin < order.size:
        narrowest = int(widths[order[begin]])
        chunk = order[begin : begin + max(1, capacity(narrowest))]
        # A padded sample costs as much time as a real one, so a chunk has mini-batches of similar sizes.
        alike = (steps[chunk] == steps[chunk[0]]) & (widths[chunk] <= 2 * narrowest)
        chunk = chunk[: chunk.size if alike.all() else int(np.argmin(alike))]
        found.append(chunk)
        begin += chunk.size
    return found


class MiniBatches:
    """The mini-batches of G clients; iteration yields (inputs (G, b, features), labels (G, b)) for each step.

    b is the size of the clients' largest mini-batch. Smaller batches are padded with samples of weight 0.
    """

    def __init__(self, data: FederatedData, clients: Ints, plan: Plan, steps: int, widths: Ints) -> None:
        self._data, self._clients, self._plan, self.steps = data, clients, plan, steps
        self.shape = (clients.size, int(widths.max()))
        used = np.arange(self.shape[1]) < widths[:, None]
        self.shares: Floats32 = (used / widths[:, None]).astype(np.float32)
        """(G, b) weights: 1/b_m for the b_m samples in a mini-batch of client m, 0 for padding."""
        self._widths, self._used = widths, used

    def __iter__(self) -> Iterator[tuple[Floats32, NDArray[np.int64]]]:
        data, first = self._data, self._data.offsets[self._clients]
        sizes = data.offsets[self._clients + 1] - first
        in_order = first[:, None] + np.where(self._used, np.arange(self.shape[1]), 0)
        small = sizes <= self._plan.batch_size
        if small.all():  # the order of samples within a mini-batch is irrelevant
            if len(first) == 1:
                rows = slice(first[0], first[0] + sizes[0])
                inputs, labels = data.inputs[None, rows], data.labels[None, rows]
            else:
                inputs, labels = data.inputs[in_order], data.labels[in_order]
            for _ in range(self.steps):
                yield inputs, labels
            return
        index = np.tile(in_order, (self.steps, 1, 1))
        for row in np.flatnonzero(~small).tolist():
            batches = self._plan.batches(int(self._clients[row]), int(sizes[row]), self.steps)
            index[:, row, : self._widths[row]] = first[row] + np.stack(list(batches))
        inputs = np.empty((*self.shape, data.inputs.shape[1]), dtype=np.float32)
        for drawn in index:
            # mode="raise" would make one more copy.
            data.inputs.take(drawn, axis=0, out=inputs, mode="clip")
            yield inputs, data.labels[drawn]

    def masks(self, units: int, dropout: float) -> Iterator[Floats32]:
        """Yield, for each step, which units of a layer are kept: (G, b, units) of 0 and 1/(1 - dropout).

        A unit is dropped with the probability `dropout`. The masks of a client depend on the plan's seed, the
        round and the client alone.
        """
        plan = self._plan
        streams = [
            np.random.default_rng(client_seed(plan.seed, plan.round, int(client), "dropout"))
            for client in self._clients
        ]
        mask = np.zeros((*self.shape, units), dtype=np.float32)
        for _ in range(self.steps):
            for row, (stream, width) in enumerate(zip(streams, self._widths, strict=True)):
                mask[row, :width] = stream.random((width, units), dtype=np.float32) >= dropout
            yield mask / np.float32(1 - dropout)


class StackedUpdates(ClientUpdates):
    """Updates w_m - w_t as the rows of a matrix (R, P), all parameters of the model concatenated.

    ``arrays`` is w_t. ``split`` splits a row into named arrays with the model's shapes, as views if possible.
    """

    def __init__(self, rows: Floats32, arrays: Arrays, split: Callable[[Floats32], Arrays]) -> None:
        self.rows, self.split, self._arrays = rows, split, arrays

    def norms(self) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow gives inf
            return np.sqrt([squared_norm(row) for row in self.rows])

    def combined(self, coefficients: Floats) -> Arrays:
        rows, factors = self.rows, coefficients.astype(np.float32)
        if not coefficients.all():  # an update with coefficient 0 may be NaN
            rows, factors = rows[coefficients != 0], factors[coefficients != 0]
        return self.split(factors @ rows)

    def model(self, row: int) -> Mapping[str, NDArray[Any]]:
        moves = self.split(self.rows[row])
        return {name: array + moves[name] for name, array in self._arrays.items()}


_BLOCK = 16384  # numbers in a block: each block is summed in float32, and the sums of blocks in float64


def squared_norm(row: Floats32) -> float:
    """Return the sum of squares, with float32's precision for any length of the row."""
    total = 0.0
    for begin in range(0, row.size, _BLOCK):
        part = row[begin : begin + _BLOCK]
        total += float(part @ part)
    return total


def splitter(arrays: Arrays) -> Callable[[Floats32], Arrays]:
    """Return a function that splits a row of all parameters into named arrays with the model's shapes."""
    ends = np.cumsum([array.size for array in arrays.values()])[:-1]

    def split(row: Floats32) -> Arrays:
        parts = zip(arrays.items(), np.split(row, ends), strict=True)
        return {name: part.reshape(array.shape) for (name, array), part in parts}

    return split
