"""Processes found by a mark in their environment, and ended even if their owner is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING

from deploy.processes.groups import Process, processes_with, stop, wait_until
from deploy.processes.watchdog import watchdog_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


class MarkedProcesses:
    """Processes that carry a mark in their environment, which their children inherit.

    Parameters
    ----------
    variable, value : str
        The mark: an environment variable, and its value for these processes.
    scratch : Path
        A folder that only they need.
    """

    def __init__(self, variable: str, value: str, scratch: Path) -> None:
        self.mark = {variable: value}
        self._variable, self._value, self._scratch = variable, value, scratch
        self._watchdog: Process | None = None

    def watch(self, log: Path, env: Mapping[str, str]) -> None:
        """Start the watchdog: if this process dies, it kills them and removes the scratch folder (Linux)."""
        if sys.platform == "linux":
            command = watchdog_command(self._variable, self._value, self._scratch)
            self._watchdog = Process(command, log, {**env, **self.mark})

    def pids(self) -> list[int]:
        """Return the ids of the running ones, without the watchdog's (Linux; elsewhere none)."""
        watchdog = self._watchdog.pid if self._watchdog else None
        return [pid for pid in processes_with(self._variable, self._value) if pid != watchdog]

    def end(self, known: Iterable[Process], grace: float, *, last: Iterable[Process] = ()) -> None:
        """End all of them, remove the scratch folder, and end the watchdog. A second call does nothing.

        Parameters
        ----------
        known : Iterable[Process]
            The processes that are asked to end first; their groups are killed after `grace` seconds.
        grace : float
            Seconds.
        last : Iterable[Process]
            Processes that are ended after the others: their parents, which report how those ended.
        """
        try:
            stop(known, grace, self.pids)
            stop(last, grace)
            # Flower's processes with groups of their own end by themselves when they miss their parent.
            wait_until(lambda: not self.pids(), grace)
        finally:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not self.pids(), grace)
            shutil.rmtree(self._scratch, ignore_errors=True)
            self.end_watchdog(grace)

    def end_watchdog(self, grace: float) -> None:
        """End the watchdog alone."""
        if self._watchdog is not None:
            stop([self._watchdog], grace)
