"""A kernel in several processes, one a core, which share the data and write their results into one memory."""

from __future__ import annotations

import mmap
import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import nan
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from strategies.numerics.arrays import Floats, Ints
from strategies.rounds.trained_clients import ClientUpdates
from tasks.base import Arrays, Metrics
from tasks.data import Dataset, FederatedData

from .base import Floats32, Kernel, Plan, StackedUpdates, Trained, splitter


class Parallel(Kernel):
    """Splits a cohort over processes, each with about the same number of samples to go through.

    The processes are forked, so that nothing of the data is copied; they end with this one, or with `close`.
    What comes out is what the kernel gives alone, client by client. For models and steps that take
    milliseconds a client: below, handing out costs more than it brings.

    Parameters
    ----------
    kernel : Kernel
        What trains, on the CPU; each process should have one thread
        (``OPENBLAS_NUM_THREADS=1`` in the environment before NumPy is imported; torch has one in the others).
    data : FederatedData
        Everybody's samples; with other data `train` runs in this process.
    workers : int
        Processes, this one included; >= 1.
    clients_at_once : int (default: 128)
        For how many clients of a cohort there is memory; more are trained one lot after another.

    Raises
    ------
    ValueError
        If ``workers`` or ``clients_at_once`` is below 1.
    OSError
        On a system without fork.
    """

    def __init__(self, kernel: Kernel, data: FederatedData, workers: int, clients_at_once: int = 128) -> None:
        if workers < 1:
            raise ValueError(f"workers = {workers}: must be at least 1")
        if clients_at_once < 1:
            raise ValueError(f"clients_at_once = {clients_at_once}: must be at least 1")
        if sys.platform == "win32":
            raise OSError("Parallel forks its processes, which Windows cannot")
        self._kernel, self._data, self._at_once = kernel, data, clients_at_once
        start = kernel.initial_arrays(0)
        self._names = list(start)  # in the order in which the others find them in the memory
        size = sum(array.size for array in start.values())
        self._memory: Floats32 = np.frombuffer(
            mmap.mmap(-1, 4 * (clients_at_once + 1) * size), dtype=np.float32
        ).reshape(-1, size)
        self._workers: list[_Worker] = []
        context = multiprocessing.get_context("fork")
        for _ in range(workers - 1):
            ours, theirs = context.Pipe()
            # Ends that a fork inherits would keep the others from noticing when this process is gone.
            inherited = [ours, *(worker.connection for worker in self._workers)]
            job = (theirs, inherited, kernel, data, self._memory, start)
            process = context.Process(target=_work, args=job, daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes; `train` then runs in this one."""
        for worker in self._workers:
            with suppress(OSError):  # closing is not enough: a later Parallel's processes hold this end, too
                worker.connection.send(None)
            worker.connection.close()
            worker.process.join()
        self._workers = []

    def _abandon(self) -> None:
        """End the processes at once: what they still send must not be taken for the next round's."""
        for worker in self._workers:
            worker.process.terminate()
            worker.process.join()
            worker.connection.close()
        self._workers = []

    def initial_arrays(self, seed: int) -> Arrays:
        return self._kernel.initial_arrays(seed)

    def check(self, data: FederatedData) -> None:
        self._kernel.check(data)

    def train(
        self,
        arrays: Arrays,
        data: FederatedData,
        clients: Ints,
        plan: Plan,
        controls: Mapping[int, Arrays] | None = None,
    ) -> Trained:
        if not self._workers or data is not self._data or clients.size < 2:
            return self._kernel.train(arrays, data, clients, plan, controls)
        arrays = {name: arrays[name] for name in self._names}
        parts: list[tuple[Ints, Trained]] = []
        for begin in range(0, clients.size, self._at_once):
            lot = np.arange(begin, min(begin + self._at_once, clients.size))
            parts += self._train_lot(arrays, clients, lot, plan, controls, clients.size > self._at_once)
        losses, variances = np.empty(clients.size), np.full(clients.size, nan)
        for positions, trained in parts:
            losses[positions], variances[positions] = trained.losses, trained.gradient_variances
        updates = _Joined([(positions, trained.updates) for positions, trained in parts], clients.size)
        return Trained(updates, losses, variances)

    def _train_lot(
        self,
        arrays: Arrays,
        clients: Ints,
        lot: Ints,
        plan: Plan,
        controls: Mapping[int, Arrays] | None,
        copied: bool,
    ) -> list[tuple[Ints, Trained]]:
        """Train some positions of a cohort; what the others write stays valid until the next lot."""
        self._memory[0] = np.concatenate([array.reshape(-1) for array in arrays.values()])
        sizes = self._data.offsets[clients[lot] + 1] - self._data.offsets[clients[lot]]
        costs = plan.num_steps(sizes) * np.minimum(plan.batch_size, sizes)
        mine, *others = [lot[share] for share in _shares(costs, len(self._workers) + 1)]
        busy = [(worker, share) for worker, share in zip(self._workers, others, strict=True) if share.size]
        ends = 1 + np.cumsum([share.size for _, share in busy])
        for (worker, share), end in zip(busy, ends.tolist(), strict=True):
            theirs = controls and {m: controls[m] for m in clients[share].tolist()}
            with suppress(OSError):  # it is gone, which `receive` says
                worker.connection.send((clients[share], plan, theirs, end - share.size))
        try:
            own = self._kernel.train(arrays, self._data, clients[mine], plan, controls)
            received = [worker.receive() for worker, _ in busy]
        except BaseException:  # Ctrl-C, too
            self._abandon()
            raise
        parts = [(mine, own)]
        for trained, (_, share), end in zip(received, busy, ends.tolist(), strict=True):
            if isinstance(trained, Exception):
                raise trained
            if isinstance(own.updates, StackedUpdates):
                rows = self._memory[end - share.size : end]
                updates = StackedUpdates(rows.copy() if copied else rows, arrays, own.updates.split)
                trained = trained._replace(updates=updates)
            parts.append((share, trained))
        return parts

    def losses(self, arrays: Arrays, data: FederatedData, clients: Ints) -> Floats:
        return self._kernel.losses(arrays, data, clients)

    def evaluate(self, arrays: Arrays, data: Dataset) -> Metrics:
        return self._kernel.evaluate(arrays, data)


class _Joined(ClientUpdates):
    """Updates of several parts of a cohort, each with the positions of its clients."""

    def __init__(self, parts: Sequence[tuple[Ints, ClientUpdates]], size: int) -> None:
        self._parts = parts
        self._part, self._row = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
        for number, (positions, _) in enumerate(parts):
            self._part[positions], self._row[positions] = number, np.arange(positions.size)

    def norms(self) -> Floats:
        norms = np.empty(self._part.size)
        for positions, updates in self._parts:
            norms[positions] = updates.norms()
        return norms

    def combined(self, coefficients: Floats) -> Arrays:
        sums = [updates.combined(coefficients[positions]) for positions, updates in self._parts]
        return {name: sum((each[name] for each in sums[1:]), first) for name, first in sums[0].items()}

    def model(self, row: int) -> Mapping[str, NDArray[Any]]:
        updates: ClientUpdates = self._parts[self._part[row]][1]
        return updates.model(int(self._row[row]))


def _shares(costs: Ints, count: int) -> list[Ints]:
    """Split positions into shares of about equal cost, each ascending; the dearest are dealt first."""
    shares: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for position in np.argsort(-costs, kind="stable").tolist():
        cheapest = totals.index(min(totals))
        shares[cheapest].append(position)
        totals[cheapest] += max(1, int(costs[position]))
    return [np.array(sorted(share), dtype=np.int64) for share in shares]


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
    start: Arrays,
) -> None:
    """Train what is asked for until the other end is closed."""
    for other in inherited:
        other.close()
    if "torch" in sys.modules:  # whose threads do not survive a fork; it would wait for them for ever
        sys.modules["torch"].set_num_threads(1)
    split = splitter(start)
    while True:
        try:
            job = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        if job is None:
            return
        clients, plan, controls, begin = job
        try:
            trained = kernel.train(split(memory[0]), data, clients, plan, controls)
            if isinstance(trained.updates, StackedUpdates):
                memory[begin : begin + clients.size] = trained.updates.rows
                trained = trained._replace(updates=None)  # type: ignore[arg-type]
            connection.send(trained)
        except Exception as error:  # raised where somebody sees it
            connection.send(error)
