"""Process groups: starting, finding and ending processes together with all their children.

The watchdog (`deploy.processes.watchdog`) imports this file: it uses the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

POLL_INTERVAL = 0.05  # seconds between two checks of a condition
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
LOST = 75  # exit code: try again (EX_TEMPFAIL)


class Forks(Protocol):
    """A server that forks processes; see `deploy.flower.forking.ForkServer`."""

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        output: tuple[int, int] = (1, 2),
        own_session: bool = False,
    ) -> int:
        """Start a command and return its process id."""

    def returncode(self, pid: int) -> int | None:
        """Return a process's exit code, None while it runs."""


class Process:
    """A command that runs in a session of its own, with its output in a log file.

    The session keeps the terminal's Ctrl-C away from the process, so that its starter decides when it ends.
    It also makes one process group of the process and its children, which can be ended at once.

    Parameters
    ----------
    command : Sequence[str]
        The program's name (looked up on the PATH of `env`) and its arguments.
    log : Path
        The program's output is appended to it.
    env : Mapping[str, str]
        Its whole environment.

    Raises
    ------
    FileNotFoundError
        If there is no such program.
    """

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        program = shutil.which(command[0], path=env["PATH"])
        if program is None:
            raise FileNotFoundError(f"{command[0]}: no such program; is Flower (flwr 1.39) installed?")
        with log.open("ab") as output:
            popen = subprocess.Popen(
                [program, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        self.pid = popen.pid
        self._poll: Callable[[], int | None] = popen.poll

    @classmethod
    def forked(cls, command: Sequence[str], log: Path, env: Mapping[str, str], server: Forks) -> Process:
        """Let a fork server run the command, also in a session of its own.

        Raises
        ------
        deploy.flower.forking.Gone
            If the server has ended.
        """
        process = cls.__new__(cls)
        process.log = log
        with log.open("ab") as output:
            both = (output.fileno(), output.fileno())
            pid = process.pid = server.run(command, environment=env, output=both, own_session=True)
        process._poll = lambda: server.returncode(pid)
        return process

    @property
    def returncode(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self._poll()

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children, also to those that outlived it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for zombies
            os.killpg(self.pid, number)

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of the log."""
        return tail(self.log, lines)


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def stop(
    processes: Iterable[Process], grace: float, marked: Callable[[], Sequence[int]] = lambda: ()
) -> None:
    """End processes and their groups with SIGTERM, and after `grace` seconds with SIGKILL.

    The group of a process that has ended gets no signal unless a process of `marked` is in it: its number may
    by now belong to another program's group.
    """
    ours = set()
    for pid in marked():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            ours.add(os.getpgid(pid))
    running = [process for process in processes if process.returncode is None or process.pid in ours]
    for process in running:
        process.signal_group(signal.SIGTERM)
    wait_until(lambda: all(process.returncode is not None for process in running), grace)
    for process in running:
        process.signal_group(signal.SIGKILL)  # also the children that outlived their parent
    wait_until(lambda: all(process.returncode is not None for process in running), grace)


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Check until `condition` holds or `timeout` seconds have passed; return whether it holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL)
    return True


def processes_with(variable: str, value: str) -> list[int]:
    """Find the processes whose environment has `variable` set to `value`: a mark that children inherit.

    It also finds processes that left their group or lost their parent. Linux only (it reads /proc); elsewhere
    the list is empty.
    """
    mark = os.fsencode(f"{variable}={value}")
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is another user's, or has ended
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def end_with_parent() -> None:
    """Let the kernel send this process SIGTERM when its parent ends, however it ends (Linux)."""
    parent = os.getppid()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent ended before the call
            sys.exit(LOST)
