"""A process and all that it started, as one thing that can be measured, stopped and ended (Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_CPU_CLOCK = 2  # of a whole process: CPUCLOCK_SCHED of the kernel's posix-timers.h


def tree(root: int) -> list[int]:
    """Return a process and its descendants, but for those that have ended."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is gone by now
            state, parent = stat(int(folder.name))[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(folder.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds(root: int) -> float:
    """Return the CPU time that a process and its descendants have used, those that have ended included."""
    total = 0.0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            # /proc has it in hundredths of a second; for children that have ended there is nothing finer.
            total += time.clock_gettime((~pid << 3) | _CPU_CLOCK)
            total += sum(int(ticks) for ticks in stat(pid)[13:15]) / _TICK
    return total


def peak_megabytes(root: int) -> float:
    """Return the largest resident memory that each of a process and its descendants has had, added up."""
    kilobytes = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    kilobytes += int(line.split()[1])
    return kilobytes / 1000


def send(root: int, number: signal.Signals) -> None:
    """Send a signal to a process and its descendants."""
    for pid in tree(root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def stat(pid: int) -> list[str]:
    """Return /proc/PID/stat from its third field on: those before may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
