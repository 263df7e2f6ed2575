"""Finds and ends processes by a mark in their environment."""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from deploy.processes.groups import Process, processes_with, stop, wait_until
from deploy.processes.watchdog import watchdog_command


class MarkedProcesses:
    """Processes that have a mark in their environment. Their children inherit the mark.

    `variable`, `value`: the mark: the name of an environment variable, and its value for these processes.
    `scratch`: a folder that only these processes need. It is removed once they have ended.
    """

    def __init__(self, variable: str, value: str, scratch: Path) -> None:
        self.mark = {variable: value}
        self._variable, self._value, self._scratch = variable, value, scratch
        self._watchdog: Process | None = None

    def watch(self, log: Path, env: Mapping[str, str]) -> None:
        """Start the watchdog (Linux only; elsewhere do nothing).

        When this process ends, even by SIGKILL, the watchdog kills the marked processes and removes the
        scratch folder.
        """
        if sys.platform == "linux":
            command = watchdog_command(self._variable, self._value, self._scratch)
            self._watchdog = Process(command, log, {**env, **self.mark})

    def pids(self) -> list[int]:
        """Return the ids of the marked processes, except the watchdog (Linux only; elsewhere none)."""
        watchdog = self._watchdog.pid if self._watchdog else None
        return [pid for pid in processes_with(self._variable, self._value) if pid != watchdog]

    def end_named(self, name: str, number: signal.Signals, grace: float) -> None:
        """Ask the marked processes with this name to end, and wait (Linux only; elsewhere do nothing).

        `name`: the name of a program, at most 15 characters, as ``ps -o comm`` shows it. `number`: the signal
        that asks them to end. `grace`: seconds that the processes may take to end. They are not killed.
        """
        asked = set()
        for pid in self.pids():
            with contextlib.suppress(OSError):  # the process has ended meanwhile
                if Path(f"/proc/{pid}/comm").read_text() == f"{name}\n":
                    os.kill(pid, number)
                    asked.add(pid)
        wait_until(lambda: asked.isdisjoint(self.pids()), grace)

    def end(self, known: Iterable[Process], grace: float, *, last: Iterable[Process] = ()) -> None:
        """End the marked processes, remove the scratch folder, and end the watchdog.

        A second call does nothing.

        `known`: the processes that get SIGTERM first. Their groups are killed after `grace` seconds. `grace`:
        seconds that each step may take. `last`: the parents of `known`, such as the fork server. They end
        later, because they report the exit codes of `known`.
        """
        try:
            stop(known, grace, self.pids)
            stop(last, grace)
            # Processes of Flower in other groups end by themselves once their parent is gone.
            wait_until(lambda: not self.pids(), grace)
        finally:
            self.kill(grace)
            shutil.rmtree(self._scratch, ignore_errors=True)
            self.end_watchdog(grace)

    def kill(self, grace: float) -> None:
        """Kill the marked processes, except the watchdog, and wait up to `grace` seconds for their end."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):  # the process has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.pids(), grace)

    def end_watchdog(self, grace: float) -> None:
        """End the watchdog only. It is killed if it has not ended after `grace` seconds."""
        if self._watchdog is not None:
            stop([self._watchdog], grace)
