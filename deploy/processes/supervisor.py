"""The base class of all supervisors: it runs one program, and starts it again whenever it ends."""

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

AFTER_ERROR = 2.0  # s to wait after an error of `PASSING`, before the program is started again
# Temporary errors: the disk is full or broken, or the system lacks memory, processes or files.
PASSING = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS),
    *(errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE),
}
_AFTER_OUTPUT = 0.05  # s between two checks whether a program has ended, once it has closed its output


class Supervisor(ABC):
    """Runs a program, and starts it again whenever it ends, until `stop` is called.

    After each end of the program, `clean_up` kills the processes that the program has left behind. Subclasses
    must define the hooks `command` and `ended`. All hooks are called in the thread of `run`.
    """

    grace = 5.0
    """Seconds to wait for the program's end after `ask`, before `clean_up` kills what is left."""
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
        """Return the program's name and arguments. Called before each start."""

    @abstractmethod
    def ended(self, code: int | None) -> float:
        """Return how many seconds to wait before the next start.

        Called after each end of the program, and each time that `may_start` has prevented a start, but not
        after `stop`.
        """

    def environment(self) -> Mapping[str, str] | None:
        """Return the program's environment, or None for this process's environment."""
        return None

    def working_folder(self) -> Path | None:
        """Return the program's working directory, or None for this process's working directory."""
        return None

    def may_start(self) -> bool:
        """Tell whether the program can be started now."""
        return True

    def output(self) -> int:
        """Return the file descriptor for the program's output. By default, `line` receives the output."""
        return subprocess.PIPE

    def started(self, program: subprocess.Popen[bytes]) -> None:  # noqa: B027 - optional
        """Receive the program that was just started."""

    def line(self, line: bytes) -> None:  # noqa: B027 - optional
        """Receive a line that the program printed, without its newline."""

    def check(self) -> bool:
        """Tell whether the program may go on running. Called every `look` seconds."""
        return True

    def ask(self, program: subprocess.Popen[bytes]) -> None:
        """Ask the program to end: by default, send SIGTERM to its process group."""
        os.killpg(program.pid, signal.SIGTERM)

    def clean_up(self, program: subprocess.Popen[bytes]) -> None:
        """Kill what is left of the program: by default, send SIGKILL to its process group.

        Called before the program is reaped, while no other process group can have the same id.
        """
        os.killpg(program.pid, signal.SIGKILL)

    # --- the loop -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Keep the program running. Return once `stop` has been called and the program has ended.

        If a hook or the start of the program fails with an error of `PASSING`, the program is started again.
        """
        while not self.stopping:
            pause = AFTER_ERROR
            try:
                code = self._run_once() if self.may_start() else None
                if not self.stopping:
                    pause = self.ended(code)
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                with contextlib.suppress(OSError):  # the output may be on the same disk
                    print(f"{type(self).__name__}: {error}; trying again", file=sys.stderr, flush=True)
            self._pause(pause)

    def stop(self) -> None:
        """End the program, and then the loop. Threads and signal handlers may call this method."""
        self.stopping = True
        self._wake_up()

    def restart(self) -> None:
        """End the program; the loop then starts it again. Any thread may call this method."""
        self._restarting = True
        self._wake_up()

    def stop_at(self, *numbers: signal.Signals) -> None:
        """Call `stop` whenever one of these signals arrives."""
        for number in numbers:
            signal.signal(number, lambda *_: self.stop())

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the socket is full: a wake-up is pending anyway
            self._wake.send(b"\0")

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.stopping and (left := end - time.monotonic()) > 0:
            if select.select([self._woken], [], [], left)[0]:
                self._woken.recv(4096)

    def _run_once(self) -> int:
        """Run the program once; return its exit code."""
        self._restarting = False
        program = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=self.output(),
            stderr=subprocess.STDOUT,
            env=self.environment(),
            cwd=self.working_folder(),
            start_new_session=True,  # the program leads a process group of its own
        )
        try:
            self.started(program)
            self._follow(program)
        finally:
            self._end(program)
        return program.returncode

    def _follow(self, program: subprocess.Popen[bytes]) -> None:
        """Pass on the program's output. Return when the program has ended, or when it must be ended."""
        output = program.stdout
        watched: list[socket.socket | IO[bytes]] = [self._woken, *([output] if output else [])]
        unfinished = b""
        checked = time.monotonic()
        while not (self.stopping or self._restarting):
            # The output may end later than the program, because children of the program can hold it open.
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
                else:
                    watched.remove(output)
            elif gone:
                break
            if time.monotonic() - checked >= self.look:
                checked = time.monotonic()
                if not self.check():
                    break
        if unfinished:
            self.line(unfinished)

    def _end(self, program: subprocess.Popen[bytes]) -> None:
        """Ask the program to end, wait up to `grace` seconds, then kill what is left, children included."""
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
    """Tell whether a program has ended, without reaping it, so that its process group keeps its id."""
    return os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
