"""Keeps one program running: the loop that all supervisors share.

A supervisor stays in memory beside a client on small devices, so this file uses the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

_AFTER_OUTPUT = 0.05  # s between two checks whether a program that closed its output has ended


class Supervisor(ABC):
    """Starts a program again whenever it ends, until `stop` is called, and leaves no process behind.

    Subclasses define what to run (`command`) and how long to wait before the next start (`ended`); the other
    hooks are optional. All hooks are called in the thread of `run`.
    """

    grace = 5.0
    """Seconds that the program has to end by itself."""
    look = 1.0
    """Seconds between two calls of `check`."""

    def __init__(self) -> None:
        self.stopping = False
        self._restarting = False
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)

    # --- hooks ----------------------------------------------------------------------------------------

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command to run; called before each start."""

    @abstractmethod
    def ended(self, code: int | None) -> float:
        """Return the seconds until the next start.

        Parameters
        ----------
        code : int | None
            The program's exit code; None if `may_start` prevented the start.
        """

    def environment(self) -> Mapping[str, str] | None:
        """Return the program's environment, None for this process's own."""
        return None

    def may_start(self) -> bool:
        """Tell whether the program can be started now."""
        return True

    def output(self) -> int:
        """Return the descriptor for the program's output; by default `line` receives it."""
        return subprocess.PIPE

    def started(self, program: subprocess.Popen[bytes]) -> None:  # noqa: B027 - optional
        """Receive the program that was just started."""

    def line(self, line: bytes) -> None:  # noqa: B027 - optional
        """Receive a line that the program printed, without its end."""

    def check(self) -> bool:
        """Tell whether the program may go on; called every `look` seconds while it runs."""
        return True

    def ask(self, program: subprocess.Popen[bytes]) -> None:
        """Ask the program to end: by default with SIGTERM for its process group."""
        os.killpg(program.pid, signal.SIGTERM)

    def clean_up(self, program: subprocess.Popen[bytes]) -> None:
        """Kill what is left of the program: by default its process group.

        The program has not been reaped yet, so the id of the group is still its own.
        """
        os.killpg(program.pid, signal.SIGKILL)

    # --- the loop -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Keep the program running; return when `stop` was called and the program has ended."""
        while not self.stopping:
            code = self._run_once() if self.may_start() else None
            if not self.stopping:
                self._pause(self.ended(code))

    def stop(self) -> None:
        """End the program, and then the loop. Any thread and any signal handler may call it."""
        self.stopping = True
        self._wake_up()

    def restart(self) -> None:
        """End the program; the loop starts it again. Any thread may call it."""
        self._restarting = True
        self._wake_up()

    def stop_at(self, *numbers: signal.Signals) -> None:
        """Let these signals stop the loop."""
        for number in numbers:
            signal.signal(number, lambda *_: self.stop())

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full: a wake-up is pending anyway
            self._wake.send(b"\0")

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.stopping and (left := end - time.monotonic()) > 0:
            if select.select([self._woken], [], [], left)[0]:
                self._woken.recv(4096)

    def _run_once(self) -> int:
        """Run the program to its end; return its exit code."""
        self._restarting = False
        program = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=self.output(),
            stderr=subprocess.STDOUT,
            env=self.environment(),
            start_new_session=True,  # the program leads a process group of its own
        )
        try:
            self.started(program)
            self._follow(program)
        finally:
            self._end(program)
        return program.returncode

    def _follow(self, program: subprocess.Popen[bytes]) -> None:
        """Return when the program has ended, or when it must be ended."""
        output = program.stdout
        watched: list[socket.socket | IO[bytes]] = [self._woken, *([output] if output else [])]
        unfinished = b""
        checked = time.monotonic()
        while not (self.stopping or self._restarting):
            # Children of the program may hold its output open: then the output ends after the program.
            gone = _has_ended(program)
            wait = 0 if gone else self.look if output is None or output in watched else _AFTER_OUTPUT
            readable = select.select(watched, [], [], wait)[0]
            if self._woken in readable:
                self._woken.recv(4096)
            if output and output in readable:
                if part := os.read(output.fileno(), 65536):
                    *lines, unfinished = (unfinished + part).split(b"\n")
                    for line in lines:
                        self.line(line)
                    continue
                watched.remove(output)
            if gone:
                break
            if time.monotonic() - checked >= self.look:
                checked = time.monotonic()
                if not self.check():
                    break
        if unfinished:
            self.line(unfinished)

    def _end(self, program: subprocess.Popen[bytes]) -> None:
        """End the program and what is left of it."""
        with contextlib.suppress(ProcessLookupError):
            if not _has_ended(program):
                self.ask(program)
            end = time.monotonic() + self.grace
            while time.monotonic() < end and not _has_ended(program):
                time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            self.clean_up(program)
        program.kill()
        program.wait()
        if program.stdout is not None:
            program.stdout.close()


def _has_ended(program: subprocess.Popen[bytes]) -> bool:
    """Tell whether a child has ended, without reaping it: the number of its group stays taken."""
    return os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
