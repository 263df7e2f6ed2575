"""A process that cleans up after its parent, also when the parent is killed with SIGKILL.

It runs as a script without site-packages, so that it takes little memory: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

LOOK = 0.5  # seconds between two checks whether the parent lives
KILL_INTERVAL = 0.05  # seconds between two searches for processes that are left


def watchdog_command(variable: str, value: str, folder: Path) -> list[str]:
    """Return the command that waits until the calling process has ended, and then cleans up after it.

    It kills all processes whose environment has `variable` set to `value`, and removes `folder`. Linux only,
    like `deploy.processes.groups.processes_with`.
    """
    this = str(Path(__file__).resolve())
    return [sys.executable, "-IS", this, str(os.getpid()), variable, value, str(folder)]


def _watch(owner: int, variable: str, value: str, folder: str) -> None:
    from deploy.processes.groups import processes_with

    while os.getppid() == owner:
        time.sleep(LOOK)
    while left := [pid for pid in processes_with(variable, value) if pid != os.getpid()]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        time.sleep(KILL_INTERVAL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    _watch(int(sys.argv[1]), *sys.argv[2:])
