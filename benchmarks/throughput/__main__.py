"""How many client updates a second each simulator does, and what CPU time one costs.

``python -m benchmarks.throughput [--workload W1|W2|W3|W4|all] [--engines batched,loop,...] [--seconds 6]
[--turns 5] [--data mnist.npz] [--peers-python .peers/bin/python] [--check] [--json]``

Each engine has a process of its own, with one thread for computing, and the same samples. They take turns:
a block of rounds each, in an order that rotates; all others are stopped (SIGSTOP) meanwhile, Ray's daemons
and the threads that poll for it included. The CPU time of an update is that of all processes of its engine;
of the blocks the medians are shown. Ray has a process for every core, so that it may do more updates in a
second than its CPU time says.

This project's engines choose by `adaptive-osmd` and learn from each round before the next; the others choose
uniformly. `in-process` guards against bad clients, as `SelectionStrategy` does by default; `batched` does
not, since its clients are its own. ``--check`` measures nothing, but lets each engine train one client on the
same batches, and tells how far its model is from gradients in float64.

pfl-research and FedJAX want other packages than this project, and have an environment of their own:
benchmarks/peers.txt. ``--json`` prints {engine: {"updates_per_s": ..., "cpu_ms": ...}}, of all workloads by
their names.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks.throughput.check import TOLERANCE, check
from benchmarks.throughput.engines import ENGINES
from benchmarks.throughput.measure import Cost, measure
from benchmarks.throughput.workloads import FOR_ALL, WORKLOADS, Workload

BASE = "loop"  # what the others are compared with


def table(workload: Workload, costs: dict[str, Cost | str]) -> str:
    """Lay out what `measure` returned, as Markdown."""
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


def main() -> None:
    """Measure, and print tables or JSON; exit with 1 if an engine fails its check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all")
    parser.add_argument("--engines", default=",".join(ENGINES), help="names, with commas (default: all)")
    parser.add_argument("--seconds", type=float, default=6.0, help="that each engine runs (default: 6)")
    parser.add_argument("--turns", type=int, default=5, help="blocks that these come in (default: 5)")
    parser.add_argument("--data", type=Path, help="draw samples from this .npz (default: noise)")
    parser.add_argument(
        "--peers-python",
        type=Path,
        default=Path(".peers/bin/python"),
        help="interpreter with what benchmarks/peers.txt lists (default: .peers/bin/python)",
    )
    parser.add_argument("--check", action="store_true", help="compare what they compute instead")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    options = parser.parse_args()
    names = options.engines.split(",")
    for name in names:
        if name not in ENGINES:
            parser.error(f"engine = {name!r}: must be one of {', '.join(ENGINES)}")
    if options.seconds <= 0 or options.turns < 1:
        parser.error(f"seconds = {options.seconds}, turns = {options.turns}: must be > 0 and >= 1")
    if options.data is not None and not options.data.is_file():
        parser.error(f"data = {options.data}: there is no such file")
    chosen = [WORKLOADS[each] for each in (FOR_ALL if options.workload == "all" else [options.workload])]
    how = {"peers_python": options.peers_python, "data": options.data}
    found: dict[str, object] = {}
    right = True
    for workload in chosen:
        if options.check:
            distances = check(workload, names, **how)
            right &= all(isinstance(each, str) or each <= TOLERANCE for each in distances.values())
            found[workload.name] = distances
            failures = {name: each for name, each in distances.items() if isinstance(each, str)}
            lines = [f"**{workload.name}**: largest difference of a parameter, at most {TOLERANCE:g}"]
            lines += [f"- `{name}`: {_first_line(str(each))}" for name, each in distances.items()]
            text = "\n".join(lines)
        else:
            costs = measure(workload, names, seconds=options.seconds, turns=options.turns, **how)
            found[workload.name] = _as_json(costs)
            failures = {name: each for name, each in costs.items() if isinstance(each, str)}
            text = table(workload, costs)
        if not options.json:
            print(f"{text}\n", flush=True)
        for name, failure in failures.items():
            print(f"{name}: {failure}", file=sys.stderr)
    if options.json:
        print(json.dumps(found if options.workload == "all" else found[options.workload]))
    elif not options.check:
        print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; load {os.getloadavg()[0]:.1f}")
    sys.exit(not right)


if __name__ == "__main__":
    main()
