"""The tables of client updates per second and CPU time per update, of this project's simulators and others.

``cohort bench throughput [--workload W1|W2|W3|W4|all] [--engines batched,loop,...] [--seconds 6] [--turns 5]
[--data mnist.npz] [--peers-python .peers/bin/python] [--check] [--json]``

Each engine runs in a process of its own, computes with one thread, and trains on the same samples as the
other engines. In a turn, each engine runs a block of rounds, one engine after another, while all processes of
the other engines are stopped (SIGSTOP), including Ray's daemons. Each turn begins with a different engine.
The CPU time per update counts all processes of the engine. The table has medians over the blocks. Ray has a
worker process for every core, so it may do more updates per second than its CPU time suggests.

This project's engines select by `adaptive-osmd`, which learns from each round before it selects for the next.
The other engines select uniformly. `in-process` has the guard; `batched` has none, since its clients are
simulated and honest. `products` does only the matrix products that `batched` needs if each client takes
several steps. In such a workload, `batched` cannot take less time than `products` with the same BLAS (library
of matrix products).

``--check`` measures no time: each engine trains one client on the same batches, and the engine's model is
compared with a reference model trained with float64 gradients.

pfl-research and FedJAX run in a Python environment of their own, made from benchmarks/peers.txt. ``--json``
prints {engine: {"updates_per_s": ..., "cpu_ms": ..., "start_s": ..., "peak_mb": ...}}, see `measure.Cost`. An
engine that cannot be measured has {"error": reason} instead. ``--check --json`` prints {engine: largest
parameter difference, or the reason why there is none}. ``--workload all`` prints one such object for each
workload: {workload: {engine: ...}}.
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

BASES = ("loop", "products")  # the engines whose CPU time is 1 in a column of the table


def table(workload: Workload, costs: dict[str, Cost | str]) -> str:
    """Return the result of `measure` as a Markdown table."""
    lines = [
        f"**{workload.name}**: {workload.title}",
        "",
        "| | updates/s | CPU ms/update | "
        + " | ".join(f"CPU, {base} = 1" for base in BASES)
        + " | start, s | peak, MB |",
        "|---|" + "--:|" * (4 + len(BASES)),
    ]
    for name, cost in costs.items():
        title = f"`{name}`: {ENGINES[name].title}"
        if isinstance(cost, str):
            lines.append(f"| {title} | {_first_line(cost)} |" + " |" * (3 + len(BASES)))
            continue
        ratios = " | ".join(
            f"{cost.cpu_ms / base.cpu_ms:.3f}" if isinstance(base, Cost) else ""
            for base in map(costs.get, BASES)
        )
        lines.append(
            f"| {title} | {cost.updates_per_s:,.0f} | {cost.cpu_ms:.3f} | {ratios} | {cost.start_s:.1f} "
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
    """Print tables or JSON; return False if the model of an engine differs from the reference.

    An engine that cannot run is reported, but does not count as different. Without `checks`, return True.
    """
    chosen = [WORKLOADS[each] for each in (FOR_ALL if workload == "all" else [workload])]
    found: dict[str, object] = {}
    right = True
    for each in chosen:
        if checks:
            distances = check(each, engines, peers_python=peers_python, data=data)
            right &= all(isinstance(value, str) or value <= TOLERANCE for value in distances.values())
            found[each.name] = distances
            failures = {name: value for name, value in distances.items() if isinstance(value, str)}
            lines = [f"**{each.name}**: largest parameter difference (allowed: {TOLERANCE:g})"]
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
