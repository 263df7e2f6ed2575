"""The tables of client updates per second and CPU time per update, for this project's simulators and others.

``cohort bench throughput [--workload W1|W2|W3|W4|all] [--engines batched,loop,...] [--seconds 6] [--turns 5]
[--data mnist.npz] [--peers-python .peers/bin/python] [--check] [--json]``

Each engine has a process of its own, with one thread for computing, and the same samples. The engines take
turns: each runs a block of rounds, in an order that rotates, while all others are stopped (SIGSTOP), Ray's
daemons and polling threads included. The CPU time of an update is that of all processes of its engine. The
table has the medians over the blocks. Ray has a process for every core, so it may do more updates per second
than its CPU time suggests.

This project's engines select by `adaptive-osmd` and learn from each round before the next; the others select
uniformly. `in-process` guards against bad clients, as `SelectionStrategy` does by default; `batched` does
not, since all its clients are its own. ``--check`` measures no time: each engine trains one client on the
same batches, and its model is compared with one from gradients in float64.

pfl-research and FedJAX need other packages than this project, and so an environment of their own:
benchmarks/peers.txt. ``--json`` prints {engine: {"updates_per_s": ..., "cpu_ms": ...}}; for all workloads,
one such object by the name of each.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.throughput.check import TOLERANCE, check
from benchmarks.throughput.engines import ENGINES
from benchmarks.throughput.measure import Cost, measure
from benchmarks.throughput.workloads import FOR_ALL, WORKLOADS, Workload

BASE = "loop"  # the engine that the others are compared with


def table(workload: Workload, costs: dict[str, Cost | str]) -> str:
    """Return the table of what `measure` returned, as Markdown."""
    base = costs.get(BASE)
    lines = [
        f"**{workload.name}**: {workload.title}",
        "",
        f"| | updates/s | CPU ms/update | CPU, {BASE} = 1 | start, s | peak, MB |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, cost in costs.items():
        title = f"`{name}`: {ENGINES[name].title}"
        if isinstance(cost, str):
            lines.append(f"| {title} | {_first_line(cost)} | | | | |")
            continue
        ratio = f"{cost.cpu_ms / base.cpu_ms:.3f}" if isinstance(base, Cost) else ""
        lines.append(
            f"| {title} | {cost.updates_per_s:,.0f} | {cost.cpu_ms:.3f} | {ratio} | {cost.start_s:.1f} "
            f"| {cost.peak_mb:,.0f} |"
        )
    return "\n".join(lines)


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:160]


def _as_json(costs: dict[str, Cost | str]) -> dict[str, dict[str, float | str]]:
    return {
        name: {"error": cost}
        if isinstance(cost, str)
        else {key: round(value, 4) for key, value in cost._asdict().items()}
        for name, cost in costs.items()
    }


def run(
    workload: str,
    engines: Sequence[str],
    seconds: float,
    turns: int,
    data: Path | None,
    peers_python: Path,
    checks: bool,
    as_json: bool,
) -> bool:
    """Print tables or JSON; return False if an engine fails its check."""
    chosen = [WORKLOADS[each] for each in (FOR_ALL if workload == "all" else [workload])]
    found: dict[str, object] = {}
    right = True
    for each in chosen:
        if checks:
            distances = check(each, engines, peers_python=peers_python, data=data)
            right &= all(isinstance(value, str) or value <= TOLERANCE for value in distances.values())
            found[each.name] = distances
            failures = {name: value for name, value in distances.items() if isinstance(value, str)}
            lines = [f"**{each.name}**: largest difference of a parameter, at most {TOLERANCE:g}"]
            lines += [f"- `{name}`: {_first_line(str(value))}" for name, value in distances.items()]
            text = "\n".join(lines)
        else:
            costs = measure(each, engines, seconds=seconds, turns=turns, peers_python=peers_python, data=data)
            found[each.name] = _as_json(costs)
            failures = {name: value for name, value in costs.items() if isinstance(value, str)}
            text = table(each, costs)
        if not as_json:
            print(f"{text}\n", flush=True)
        for name, failure in failures.items():
            print(f"{name}: {failure}", file=sys.stderr)
    if as_json:
        print(json.dumps(found if workload == "all" else found[workload]))
    elif not checks:
        print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; load {os.getloadavg()[0]:.1f}")
    return right
