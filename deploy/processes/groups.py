"""Processes that can be found again, and ended together with all that they started.

Run as a script it is the watchdog of such processes (see `watchdog_command`), for which the standard
library must suffice.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from deploy.flower.fork_server import Connection

POLL_INTERVAL = 0.05  # seconds between two looks at a condition
LOOPBACK = "127.0.0.1"
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
LOST = 75  # exit code: try again (EX_TEMPFAIL)


class Process:
    """A command that runs in a session of its own, its output in a log file.

    A session of its own keeps the terminal's Ctrl-C away from it, so that whoever started it decides
    when it ends, and makes one process group of it and its children, which can be ended at once.

    Parameters
    ----------
    command : Sequence[str]
        The program's name (looked up on the PATH of `env`) and its arguments.
    log : Path
        What the program prints goes here (appended).
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
    def forked(cls, command: Sequence[str], log: Path, env: Mapping[str, str], server: Connection) -> Process:
        """Let a `deploy.flower.fork_server` server run the command, in a session of its own too.

        Raises
        ------
        deploy.flower.fork_server.Gone
            If there is no server any more.
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
        """What the process exited with, or None while it runs."""
        return self._poll()

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and the children it has left, if there are any."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says EPERM for zombies
            os.killpg(self.pid, number)

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def stop(
    processes: Iterable[Process], grace: float, marked: Callable[[], Sequence[int]] = lambda: ()
) -> None:
    """End processes and their groups: ask first, and insist after `grace` seconds.

    The group of a process that has ended is left alone unless a process of `marked` is in it: by now its
    number may be that of a stranger's.
    """
    ours = set()
    for pid in marked():
        with contextlib.suppress(ProcessLookupError):  # it is gone by now
            ours.add(os.getpgid(pid))
    running = [process for process in processes if process.returncode is None or process.pid in ours]
    for process in running:
        process.signal_group(signal.SIGTERM)
    wait_until(lambda: all(process.returncode is not None for process in running), grace)
    for process in running:
        process.signal_group(signal.SIGKILL)  # also the children that outlived their parent
    wait_until(lambda: all(process.returncode is not None for process in running), grace)


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Look until `condition` holds or `timeout` seconds have gone by; return whether it holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL)
    return True


def processes_with(variable: str, value: str) -> list[int]:
    """Find the processes whose environment has `variable` set to `value`: a mark that children inherit.

    It finds those that left their group or lost their parent. Linux only (it reads /proc); elsewhere
    the list is empty.
    """
    mark = os.fsencode(f"{variable}={value}")
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is not ours, or it is gone by now
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def end_with_parent() -> None:
    """Let this process be asked to end (SIGTERM) when its parent is gone, however that ends (Linux)."""
    parent = os.getppid()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it went before it could be asked for
            sys.exit(LOST)


def free_ports(count: int) -> list[int]:
    """Pick TCP ports of the loopback interface that nothing listens on."""
    with contextlib.ExitStack() as held:  # all are held until the last is picked: no port comes twice
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]


def is_free(port: int) -> bool:
    """Tell whether a server could listen on this port of the loopback interface."""
    with socket.socket() as probe:
        # As servers do: a port whose last connections are only fading out counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def watchdog_command(variable: str, value: str, folder: Path) -> list[str]:
    """Return the command that waits until the calling process is gone, and then cleans up after it.

    It kills all processes whose environment has `variable` set to `value`, and removes `folder`: what is
    left to do when their owner had no chance to (kill -9). Linux only, as `processes_with`.
    """
    this = str(Path(__file__).resolve())
    return [sys.executable, "-IS", this, str(os.getpid()), variable, value, str(folder)]


def _watch(owner: int, variable: str, value: str, folder: str) -> None:
    while os.getppid() == owner:
        time.sleep(10 * POLL_INTERVAL)
    while left := [pid for pid in processes_with(variable, value) if pid != os.getpid()]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):  # it is gone by now
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_INTERVAL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), *sys.argv[2:])
