"""Process groups: starting, finding and ending processes together with all their children."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

POLL_INTERVAL = 0.05  # seconds between two checks of a condition
PR_SET_PDEATHSIG = 1  # the option of `prctl` that `end_with_parent` sets (<linux/prctl.h>)
LOST = 75  # exit code of a program that lost its parent or its connection (EX_TEMPFAIL: try again)


class Process:
    """A command that runs in a session of its own, with its output in a log file.

    Ctrl-C in the terminal does not reach this session. The process and its children also form one process
    group, so one signal can end them all.

    `command`: the program's name (looked up on the PATH of `env`) and its arguments. `log`: the log file. The
    program's output is appended to this file. `env`: the whole environment of the program. It must contain
    PATH.

    Raises FileNotFoundError if there is no such program.
    """

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        program = shutil.which(command[0], path=env["PATH"])
        if program is None:
            raise FileNotFoundError(f"{command[0]}: no such program; is Flower (flwr) installed?")
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
    def forked(cls, pid: int, poll: Callable[[], int | None], log: Path) -> Process:
        """Return a process that a fork server has started. `poll` returns its `returncode`."""
        process = cls.__new__(cls)
        process.pid, process.log, process._poll = pid, log, poll
        return process

    @property
    def returncode(self) -> int | None:
        """The exit code of the process, or None while the process runs."""
        return self._poll()

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children, including children that outlived the process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises EPERM for zombies
            os.killpg(self.pid, number)

    def tail(self, lines: int = 15) -> str:
        """Return the last `lines` lines of the log."""
        return tail(self.log, lines)


def tail(log: Path, lines: int = 15) -> str:
    """Return the last `lines` lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def stop(
    processes: Iterable[Process], grace: float, marked: Callable[[], Sequence[int]] = lambda: ()
) -> None:
    """End processes and their groups: send SIGTERM first, then SIGKILL to whatever is left of each group.

    `grace`: seconds to wait for the end of the processes, after SIGTERM and again after SIGKILL. `marked`:
    returns the ids of processes that certainly belong to this program. If a process has already ended, its
    group gets signals only if the group contains one of these ids, because another program's group may have
    the same id by now.
    """
    ours = set()
    for pid in marked():
        with contextlib.suppress(ProcessLookupError):  # the process has ended meanwhile
            ours.add(os.getpgid(pid))
    running = [process for process in processes if process.returncode is None or process.pid in ours]
    for process in running:
        process.signal_group(signal.SIGTERM)
    wait_until(lambda: all(process.returncode is not None for process in running), grace)
    for process in running:
        process.signal_group(signal.SIGKILL)  # also the children that outlived their parent
    wait_until(lambda: all(process.returncode is not None for process in running), grace)


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait until `condition` holds, at most `timeout` seconds; return whether the condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL)
    return True


def processes_with(variable: str, value: str) -> list[int]:
    """Return the ids of this user's processes whose environment has `variable` set to `value`.

    Child processes inherit this mark, even if they have left their group or lost their parent. Processes of
    other users are left out, also for root, because any user can set this mark. The function reads /proc: on
    systems other than Linux, the list is empty.
    """
    mark = os.fsencode(f"{variable}={value}")
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            if folder.stat().st_uid == os.geteuid() and mark in (folder / "environ").read_bytes().split(
                b"\0"
            ):
                found.append(int(folder.name))
    return found


def end_with_parent() -> None:
    """Let the kernel send SIGTERM to this process as soon as its parent ends, even if the parent is killed.

    If the parent ends while this function runs, this process exits with `LOST`. On systems other than Linux
    the function does nothing.
    """
    parent = os.getppid()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent ended before `prctl`
            sys.exit(LOST)
