"""Keeps one of Flower's programs running.

Flower's programs end when they are refused, and a SuperNode that was killed is refused for about a minute,
until the SuperLink has noticed. Docker would start the container anew, ever more rarely; here the program
alone is started again, at a pace that fits the reason.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from deploy.container import READY
from deploy.processes.groups import processes_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

MARK = "COHORT_CONTAINER"  # the environment variable by which what was started is known; children inherit it
PAUSE = 5.0  # seconds before a program is started again
PATIENCE = 100.0  # seconds in which it may fail again and again for reasons that go away by themselves
LONG_PAUSE = 30.0  # seconds, after that
GRACE = 4.0  # seconds that a program has to end by itself; Docker gives the container 10


def say(text: str) -> None:
    """Print a line of the supervisor's own."""
    print(f"cohort: {text}", flush=True)


class Supervisor:
    """Runs a program until it is told to stop (SIGTERM, SIGINT), and cleans up behind it each time.

    Parameters
    ----------
    command : Callable[[], Sequence[str]]
        Called before each start: what to run.
    ready_line : str
        The program is ready when it has printed a line with this in it.
    on_ready : Callable[[], None]
        What to do then, before the container counts as healthy. If it raises, the program is started again.
    hidden : Callable[[bytes], bool]
        Which of its lines are not worth printing.
    """

    def __init__(
        self,
        command: Callable[[], Sequence[str]],
        *,
        ready_line: str,
        on_ready: Callable[[], None] = lambda: None,
        hidden: Callable[[bytes], bool] = lambda line: False,
    ) -> None:
        self._command = command
        self._ready_line = ready_line
        self._on_ready = on_ready
        self._hidden = hidden
        self._mark = f"{socket.gethostname()}-{os.getpid()}"
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Return when told to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        failing_since: float | None = None
        while not self._stopping.is_set():
            code, was_ready = self._run_once()
            if self._stopping.is_set():
                break
            if failing_since is None or was_ready:
                failing_since = time.monotonic()
            pause = PAUSE if time.monotonic() - failing_since < PATIENCE else LONG_PAUSE
            what = "it" if was_ready else "it did not become ready and"
            say(f"{what} ended with code {code}; it is started again in {pause:g} s")
            self._stopping.wait(pause)
        return 0

    def _run_once(self) -> tuple[int, bool]:
        """Run the program to its end; return its exit code and whether it was ready."""
        environment = {**os.environ, MARK: self._mark}
        ready = threading.Event()
        try:
            self._process = process = subprocess.Popen(
                self._command(), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            if self._stopping.is_set():  # told to while it was being started
                process.terminate()
            # A thread of its own: what the program leaves behind may keep the pipe open.
            threading.Thread(target=self._forward, args=(process, ready), daemon=True).start()
            return process.wait(), ready.is_set()
        finally:
            READY.unlink(missing_ok=True)
            self._process = None
            self._clean_up()

    def _forward(self, process: subprocess.Popen[bytes], ready: threading.Event) -> None:
        """Print what the program prints, and notice when it is ready."""
        assert process.stdout is not None
        waiting = True
        for line in process.stdout:
            if not self._hidden(line):
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            if waiting and self._ready_line.encode() in line:
                waiting = False
                # Not in this thread: a program whose output nobody reads stops when the pipe is full.
                threading.Thread(target=self._become_ready, args=(process, ready), daemon=True).start()

    def _become_ready(self, process: subprocess.Popen[bytes], ready: threading.Event) -> None:
        """Do what is to be done first, then say that it is ready."""
        try:
            self._on_ready()
        except Exception as error:
            say(f"{type(error).__name__}: {error}")
            process.terminate()
            return
        ready.set()
        READY.touch()
        if process.poll() is not None:  # it may have ended in between
            READY.unlink(missing_ok=True)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping.set()
        process = self._process
        if process is None:
            return
        process.terminate()
        insist = threading.Timer(GRACE, process.kill)
        insist.daemon = True
        insist.start()

    def _clean_up(self) -> None:
        """End what the program left behind: its helpers outlive it by a while, or for good."""
        for pid in processes_with(MARK, self._mark):
            with contextlib.suppress(ProcessLookupError):  # it is gone by now
                os.kill(pid, signal.SIGKILL)
