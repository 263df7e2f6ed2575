"""The cost of faults: accuracy of a disturbed federation compared with the same federation without faults.

The disturbed federation runs on a cluster of processes, as `cohort up` starts it, with the ClientApp of
`benchmarks.faulty`. Every tenth client is a liar: it lies in each of its answers. A selected honest
client fails in a round with probability 30 %: it raises an exception, dies, or replies too late. The
ServerApp is killed with SIGKILL at random moments, and resumed each time.

The undisturbed federation consists of the honest clients alone, each with the same samples as in the
disturbed federation. It runs in one process without a network, which gives the same numbers as a cluster
(`tests/federation/test_federation.py`).

Two columns of the table show the test accuracy of the disturbed federation minus that of the undisturbed
federation, in percentage points: "difference" after the last round, and "difference of the last tenth" of the
mean accuracies over the last tenth of the rounds, which vary less between seeds.
"""

import json
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

import tasks
from benchmarks import faulty
from benchmarks.apps import app_with_client
from client.app import app as client_app
from deploy.engines.local_cluster import LocalCluster
from deploy.flower.app_folder import app_folder
from deploy.flower.config import default_config
from deploy.processes.groups import wait_until
from server.app import app as server_app
from server.history import FILE_NAME, read_lines
from server.settings import CHECKPOINTS
from simulation.grid import InProcessGrid
from strategies.checkpoint import CheckpointFolder

ROUND_LIMIT = 60.0  # seconds that a round may take on average, kills and resumes included


def overrides(clients: int, seed: int, file: Path) -> Path:
    """Write the overrides file, which declares each client's number of samples; return the file's path."""
    task = tasks.create("digits")
    sizes = {f"client-{m:02d}": len(task.client_data(m, clients, seed)) for m in range(clients)}
    file.write_text(json.dumps(sizes))
    return file


def settings(selector: str, rounds: int, seed: int, clients: int, folder: Path) -> dict[str, Any]:
    """Return the run config of the disturbed federation; `folder` is the output folder.

    The undisturbed federation changes only the number of clients and the output folder.
    """
    return {
        "selector": selector,
        "num-clients": clients,
        "clients-per-round": 6,
        "num-rounds": rounds,
        "round-deadline": faulty.DEADLINE,
        # With 20 clients, half of them hold at most 8 samples, and one holds 745. If honest sizes differ this
        # much, the server cannot detect a false size. So the operator declares the sizes.
        "client-sizes": str(overrides(clients, seed, folder.with_suffix(".json"))),
        "seed": seed,
        "output-dir": str(folder),
    }


def disturbed(cluster: LocalCluster, config: dict[str, Any], kills: int) -> list[dict[str, Any]]:
    """Run the disturbed federation, kill its ServerApp `kills` times, and return the lines of its history.

    Raises RuntimeError if the ServerApp ends before it is killed.
    """
    folder = Path(config["output-dir"])
    chance = random.Random(config["seed"])
    moments = sorted(chance.sample(range(1, config["num-rounds"]), kills))
    name = f"disturbed-{config['seed']}"

    def rounds() -> int:
        return max(
            (line["round"] for line in read_lines(folder / FILE_NAME) if line["type"] == "round"), default=0
        )

    for number, moment in enumerate([*moments, None]):
        run = cluster.submit({**config, "resume": number > 0}, f"{name}-{number}")
        if moment is None:
            run.wait(ROUND_LIMIT * config["num-rounds"])
            break
        wait_until(lambda moment=moment, run=run: rounds() >= moment or run.over, ROUND_LIMIT * moment)  # type: ignore[misc]
        time.sleep(chance.uniform(0, 2))
        claim = folder / CHECKPOINTS / "lock"
        if run.over or not CheckpointFolder(folder / CHECKPOINTS).is_claimed():
            raise RuntimeError(f"the run ended before it was killed:\n{run.log.read_text()[-3000:]}")
        os.kill(int(claim.read_text()), signal.SIGKILL)
    return read_lines(folder / FILE_NAME)


def undisturbed(config: dict[str, Any], clients: int) -> list[dict[str, Any]]:
    """Run the federation of the honest clients in this process, and return the lines of its history."""
    honest = [m for m in range(clients) if not faulty.lies(m)]
    config = {**default_config(app_folder()), **config, "num-clients": len(honest)}
    nodes = ({"partition-id": m, "num-partitions": clients} for m in honest)
    grid = InProcessGrid(client_app, nodes, run_config=config)
    server_app(grid, Context(1, 1, {}, RecordDict(), config))
    return read_lines(Path(config["output-dir"]) / FILE_NAME)


def accuracies(lines: list[dict[str, Any]]) -> list[float]:
    """Return the test accuracy after each round in percent, from the lines of a history.

    Raises RuntimeError if the last line of the history is not the line of the end.
    """
    if lines[-1]["type"] != "end":
        raise RuntimeError(f"the run did not end: {lines[-1]}")
    found = {line["round"]: 100 * line["test_accuracy"] for line in lines if line["type"] == "round"}
    return [found[number] for number in sorted(found)]


def measure(
    rounds: int, seeds: Sequence[int], clients: int, kills: int, selector: str
) -> Iterator[dict[str, Any]]:
    """Run both federations for each seed, and yield one record per seed.

    There are `clients` in the disturbed federation, liars included. Its ServerApp is killed `kills` times.
    """
    liars = {f"client-{m:02d}" for m in range(clients) if faulty.lies(m)}
    with tempfile.TemporaryDirectory(prefix="cohort-disturbed-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        app = app_with_client(folder / "app", faulty)
        for seed in seeds:
            with LocalCluster(folder / f"cluster-{seed}", clients, app=app) as cluster:
                began = time.monotonic()
                config = settings(selector, rounds, seed, clients, folder / f"disturbed-{seed}")
                lines = disturbed(cluster, config, kills)
                seconds = time.monotonic() - began
            config |= {"output-dir": str(folder / f"undisturbed-{seed}")}
            without, with_ = accuracies(undisturbed(config, clients)), accuracies(lines)
            yield {"seed": seed, **differences(without, with_), **faults(lines, liars), "seconds": seconds}


def differences(without: Sequence[float], with_: Sequence[float]) -> dict[str, float]:
    """Return the accuracies at the end and over the last tenth of the rounds, and their differences."""
    tail = max(1, len(without) // 10)
    found = {"undisturbed": without[-1], "disturbed": with_[-1], "difference": with_[-1] - without[-1]}
    tails = [statistics.fmean(each[-tail:]) for each in (without, with_)]
    return {**found, "difference_of_the_last_tenth": tails[1] - tails[0]}


def faults(lines: Sequence[dict[str, Any]], liars: set[str]) -> dict[str, Any]:
    """Count the faults in the lines of a history, and what the server did."""
    records = [line for line in lines if line["type"] == "round" and line["round"]]
    clipped = [each["client"] for line in records for each in line["clipped"]]
    return {
        "rounds": len(records),
        "skipped": sum(bool(line["skipped"]) for line in records),
        "failures": sum(len(line["failures"]) for line in records),
        "clipped": len(clipped),
        "honest_clipped": sum(client not in liars for client in clipped),
        "honest_quarantined": sorted({each for line in records for each in line["quarantined"]} - liars),
        "resumes": sum(line["type"] == "resume" for line in lines),
    }
