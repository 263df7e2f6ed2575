"""Limits the memory of a device's processes: above the owner's limit, kills the largest process.

This file uses the standard library only.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

LOOK = 2.0  # s between two checks


class MemoryLimit:
    """The memory limit for all processes of a process group together.

    `limit`: the most memory that the group's processes may take together, MB; None: no limit.
    """

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self._checked = time.monotonic()  # s

    def check(self, group: int) -> str:
        """Kill the group's largest process if the group takes too much memory. Check at most every `LOOK` s.

        Returns a line for the log about the killed process; "" if no process was killed.
        """
        if self.limit is None or time.monotonic() - self._checked <= LOOK:
            return ""
        self._checked = time.monotonic()
        taken = memory_of(group)
        total = sum(taken.values())
        if total <= self.limit:
            return ""
        largest = max(taken, key=lambda pid: taken[pid])
        with contextlib.suppress(ProcessLookupError):
            os.kill(largest, signal.SIGKILL)
        return f"{total:.0f} MB of {self.limit:g} MB: killed process {largest}"


def memory_of(group: int) -> dict[int, float]:
    """Return the private memory of each process in a process group, MB, by process id.

    On systems other than Linux, the result is empty.
    """
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            # The program's name is in parentheses and may contain anything. Then come state, parent, group.
            if int((folder / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                _, resident, shared, *_ = map(int, (folder / "statm").read_text().split())
                found[int(folder.name)] = (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return found
