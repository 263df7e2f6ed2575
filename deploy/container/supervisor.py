"""Keeps one of Flower's programs running in a container.

Flower's programs end when they are refused, and a killed SuperNode is refused for about a minute, until the
SuperLink has noticed. Docker would restart the container ever more rarely; the supervisor restarts only the
program, at a pace that fits the reason.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

from deploy.container import READY
from deploy.processes.groups import processes_with
from deploy.processes.supervisor import Supervisor

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

MARK = "COHORT_CONTAINER"  # the environment variable that marks the program and its children
PAUSE = 5.0  # seconds before a program is started again
PATIENCE = 100.0  # seconds in which it may fail again and again for reasons that pass by themselves
LONG_PAUSE = 30.0  # seconds, after that


def say(text: str) -> None:
    """Print a line of the supervisor's own."""
    print(f"cohort: {text}", flush=True)


class ContainerSupervisor(Supervisor):
    """Runs a program until the container is stopped (SIGTERM, SIGINT).

    Parameters
    ----------
    command : Callable[[], Sequence[str]]
        Returns the command to run; called before each start.
    ready_line : str
        The program is ready when it has printed a line that contains this.
    on_ready : Callable[[], None]
        Called then, before the container counts as healthy. If it raises, the program is started again.
    hidden : Callable[[bytes], bool]
        Tells which of its lines are not printed.
    """

    grace = 4.0  # Docker gives the container 10 s
    look = 0.25

    def __init__(
        self,
        command: Callable[[], Sequence[str]],
        *,
        ready_line: str,
        on_ready: Callable[[], None] = lambda: None,
        hidden: Callable[[bytes], bool] = lambda line: False,
    ) -> None:
        super().__init__()
        self._command = command
        self._ready_line = ready_line.encode()
        self._on_ready = on_ready
        self._hidden = hidden
        self._mark = f"{socket.gethostname()}-{os.getpid()}"
        self._waiting = True  # for the ready line
        self._ready = threading.Event()
        self._was_ready = False
        self._failing_since: float | None = None

    def supervise(self) -> int:
        """Run until the container is stopped; return the exit code."""
        self.stop_at(signal.SIGTERM, signal.SIGINT)
        self.run()
        return 0

    def command(self) -> Sequence[str]:
        self._waiting, self._ready = True, threading.Event()
        return self._command()

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, MARK: self._mark}

    def line(self, line: bytes) -> None:
        if not self._hidden(line):
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()
        if self._waiting and self._ready_line in line:
            self._waiting = False
            # In another thread: a program whose output nobody reads stops when the pipe is full.
            threading.Thread(target=self._become_ready, args=(self._ready,), daemon=True).start()

    def _become_ready(self, ready: threading.Event) -> None:
        """Do what comes first, then report that the program is ready."""
        try:
            self._on_ready()
        except Exception as error:
            say(f"{type(error).__name__}: {error}")
            if ready is self._ready:
                self.restart()
            return
        ready.set()
        READY.touch()
        if ready is not self._ready:  # the program has ended meanwhile
            READY.unlink(missing_ok=True)

    def ask(self, program: subprocess.Popen[bytes]) -> None:
        # Only the program: a ServerApp that received SIGTERM would end its run as failed, and not be resumed.
        program.terminate()

    def clean_up(self, program: subprocess.Popen[bytes]) -> None:
        """Kill the program and its children, which may outlive it in groups of their own."""
        self._ready, was_ready = threading.Event(), self._ready
        READY.unlink(missing_ok=True)
        for pid in processes_with(MARK, self._mark):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        self._was_ready = was_ready.is_set()

    def ended(self, code: int | None) -> float:
        if self._failing_since is None or self._was_ready:
            self._failing_since = time.monotonic()
        pause = PAUSE if time.monotonic() - self._failing_since < PATIENCE else LONG_PAUSE
        what = "it" if self._was_ready else "it did not become ready and"
        say(f"{what} ended with code {code}; it is started again in {pause:g} s")
        return pause
