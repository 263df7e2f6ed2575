"""What half precision on the wire costs in accuracy, and saves in bytes.

Each federation of `TASKS` trains twice with each seed: once with the setting `wire` = "float32", and once
with "float16". Both runs have the same clients, samples, draws and batches. The ServerApp and the ClientApp
of this project run in one process, on the in-process Grid. The table has means over the seeds, and Student's
95 % intervals of the differences between the two runs of a seed.
"""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context, RecordDict

from benchmarks import fresh
from client.app import app as client_app
from deploy.flower.app_folder import app_folder
from deploy.flower.config import default_config
from server.app import app as server_app
from server.history import read_lines
from simulation.grid import InProcessGrid


class Task(NamedTuple):
    """A federation."""

    task: str
    clients: int
    per_round: int
    rounds: int


TASKS = {
    "digits": Task("digits", clients=20, per_round=5, rounds=60),
    "mnist": Task("mnist", clients=50, per_round=10, rounds=30),
    "mnist-mlp": Task("mnist-mlp", clients=20, per_round=5, rounds=25),
}
WIRES = ("float32", "float16")


def train(task: Task, seed: int, wire: str, data: str) -> tuple[float, float, float]:
    """Return the test accuracy in percent, the test loss, and the MB that were sent and received."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        config = default_config(app_folder()) | {
            **{"task": task.task, "num-clients": task.clients, "clients-per-round": task.per_round},
            **{"num-rounds": task.rounds, "seed": seed, "wire": wire, "data-dir": data, "output-dir": folder},
            "evaluate-every": task.rounds,
        }
        nodes = ({"partition-id": m, "num-partitions": task.clients} for m in range(task.clients))
        grid = InProcessGrid(client_app, nodes, run_config=config)
        server_app(grid, Context(1, 1, {}, RecordDict(), config))
        lines = read_lines(Path(folder) / "history.jsonl")
    rounds = [line for line in lines if line.get("round")]
    size = sum(line["bytes_sent"] + line["bytes_received"] for line in rounds) / 1e6
    return 100 * rounds[-1]["test_accuracy"], rounds[-1]["test_loss"], size


def measure(task: Task, seed: int, data: str) -> dict[str, Any]:
    """Train with each of `WIRES`; return the accuracy in percent, the loss and the MB of each."""
    found = {wire: train(task, seed, wire, data) for wire in WIRES}
    names = ("accuracy", "loss", "megabytes")
    each = {name: {wire: found[wire][i] for wire in WIRES} for i, name in enumerate(names)}
    return {"task": task.task, "seed": seed, **each}


def compare(tasks: Sequence[str], seeds: int, data: Path | None) -> Iterator[dict[str, Any]]:
    """Yield a record for each task and seed; the tasks of MNIST need `data`."""
    for task in tasks:
        for seed in range(1, seeds + 1):
            yield fresh.call(measure, TASKS[task], seed, str(data or ""))
