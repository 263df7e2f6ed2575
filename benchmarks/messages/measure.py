"""The CPU time of a message, in Flower as this project runs it and in stock Flower.

Two apps are measured: ``numpy`` trains a softmax regression (`numpy_app`), and ``torch`` the network of
Flower's quickstart-pytorch (`torch_app`). Each runs on a federation of this machine, with TLS, node
authentication and a database, one at a time; every round sends a TRAIN message to each node. The CPU time of
all processes in the measured rounds counts, also while they wait, without the app's handlers.
"""

import time
from pathlib import Path

from benchmarks.rounds.measure import federation
from benchmarks.throughput.processes import cpu_seconds
from deploy.engines.local_cluster import LocalCluster, Programs

APPS = ("numpy", "torch")
PROGRAMS: dict[str, Programs] = {"cohort": "forked", "stock": "stock"}
SETTLE = 1.0  # s, a pause before and after the measured rounds, in which processes of old messages end


def measure(app: str, programs: Programs, nodes: int, rounds: int) -> tuple[float, float]:
    """Return the CPU seconds of a message, beyond the work of the app (one of `APPS`) and of this work."""
    with federation(programs, nodes, app=Path(__file__).with_name(f"{app}_app.py")) as running:
        running.turn(2, poll=False)
        time.sleep(SETTLE)
        before = spent(running.cluster)
        running.turn(rounds, poll=False)
        own, messages = running.app_cpu, nodes * rounds
        time.sleep(SETTLE)
        after = spent(running.cluster)
        running.turn(1, poll=False, last=True)
    return (after - before - own) / messages, own / messages


def spent(cluster: LocalCluster) -> float:
    """Return the CPU seconds so far of all processes of a cluster."""
    return sum(cpu_seconds(pid) for pid in cluster.roots)


def compare(nodes: int, rounds: int, no_stock: bool) -> dict[str, dict[str, float]]:
    """Return for each app the CPU seconds of a message, with each kind of programs."""
    found: dict[str, dict[str, float]] = {}
    for app in APPS:
        costs = {name: measure(app, PROGRAMS[name], nodes, rounds) for name in list(PROGRAMS)[: 2 - no_stock]}
        found[app] = {f"{name}_cpu_s": round(cost[0], 4) for name, cost in costs.items()}
        found[app] |= {f"{name}_app_cpu_s": round(cost[1], 4) for name, cost in costs.items()}
    return found
