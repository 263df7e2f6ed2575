"""What half precision on the wire costs in accuracy, and saves in bytes.

``cohort bench half-precision [--tasks digits,mnist,mnist-mlp] [--seeds 10] [--data FOLDER] [--json]``

Each federation of `TASKS` trains twice with each seed: once with the setting `wire` = "float32", and once
with "float16". Both runs have the same clients, samples, draws and batches. The ServerApp and the ClientApp
of this project run in one process, on the in-process Grid. The table has means over the seeds, and Student's
95 % intervals of the differences between the two runs of a seed.
"""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flwr.app import Context, RecordDict

from benchmarks import fresh
from client.app import app as client_app
from deploy.flower.app_folder import app_folder
from deploy.flower.config import default_config
from deploy.runs.seed_statistics import interval
from server.app import app as server_app
from server.history import read_lines
from simulation.grid import InProcessGrid

if TYPE_CHECKING:
    from collections.abc import Sequence


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


class Row(NamedTuple):
    """The results of the two runs of a task with a seed."""

    task: str
    seed: int
    accuracy: dict[str, float]  # wire -> test accuracy after the last round, percent
    loss: dict[str, float]  # wire -> test loss after the last round
    megabytes: dict[str, float]  # wire -> arrays sent and received in all rounds, MB


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


def measure(task: Task, seed: int, data: str) -> Row:
    """Train with each of `WIRES`."""
    found = {wire: train(task, seed, wire, data) for wire in WIRES}
    return Row(task.task, seed, *({wire: each[i] for wire, each in found.items()} for i in range(3)))


def table(rows: Sequence[Row]) -> list[str]:
    """Return a Markdown table, as lines."""
    lines = [
        "| task | seeds | accuracy, float32 | float16 | difference, points | difference of loss | bytes |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for task in dict.fromkeys(row.task for row in rows):
        own = [row for row in rows if row.task == task]
        full, half = ([row.accuracy[wire] for row in own] for wire in WIRES)
        points = _interval([row.accuracy["float16"] - row.accuracy["float32"] for row in own], ".2f")
        losses = _interval([row.loss["float16"] - row.loss["float32"] for row in own], ".5f")
        share = statistics.fmean(row.megabytes["float16"] / row.megabytes["float32"] for row in own)
        means = f"{statistics.fmean(full):.2f} | {statistics.fmean(half):.2f}"
        lines.append(f"| `{task}` | {len(own)} | {means} | {points} | {losses} | {100 * share:.0f} % |")
    return lines


def _interval(differences: Sequence[float], form: str) -> str:
    """Return the mean and, if there is more than one difference, Student's 95 % interval, as text."""
    mean, half = interval(differences)
    if len(differences) < 2:
        return f"{mean:+{form}}"
    return f"{mean:+{form}} [{mean - half:+{form}}, {mean + half:+{form}}]"


def run(tasks: Sequence[str], seeds: int, data: Path | None, as_json: bool) -> None:
    """Print the table, or a JSON object for each row; the tasks of MNIST need `data`."""
    folder = str(data or "")
    rows = [fresh.call(measure, TASKS[task], seed, folder) for task in tasks for seed in range(1, seeds + 1)]
    if as_json:
        for row in rows:
            print(json.dumps(row._asdict()))
        return
    print("\n".join(table(rows)))
