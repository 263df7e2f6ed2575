"""Processes that a test waits for."""

import json
import signal
import sys
import time
import traceback
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def wait_for(condition, timeout, what):
    """Wait until a condition holds; fail with ``what()`` after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


def running(pid):
    """Return whether a process runs, and is not a zombie (Linux)."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def kill_for_good(cluster, index):
    """Kill a client (SIGKILL), which the cluster does not start again: a device with an empty battery."""
    process = cluster.client_processes[index]
    cluster._restart_at[index] = inf
    process.signal_group(signal.SIGKILL)
    wait_for(lambda: process.returncode is not None, 10, lambda: f"client {index} lives")


def processes_of(parent):
    """Return a process and all its descendants (Linux)."""
    found = [parent]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


def memory_alone(pids):
    """Return the memory of processes, MB, as if they shared none with other processes (Linux)."""
    own = 0.0
    files = {}
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/smaps").read_text()
        except OSError:  # it has ended meanwhile
            continue
        where = None
        resident = 0
        for line in maps.splitlines():
            first, *rest = line.split()
            if not first.endswith(":"):
                begin, _, end = first.partition("-")
                size = int(end, 16) - int(begin, 16)
                where = (rest[4], rest[1], str(size)) if len(rest) > 4 and rest[3] != "0" else None
            elif first == "Rss:":
                resident = int(rest[0])
            elif first == "Anonymous:" and where:
                files[where] = max(files.get(where, 0), resident - int(rest[0]))
        rollup = Path(f"/proc/{pid}/smaps_rollup")
        try:
            fields = dict(line.split()[:2] for line in rollup.read_text().splitlines()[1:])
        except OSError:
            continue
        own += float(fields["Pss_Anon:"])  # shared only with forks, which are among the processes
    return (own + sum(files.values())) * 1024 / 1e6


def simulate_here(monkeypatch):
    """Let commands run batched simulations in this process: each process of its own imports for a second."""
    from deploy.engines.batched import BatchedSimulation, run

    def submit(self, run_config, name):
        said = ""
        try:
            run(json.loads(json.dumps(run_config)))
        except Exception:
            said = traceback.format_exc()
        return SimpleNamespace(name=name, over=True, stopped=False, last_words=said, abort=lambda: None)

    monkeypatch.setattr(BatchedSimulation, "submit", submit)
