"""Compares each engine's model, after one round of one client, with a reference trained in float64."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.throughput.measure import noting, prepared, workers
from benchmarks.throughput.workloads import Workload
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
