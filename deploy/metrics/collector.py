"""Reads the numbers of a server and of its runs again and again, in a thread of its own."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from deploy.metrics.exposition import Sample, exposition
from deploy.metrics.readiness import TIMEOUT, Readiness, SuperLink
from deploy.metrics.run_metrics import Runs

INTERVAL = 2.0  # s between two reads of the histories
DEVICES = 10.0  # s between two reads of the number of devices of each front end
OLDEST = 1.0  # s for which the same text answers all requests, so that many requests cost little
STALLED = 60.0  # s; if one step of the thread takes longer, the metrics count as no longer collected


@dataclass(frozen=True)
class Sources:
    """Where the numbers come from."""

    runs: Path
    """The folder with the runs' folders."""
    superlink: SuperLink
    """The server's SuperLink."""
    starts: Callable[[], Mapping[str, int]] = field(default=dict)
    """Returns how often each program of the server was started, under the program's name."""
    devices: Callable[[], Mapping[str, int]] = field(default=dict)
    """Returns how many devices are connected to each front end of the server, if it has several."""


class Collector:
    """Reads the sources again and again inside a `with` block, and keeps the latest numbers."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._runs = Runs(sources.runs)
        self._began = time.time()
        self._lock = threading.Lock()  # held while `_runs` is read or changed
        self._readiness = Readiness(sources.superlink)
        self._devices: Mapping[str, int] = {}
        self._counted = -DEVICES  # when they were counted (time.monotonic(), s)
        self._error = ""  # why the last step of the thread failed
        self._came_back = time.monotonic()  # when the thread's last step ended, s
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
            except Exception as error:  # the thread must go on reading the numbers
                self._error = f"the metrics cannot be collected: {type(error).__name__}: {error}"
            else:
                self._error = ""
            self._came_back = time.monotonic()
            self._stop.wait(INTERVAL)

    def step(self) -> None:
        """Read the histories; ask the SuperLink too, unless it was asked a few seconds ago."""
        with self._lock:
            self._runs.step()
        self._readiness.step()
        if time.monotonic() - self._counted >= DEVICES:
            self._counted, self._devices = time.monotonic(), {}
            self._devices = self._sources.devices()

    def problem(self) -> str:
        """Return why the server is not ready for devices and runs; "" if it is ready."""
        return self._error or self._readiness.problem

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
        yield Sample("cohort_superlink_up", not self._readiness.problem)
        for program, count in self._sources.starts().items():
            yield Sample("cohort_program_starts_total", count, (program,))
        for state, count in (self._readiness.nodes or {}).items():
            yield Sample("cohort_nodes", count, (state,))
        for front_end, count in self._devices.items():
            yield Sample("cohort_front_end_nodes", count, (front_end,))
        with self._lock:
            yield from list(self._runs.samples())
