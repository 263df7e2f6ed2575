"""The CPU time of a message, in Flower as this project runs it and in stock Flower.

``cohort bench messages [--nodes 2] [--rounds 8] [--no-stock] [--json]``, or ``python -m benchmarks.messages``

Two apps are measured: ``numpy`` trains a softmax regression (`numpy_app`), and ``torch`` the network of
Flower's quickstart-pytorch (`torch_app`). Each runs on a federation of this machine, with TLS, node
authentication and a database. Every round sends a TRAIN message to each node. One federation runs at a time.

The measured time is the CPU time of all processes of the federation in the measured rounds, including the
time that the processes use while they wait. The processes are the SuperLink, the ServerApp, the SuperNodes,
the processes that are forked or started for the messages (including processes that have ended), the fork
server and the app servers. The CPU time is read from each process's CPU clock, and, for children that have
ended, from cutime and cstime in ``/proc/PID/stat`` (Linux). Two rounds run before the measurement; in the
first of them, the nodes fetch the app. The CPU time of the app's handlers, which the app measures itself, is
subtracted. The result is divided by the number of messages.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import noop
from benchmarks.rounds.measure import PYPROJECT, Federation
from benchmarks.throughput.processes import cpu_seconds
from deploy.engines.local_cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.engines.local_cluster import Programs

APPS = ("numpy", "torch")
PROGRAMS: dict[str, Programs] = {"cohort": "forked", "stock": "stock"}
SETTLE = 1.0  # s, a pause before and after the measured rounds, in which processes of old messages end


class Cost(NamedTuple):
    """The cost of a message."""

    overhead: float  # CPU seconds beyond the app's own work
    app: float  # CPU seconds of the app's handler
    seconds: float  # the median duration of a round


@contextlib.contextmanager
def federation(app: str, programs: Programs, nodes: int) -> Iterator[Federation]:
    """Start a federation that runs one of `APPS`; afterwards end all processes and remove the files."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-messages-"))
    try:
        bundle = folder / "app"
        bundle.mkdir()
        (bundle / "pyproject.toml").write_text(PYPROJECT.replace('"noop:', f'"{app}_app:'))
        shutil.copy(noop.__file__, bundle / "noop.py")
        shutil.copy(Path(__file__).with_name(f"{app}_app.py"), bundle)
        with LocalCluster(folder / "cluster", nodes, app=bundle, programs=programs) as cluster:
            yield Federation(cluster, nodes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(app: str, programs: Programs, nodes: int, rounds: int) -> Cost:
    """Return the cost of a message of one of `APPS`, as a mean of `rounds` rounds on `nodes` nodes."""
    with federation(app, programs, nodes) as running:
        running.turn(2, poll=False)
        time.sleep(SETTLE)
        before = spent(running.cluster)
        seconds = running.turn(rounds, poll=False)
        own, messages = running.app_cpu, nodes * rounds
        time.sleep(SETTLE)
        after = spent(running.cluster)
        running.turn(1, poll=False, last=True)
    return Cost((after - before - own) / messages, own / messages, statistics.median(seconds))


def spent(cluster: LocalCluster) -> float:
    """Return the CPU seconds so far of all processes of a cluster."""
    return sum(cpu_seconds(pid) for pid in cluster.roots)


def run(nodes: int, rounds: int, no_stock: bool, as_json: bool) -> None:
    """Print a table, or the CPU seconds of a message as JSON."""
    costs: dict[str, dict[str, Cost]] = {}
    for app in APPS:
        for name, programs in list(PROGRAMS.items())[: 2 - no_stock]:
            costs.setdefault(app, {})[name] = measure(app, programs, nodes, rounds)
    if as_json:
        print(
            json.dumps(
                {
                    app: {
                        **{f"{name}_cpu_s": round(cost.overhead, 4) for name, cost in each.items()},
                        **{f"{name}_app_cpu_s": round(cost.app, 4) for name, cost in each.items()},
                    }
                    for app, each in costs.items()
                }
            )
        )
        return
    print(f"{'CPU seconds of a message':26}  beyond the app   the app  seconds of a round")
    for app, each in costs.items():
        for name, cost in each.items():
            print(f"{f'{app}, {name}':26}  {cost.overhead:14.3f}  {cost.app:8.3f}  {cost.seconds:18.2f}")
