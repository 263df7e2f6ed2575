"""Reads the numbers of a server and of its runs again and again, in a thread of its own."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from deploy.metrics.exposition import Sample, exposition
from deploy.metrics.run_metrics import Runs
from deploy.metrics.superlink_nodes import count_nodes
from deploy.tls.probe import unreachable

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

INTERVAL = 2.0  # s between two reads of the histories
PROBE_INTERVAL = 10.0  # s between two connections to the SuperLink
NODES_INTERVAL = 30.0  # s between two requests for the nodes; the SuperLink logs each request
TIMEOUT = 5.0  # s that the SuperLink may take to answer
OLDEST = 1.0  # s for which the same text answers all requests, so that many requests cost little
STALLED = 60.0  # s; if one step of the thread takes longer, the metrics count as no longer collected


@dataclass(frozen=True)
class Sources:
    """Where the numbers come from."""

    runs: Path
    """The folder with the runs' folders."""
    control: str
    """HOST:PORT of the SuperLink's control API."""
    fleet: str
    """HOST:PORT of the SuperLink's Fleet API."""
    fleet_name: str
    """The name or address for which the certificate of the Fleet API must be valid."""
    authority: Path
    """The certificate of the authority that signed the SuperLink's certificate."""
    secret: Path
    """The file with the secret that the control API demands."""
    starts: Callable[[], Mapping[str, int]] = field(default=dict)
    """Returns how often each program of the server was started, under the program's name."""


class Collector:
    """Reads the sources again and again inside a `with` block, and keeps the latest numbers.

    Parameters
    ----------
    sources : Sources
        Where the numbers come from.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._runs = Runs(sources.runs)
        self._began = time.time()
        self._lock = threading.Lock()  # held while `_runs` is read or changed
        self._nodes: Counter[str] | None = None  # the SuperLink's last answer; None if it did not answer
        self._problem = "the SuperLink has not been asked yet"  # why the server is not ready
        self._probed = self._asked = -NODES_INTERVAL  # time.monotonic(), s
        self._came_back = time.monotonic()
        self._text, self._written = "", -OLDEST
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT)

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self.step()
            except Exception as error:  # a number that cannot be read must not end the others
                self._problem = f"the metrics cannot be collected: {type(error).__name__}: {error}"
            self._came_back = time.monotonic()
            self._stop.wait(INTERVAL)

    def step(self) -> None:
        """Read all sources once."""
        with self._lock:
            self._runs.step()
        if time.monotonic() - self._probed >= PROBE_INTERVAL:
            self._probed = time.monotonic()
            self._problem = self._probe()

    def _probe(self) -> str:
        """Return why the SuperLink is not ready, "" if it is; count its nodes once in `NODES_INTERVAL`."""
        each = self._sources
        for who, server, name in (
            ("the operator", each.control, None),
            ("devices", each.fleet, each.fleet_name),
        ):
            if problem := unreachable(server, each.authority, TIMEOUT, name):
                self._nodes = None
                return f"the SuperLink does not answer {who}: {problem}"
        if self._nodes is None or time.monotonic() - self._asked >= NODES_INTERVAL:
            try:
                self._nodes = count_nodes(each.control, each.authority, each.secret, TIMEOUT)
            except (OSError, ValueError) as error:
                self._nodes = None
                return f"the SuperLink does not list its nodes: {error}"
            self._asked = time.monotonic()
        return ""

    def problem(self) -> str:
        """Return why the server is not ready for devices and runs; "" if it is ready."""
        return self._problem

    def is_alive(self) -> bool:
        """Tell whether the numbers are still collected."""
        return self._thread.is_alive() and time.monotonic() - self._came_back < STALLED

    def text(self) -> str:
        """Return all samples in Prometheus's text format; the text is made once a second at most."""
        now = time.monotonic()
        if now - self._written >= OLDEST:
            self._text, self._written = exposition(self._samples()), now
        return self._text

    def _samples(self) -> Iterator[Sample]:
        yield Sample("cohort_metrics_start_time_seconds", self._began)
        yield Sample("cohort_superlink_up", not self._problem)
        for program, count in self._sources.starts().items():
            yield Sample("cohort_program_starts_total", count, (program,))
        for state, count in (self._nodes or {}).items():
            yield Sample("cohort_nodes", count, (state,))
        with self._lock:
            yield from list(self._runs.samples())
