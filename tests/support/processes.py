"""Processes that a test waits for."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from deploy.engines.cluster import LocalCluster

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def wait_for(condition: Callable[[], object], timeout: float, what: Callable[[], str]) -> None:
    """Wait until a condition holds; fail with ``what()`` after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Return whether a process runs, and is not a zombie (Linux)."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def kill_for_good(cluster: LocalCluster, index: int) -> None:
    """Kill a client (SIGKILL), which the cluster does not start again: a device with an empty battery."""
    process = cluster.client_processes[index]
    cluster._restart_at[index] = inf
    process.signal_group(signal.SIGKILL)
    wait_for(lambda: process.returncode is not None, 10, lambda: f"client {index} lives")
