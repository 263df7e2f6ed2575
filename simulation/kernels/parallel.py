"""Runs any kernel in several processes, for example one per core."""

import mmap
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from strategies.numerics.arrays import Floats, Ints
from strategies.rounds.trained_clients import ClientUpdates
from tasks.base import Arrays, Metrics
from tasks.federated_data import Dataset, FederatedData

from .base import Floats32, Kernel, Plan, StackedUpdates, Trained

# Bytes of the shared memory, into which the forked processes write updates. Unused bytes take no memory.
_MEMORY = 1 << 30


class Parallel(Kernel):
    """Divides the clients of a round between processes. The results equal those of ``kernel``, bit for bit.

    The processes are forked when `train` gets a data set for the first time, and share the memory of this
    data set. They end with this process, or with `close`. The kernel's `chunks` are divided between the
    processes; a single chunk is trained in this process. Several processes are faster if the training of a
    client takes about a millisecond or more.

    The kernel must train on the CPU. Use one thread per process: set ``OPENBLAS_NUM_THREADS=1`` before NumPy
    is imported, and call ``torch.set_num_threads(1)`` in this process. (The forked processes make this call
    themselves.) ``workers``, >= 1, is the number of processes including this one. Windows cannot fork: there,
    an OSError is raised.

    Examples
    --------
    >>> from simulation.kernels import MLP
    >>> kernel = Parallel(MLP((784, 64, 10)), workers=2)
    """

    def __init__(self, kernel: Kernel, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers = {workers}: must be >= 1")
        if sys.platform == "win32":
            raise OSError("Parallel forks its processes, which Windows cannot")
        self._kernel, self._num_workers = kernel, workers
        self._data: FederatedData | None = None  # the data that the forked processes have
        self._workers: list[_Worker] = []
        self._memory: Floats32 = np.empty((0, 0), dtype=np.float32)  # updates w_m - w_t

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes; `train` forks new ones."""
        for worker in self._workers:
            # None ends the process. Closing the pipe may not be enough, since the processes of another
            # Parallel may have inherited the pipe.
            with suppress(OSError):
                worker.connection.send(None)
            worker.connection.close()
            worker.process.join()
        self._workers, self._data = [], None

    def initial_arrays(self, seed: int) -> Arrays:
        return self._kernel.initial_arrays(seed)

    def check(self, data: FederatedData) -> None:
        self._kernel.check(data)

    def losses(self, arrays: Arrays, data: FederatedData, clients: Ints) -> Floats:
        return self._kernel.losses(arrays, data, clients)

    def evaluate(self, arrays: Arrays, data: Dataset) -> Metrics:
        return self._kernel.evaluate(arrays, data)

    def chunks(self, data: FederatedData, clients: Ints, plan: Plan, controlled: bool = False) -> list[Ints]:
        return self._kernel.chunks(data, clients, plan, controlled)

    def train(
        self,
        arrays: Arrays,
        data: FederatedData,
        clients: Ints,
        plan: Plan,
        controls: Mapping[int, Arrays] | None = None,
    ) -> Trained:
        chunks = self.chunks(data, clients, plan, controls is not None)
        if self._num_workers == 1 or len(chunks) < 2:
            return self._kernel.train(arrays, data, clients, plan, controls)
        num_parameters = sum(array.size for array in arrays.values())
        if data is not self._data or num_parameters != self._memory.shape[1]:
            self.close()
            self._fork(data, num_parameters)
        rows = np.empty((clients.size, num_parameters), dtype=np.float32)
        losses, variances = np.empty(clients.size), np.empty(clients.size)
        costs = np.multiply(*plan.work(data, clients))
        for lot in _lots(chunks, capacity=len(self._memory)):
            shares = _shares(lot, [int(costs[chunk].sum()) for chunk in lot], self._num_workers)
            split, parts = self._train_lot(arrays, clients, shares, plan, controls)
            for share, part in zip(shares, parts, strict=True):
                rows[share], losses[share], variances[share] = part
        return Trained(StackedUpdates(rows, arrays, split), losses, variances)

    def _train_lot(
        self,
        arrays: Arrays,
        clients: Ints,
        shares: Sequence[Ints],
        plan: Plan,
        controls: Mapping[int, Arrays] | None,
    ) -> tuple[Callable[[Floats32], Arrays], list["_Part"]]:
        """Train a share per process; return what splits rows (views of shared memory), and the results."""
        assert self._data is not None
        own_share, *others = shares
        ends = np.cumsum([share.size for share in others]).tolist()
        for worker, share, end in zip(self._workers, others, ends, strict=True):
            addends = controls and {m: controls[m] for m in clients[share].tolist()}
            with suppress(OSError):  # the process has ended; `receive` reports this
                worker.connection.send((arrays, clients[share], plan, addends, end - share.size))
        try:
            own = self._kernel.train(arrays, self._data, clients[own_share], plan, controls)
            received = [worker.receive() for worker in self._workers]
        except BaseException:  # Ctrl-C too
            self._abandon()
            raise
        updates = _stacked(own.updates)
        parts = [(updates.rows, own.losses, own.gradient_variances)]
        for result, share, end in zip(received, others, ends, strict=True):
            if isinstance(result, Exception):
                raise result
            parts.append((self._memory[end - share.size : end], *result))
        return updates.split, parts

    def _fork(self, data: FederatedData, num_parameters: int) -> None:
        """Start the processes; they inherit the data and share the memory for updates."""
        num_rows = max(1, _MEMORY // (4 * num_parameters))
        shared = mmap.mmap(-1, 4 * num_rows * num_parameters)
        self._memory = np.frombuffer(shared, dtype=np.float32).reshape(num_rows, num_parameters)
        self._data = data
        context = multiprocessing.get_context("fork")
        for _ in range(self._num_workers - 1):
            this_end, worker_end = context.Pipe()
            # The new process closes the ends that it inherits. Otherwise the earlier processes would not
            # notice when this process ends.
            inherited = [this_end, *(worker.connection for worker in self._workers)]
            job = (worker_end, inherited, self._kernel, data, self._memory)
            process = context.Process(target=_work, args=job, daemon=True)
            process.start()
            worker_end.close()
            self._workers.append(_Worker(process, this_end))

    def _abandon(self) -> None:
        """End the processes at once, so that the next round does not receive results of this round."""
        for worker in self._workers:
            worker.process.terminate()
        self.close()


_Part = tuple[Floats32, Floats, Floats]  # rows (R, P), losses (R,) and gradient variances (R,)


def _stacked(updates: ClientUpdates) -> StackedUpdates:
    assert isinstance(updates, StackedUpdates)  # as `Kernel.chunks` promises
    return updates


def _lots(chunks: Sequence[Ints], capacity: int) -> Iterator[list[Ints]]:
    """Yield the chunks in lots. A lot has at most ``capacity`` clients, or a single chunk."""
    lot: list[Ints] = []
    for chunk in chunks:
        if lot and sum(each.size for each in lot) + chunk.size > capacity:
            yield lot
            lot = []
        lot.append(chunk)
    yield lot


def _shares(chunks: Sequence[Ints], costs: Sequence[int], count: int) -> list[Ints]:
    """Divide chunks into shares of about equal cost, the costly ones first; return each share's clients."""
    shares: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for number in np.argsort(-np.array(costs), kind="stable").tolist():
        least = totals.index(min(totals))
        shares[least].append(number)
        totals[least] += max(1, costs[number])
    none = np.empty(0, dtype=np.int64)
    return [np.concatenate([none, *(chunks[number] for number in sorted(share))]) for share in shares]


class _Worker(NamedTuple):
    process: Any
    connection: Connection

    def receive(self) -> Any:
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            raise RuntimeError(
                f"a process that trains clients ended with code {self.process.exitcode}"
            ) from None


def _work(
    connection: Connection,
    inherited: Sequence[Connection],
    kernel: Kernel,
    data: FederatedData,
    memory: Floats32,
) -> None:
    """Train the clients of each received job. None, or a closed connection, ends the process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    if "torch" in sys.modules:  # torch's threads do not survive a fork, and training would wait forever
        sys.modules["torch"].set_num_threads(1)
    while True:
        try:
            job = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        if job is None:
            return
        arrays, clients, plan, controls, begin = job
        try:
            result = np.empty(0), np.empty(0)
            if clients.size:
                trained = kernel.train(arrays, data, clients, plan, controls)
                memory[begin : begin + clients.size] = _stacked(trained.updates).rows
                result = trained.losses, trained.gradient_variances
            connection.send(result)
        except Exception as error:  # the process that sent the job raises it
            connection.send(error)
