"""Measures, stops and ends a process together with its descendants (Linux)."""

import contextlib
import os
import signal
import time
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_CPU_CLOCK = 2  # a clock of the CPU time of a process: CPUCLOCK_SCHED in Linux's posix-timers.h


def tree(root: int) -> list[int]:
    """Return the id of a process, followed by the ids of its descendants that have not ended."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            state, parent = stat(int(folder.name))[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(folder.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds(root: int) -> float:
    """Return the CPU seconds of a process and its descendants, including descendants that have ended."""
    return sum(map(sum, cpu_by_program(root).values()))


def cpu_by_program(root: int) -> dict[str, tuple[float, float]]:
    """Return the CPU seconds of a process and its descendants by the name of the program (Linux).

    Each value is a pair: the time of the running processes of a program, and the time of the children of
    these processes that have ended.
    """
    found: dict[str, tuple[float, float]] = {}
    for pid in tree(root):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            own, ended = found.get(name, (0.0, 0.0))
            # The times of ended children are only in /proc, which counts in ticks of usually 10 ms.
            own += cpu_clock(pid)
            ended += sum(int(ticks) for ticks in stat(pid)[13:15]) / _TICK
            found[name] = own, ended
    return found


def peak_megabytes(root: int) -> float:
    """Return the sum of the peak resident memories of a process and its running descendants, in MB."""
    kilobytes = 0
    for pid in tree(root):
        with contextlib.suppress(OSError, IndexError):  # the process has ended, or is ending
            kilobytes += status_of(pid, "VmHWM")
    return kilobytes / 1000


def cpu_clock(pid: int) -> float:
    """Return the CPU seconds of a process; this clock counts nanoseconds."""
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK)


def status_of(pid: int, name: str) -> int:
    """Return a number of /proc/PID/status; sizes are in kB. Raises IndexError if it is missing."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"\n{name}:")[2].split()[0])


def send(root: int, number: signal.Signals) -> None:
    """Send a signal to a process and its descendants."""
    for pid in tree(root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third field on.

    The second field is the program's name in parentheses. It may contain spaces.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
