"""The log file of a device's SuperNode. Its size is limited, because disks of devices are small."""

from __future__ import annotations

import contextlib
from pathlib import Path

LOG = "supernode.log"  # the log's name in the device's folder
LOG_BYTES = 1_000_000  # a longer log is renamed to LOG.1, which replaces an older LOG.1


def append(folder: Path, line: str) -> None:
    """Append a line to the log in a device's folder. If the disk is full, the line is missing."""
    with contextlib.suppress(OSError):
        path = folder / LOG
        with path.open("a") as log:
            log.write(f"{line}\n")
            full = log.tell() > LOG_BYTES
        if full:
            path.replace(path.with_name(f"{LOG}.1"))
