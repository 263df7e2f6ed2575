"""Calls the reporters of a run, each on a thread of its own, so that no reporter delays or stops a round."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import WARNING
from threading import Condition, Thread
from typing import Any, Self

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from ..clients.printable import LONGEST_NAME, counted, printable
from ..flower.traffic import Traffic
from ..rounds.record import RoundRecord
from .base import Reporter, RoundReport, RunInfo

CAPACITY = 1000  # the most rounds that wait for a slow reporter; the reporter misses further rounds
MOST_NAMES = 1000  # the most names of metrics of one source in a run: trackers keep each name for ever
HURRY = 2.0  # seconds; the longest wait for reporters if a signal ends the process
LAST = 1.0  # seconds; the part of each wait that is kept for the call of `end`, `failed` or `stopped`


class Reporters:
    """The reporters of one run, called in any order. The run's thread waits in `end` and `failed` only."""

    def __init__(self, reporters: Sequence[Reporter] = ()) -> None:
        for each in reporters:
            if not isinstance(each, Reporter):
                raise TypeError(f"reporters = {reporters!r}: {each!r} must be a Reporter")
        self._workers = [_Worker(each) for each in reporters]
        self._draws = np.zeros(0, np.int64)  # (M,) how many times each registered client was drawn
        self._participation = np.zeros(1, np.int64)  # element n: how many clients were drawn n times
        self._names: dict[str, set[str]] = {}  # source -> the names of metrics that reporters have received

    def __bool__(self) -> bool:
        return bool(self._workers)

    def begin(self, run: RunInfo) -> None:
        """Tell the reporters that the run begins with round 1."""
        self._tell("begin", run)

    def resume(self, run: RunInfo, round: int) -> None:
        """Tell the reporters that the run continues after a round."""
        self._tell("resume", run, round)

    def round(
        self,
        number: int,
        *,
        record: RoundRecord | None = None,
        name_of: Callable[[int], str] = str,
        metrics: Mapping[str, Any] | None = None,
        train_metrics: Mapping[str, Any] | None = None,
        client_metrics: Mapping[str, Any] | None = None,
        group_metrics: Mapping[str, Mapping[str, Any]] | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        """Tell the reporters about a round.

        ``number``: the round. ``record``: the record of the round; None for round 0. ``name_of``: a function
        that returns the identity of a client, by index. ``metrics``, ``train_metrics``, ``client_metrics``,
        ``group_metrics``, ``traffic``: As in `RoundReport`.
        """
        if not self._workers:
            return
        names = {}
        if record is not None:
            known = {*record.selection.clients.tolist(), *record.quarantined}
            known |= {*record.failures, *record.clipped, *record.in_flight}
            names = {client: printable(name_of(client), LONGEST_NAME) for client in sorted(known)}
        report = RoundReport(
            number,
            record,
            names,
            dict(metrics or {}),
            self._known("train", train_metrics),
            self._known("clients", client_metrics),
            {
                group: self._known(f"group {group}", each)
                for group, each in self._known("groups", group_metrics).items()
            },
            traffic,
            self._participation.copy(),
        )
        for worker in self._workers:
            worker.tell("round", report, may_be_lost=True)

    def _known(self, source: str, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return metrics of one source without new names beyond `MOST_NAMES`: clients choose these names."""
        names = self._names.setdefault(source, set())
        names.update(list((metrics or {}).keys() - names)[: MOST_NAMES - len(names)])
        return {name: each for name, each in (metrics or {}).items() if name in names}

    def end(self, round: int, reason: str = "") -> None:
        """Tell the reporters that the run has ended, and wait until they have finished."""
        self._tell("end", round, printable(reason))
        self._wait()

    def failed(self, round: int, error: BaseException) -> None:
        """Tell the reporters why the run has failed or was stopped, and wait until they have finished."""
        stopped = not isinstance(error, Exception)  # a signal: the process must end soon
        reason = printable(f"{type(error).__name__}: {error}".removesuffix(": "))
        self._tell("stopped" if stopped else "failed", round, reason)
        self._wait(HURRY if stopped else None)

    @contextmanager
    def failing(self, last: Callable[[], int]) -> Iterator[Self]:
        """Call `failed` if the ``with`` block raises an error; ``last`` returns the last completed round."""
        try:
            yield self
        except BaseException as error:
            self.failed(last(), error)
            raise

    def state_dict(self) -> dict[str, NDArray[np.int64]]:
        """Return what a checkpoint must hold; nothing if there are no reporters."""
        return {"draws": self._draws.copy()} if self._workers else {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._draws = np.array(state.get("draws", ()), dtype=np.int64)
        self._participation = np.bincount(self._draws, minlength=1)

    def count(self, record: RoundRecord, num_clients: int) -> None:
        """Count the draws of a round, before its checkpoint is saved; ``num_clients`` are registered."""
        if not self._workers:
            return
        clients, counts = record.selection.clients, record.selection.counts
        new = max(num_clients, int(clients.max(initial=-1)) + 1) - len(self._draws)
        if new > 0:
            self._draws = np.concatenate([self._draws, np.zeros(new, np.int64)])
            self._participation[0] += new
        before = self._draws[clients]
        self._draws[clients] += counts
        after = self._draws[clients]
        longer = int(after.max(initial=0)) + 1 - len(self._participation)
        if longer > 0:
            self._participation = np.concatenate([self._participation, np.zeros(longer, np.int64)])
        np.subtract.at(self._participation, before, 1)
        np.add.at(self._participation, after, 1)

    def _tell(self, what: str, *arguments: Any) -> None:
        for worker in self._workers:
            worker.tell(what, *arguments)

    def _wait(self, longest: float | None = None) -> None:
        began = time.monotonic()
        for worker in self._workers:
            worker.close()
        for worker in self._workers:
            worker.wait(began, longest)


class _Worker:
    """A thread that makes the calls of one reporter, one after another."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter, self._name = reporter, type(reporter).__name__
        self._changed = Condition()
        self._calls: deque[tuple[str, tuple[Any, ...]]] = deque()  # the calls that are still to be made
        self._lost = 0  # rounds that the reporter missed, because too many calls waited
        self._is_closed = False  # whether no further calls will come
        self._is_off = False  # whether the reporter could not begin
        self._has_failed = False
        self._thread: Thread | None = None

    def tell(self, what: str, *arguments: Any, may_be_lost: bool = False) -> None:
        with self._changed:
            if may_be_lost and len(self._calls) >= CAPACITY:
                self._lost += 1
                if self._lost == 1:
                    log(
                        WARNING,
                        "Reporter %s is slow: %d rounds wait for it, and it will miss later rounds",
                        self._name,
                        CAPACITY,
                    )
                return
            self._calls.append((what, arguments))
            self._changed.notify()
        if self._thread is None:
            # A daemon, since a reporter that hangs must not keep the process alive.
            self._thread = Thread(target=self._work, name=f"reporter {self._name}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def wait(self, began: float, longest: float | None) -> None:
        """Wait until the thread has ended, but not for longer than the reporter's patience.

        In the last `LAST` seconds, the rounds that still wait are dropped, so that the last call is made.
        """
        if self._thread is None:
            return
        patience = self._reporter.patience if longest is None else min(longest, self._reporter.patience)
        self._thread.join(max(0.0, began + patience - LAST - time.monotonic()))
        with self._changed:
            kept = [call for call in self._calls if call[0] != "round"]
            self._lost += len(self._calls) - len(kept)
            self._calls.clear()
            self._calls.extend(kept)
        self._thread.join(max(0.0, began + patience - time.monotonic()))
        if self._thread.is_alive():
            log(WARNING, "Reporter %s has not finished within %g s", self._name, patience)
        if self._lost:
            log(WARNING, "Reporter %s was not told about %s", self._name, counted(self._lost, "round"))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._calls and not self._is_closed:
                    self._changed.wait()
                if not self._calls:
                    return
                what, arguments = self._calls.popleft()
            if not self._is_off:
                self._make(what, arguments)

    def _make(self, what: str, arguments: tuple[Any, ...]) -> None:
        try:
            getattr(self._reporter, what)(*arguments)
        except BaseException as error:  # a tracker may also call sys.exit
            self._is_off = what in ("begin", "resume")
            if not self._has_failed:
                self._has_failed = True
                then = "it is left out" if self._is_off else "its further failures are not logged"
                log(
                    WARNING,
                    "Reporter %s failed in %s: %s; the run goes on, and %s",
                    self._name,
                    what,
                    printable(f"{type(error).__name__}: {error}"),
                    then,
                )
