"""A process that cleans up after its parent, even if the parent is killed with SIGKILL.

To take little memory, the watchdog runs as a script without site-packages, and imports only the standard
library and `deploy.processes.groups`.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

LOOK = 0.5  # seconds between two checks whether the parent is alive
KILL_INTERVAL = 0.05  # seconds between two searches for processes that still run


def watchdog_command(variable: str, value: str, folder: Path) -> list[str]:
    """Return the command of a watchdog of the calling process.

    When the calling process has ended, the watchdog kills all processes whose environment has `variable` set
    to `value`, and then removes `folder`. The watchdog works on Linux only (see `processes_with`).
    """
    this = str(Path(__file__).resolve())
    return [sys.executable, "-IS", this, str(os.getpid()), variable, value, str(folder)]


def _watch(owner: int, variable: str, value: str, folder: str) -> None:
    from deploy.processes.groups import processes_with

    while os.getppid() == owner:
        time.sleep(LOOK)
    while left := [pid for pid in processes_with(variable, value) if pid != os.getpid()]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):  # the process has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        time.sleep(KILL_INTERVAL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    _watch(int(sys.argv[1]), *sys.argv[2:])
