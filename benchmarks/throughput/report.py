"""Client updates per second and CPU time per update, of this project's simulators and others.

Each engine runs in a process of its own, with one thread, on the same samples. In a turn, each engine runs a
block of rounds, while all processes of the others are stopped (SIGSTOP), including Ray's daemons. The CPU
time counts all processes of the engine; Ray has a worker process for every core, so it may do more updates
per second than its CPU time suggests. The table has medians over the blocks.

This project's engines select by `adaptive-osmd`, which learns from each round; the others select uniformly.
`in-process` has the guard; `batched` has none, since its clients are simulated and honest. `products` does
only the matrix products that `batched` needs if each client takes several steps, so `batched` cannot take
less time with the same BLAS. pfl-research and FedJAX run in an environment made from benchmarks/peers.txt.

``--check`` measures no time, but compares each engine's model with a reference trained with float64
gradients.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.throughput.measure import Cost, measure, noting, prepared, workers
from benchmarks.throughput.workloads import FOR_ALL, WORKLOADS, Workload
from tasks.federated_data import Dataset

TOLERANCE = 1e-4  # largest allowed difference of a parameter from the reference


def reference(workload: Workload, client: Dataset) -> list[NDArray[np.float64]]:
    """Return the reference model: one client's gradient steps in float64, each on all the samples."""
    model = [values.astype(np.float64) for values in workload.initial()]
    inputs = client.inputs.astype(np.float64)
    truth = np.eye(workload.layers[-1])[client.labels]
    for _ in range(workload.steps):
        values = [inputs]
        for layer in range(0, len(model), 2):
            below = np.maximum(values[-1], 0) if layer else inputs
            values.append(below @ model[layer] + model[layer + 1])
        odds = np.exp(values[-1] - values[-1].max(axis=1, keepdims=True))
        error = (odds / odds.sum(axis=1, keepdims=True) - truth) / len(client)
        moves = []
        for layer in reversed(range(0, len(model), 2)):
            below = np.maximum(values[layer // 2], 0) if layer else inputs
            moves += [error.sum(axis=0), below.T @ error]
            error = (error @ model[layer].T) * (values[layer // 2] > 0)
        for parameter, move in zip(model, reversed(moves), strict=True):
            parameter -= workload.learning_rate * move
    return model


def check(
    workload: Workload, names: Sequence[str], *, peers_python: Path, data: Path | None = None
) -> dict[str, float | str]:
    """Return the largest difference of each engine's model from the reference, or the reason for none."""
    alone = workload.alone()
    failures: dict[str, str] = {}
    found: dict[str, float | str] = {}
    expected = reference(alone, alone.data(data).client(0))
    with prepared(alone, data) as folder, workers(names, folder, peers_python, failures) as running:
        for worker in running:
            with noting(failures, worker), worker.awake():
                model = worker.model()
                found[worker.name] = max(
                    float(np.abs(mine - theirs).max()) for mine, theirs in zip(model, expected, strict=True)
                )
    return {name: found[name] if name in found else failures[name] for name in names}


BASES = ("loop", "products")  # the engines whose CPU time is 1 in a column of the table


def compare(
    workload: str,
    engines: Sequence[str],
    seconds: float,
    turns: int,
    data: Path | None,
    peers_python: Path,
    checks: bool,
) -> dict[str, dict[str, Any]]:
    """Return workload -> engine -> cost, or with `checks` the largest difference of a parameter."""
    found: dict[str, dict[str, Any]] = {}
    for name in FOR_ALL if workload == "all" else [workload]:
        if checks:
            distances = check(WORKLOADS[name], engines, peers_python=peers_python, data=data)
            found[name] = {
                each: {"error": value} if isinstance(value, str) else {"difference": value}
                for each, value in distances.items()
            }
            continue
        costs = measure(
            WORKLOADS[name], engines, seconds=seconds, turns=turns, peers_python=peers_python, data=data
        )
        found[name] = {
            each: {"error": cost}
            if isinstance(cost, str)
            else {key: round(value, 4) for key, value in cost._asdict().items()} | _relative(cost, costs)
            for each, cost in costs.items()
        }
    return found


def _relative(cost: Cost, costs: Mapping[str, Cost | str]) -> dict[str, float]:
    bases = {base: found for base in BASES if isinstance(found := costs.get(base), Cost)}
    return {f"cpu_of_{base}": round(cost.cpu_ms / found.cpu_ms, 3) for base, found in bases.items()}


def wrong(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the engines whose model differs from the reference. One that cannot run does not count."""
    return [
        f"{workload}, {engine}"
        for workload, engines in found.items()
        for engine, each in engines.items()
        if each.get("difference", 0.0) > TOLERANCE
    ]
