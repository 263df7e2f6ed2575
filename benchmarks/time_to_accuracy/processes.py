"""Time to accuracy over real processes, beside the simulation of the same federation.

`CLIENTS` client processes train the digits over gRPC, as `cohort up` starts them. Each sleeps before it
trains, for seconds that are lognormal over the clients (`slow_app`). The methods train one after another,
since a client that sleeps for one run would keep the other runs waiting.

Two things differ from the simulation: a real round does not wait long for a client that takes many times as
long as the others (seed 1 has a client of 22 s, and the median is 1 s), and it also takes the time of the
server, the network and the training.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.apps import app_with_client
from benchmarks.time_to_accuracy import slow_app
from benchmarks.time_to_accuracy.federation import METHODS, Federation, Method, Setting
from benchmarks.time_to_accuracy.simulated import ROUNDS_PER_ROUND, first_at, moving_mean, play
from deploy.engines.local_cluster import LocalCluster
from server.history import FILE_NAME, read_lines

CLIENTS, PER_ROUND, ROUNDS = 20, 5, 30
COMPARED = ("uniform", "timed-forecast", "oort", "fedbuff", "buffered-forecast")
LEVEL = 90  # % of the best accuracy
LONGEST = 30.0  # seconds that a round may take on average


def train(seed: int, rounds: int, methods: Iterable[str], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Train the methods on one cluster of slow clients; return the rounds of each method's history.

    Raises RuntimeError if a run fails or does not end.
    """
    app = app_with_client(folder / "app", slow_app)
    with LocalCluster(folder / "cluster", CLIENTS, app=app) as cluster:
        runs = {}
        for name in methods:
            runs[name] = cluster.submit(_config(METHODS[name], seed, rounds, folder / name), name)
            runs[name].wait(LONGEST * rounds)
    found = {}
    for name, run in runs.items():
        lines = read_lines(folder / name / FILE_NAME)
        if not lines or lines[-1]["type"] != "end":
            raise RuntimeError(f"{name}: the run did not end:\n{run.log.read_text()[-3000:]}")
        found[name] = [line for line in lines if line["type"] == "round" and line["round"]]
    return found


def _config(method: Method, seed: int, rounds: int, folder: Path) -> dict[str, Any]:
    mode = method.mode(PER_ROUND)
    buffered = (
        {}
        if mode is None
        else {
            "mode": "buffered",
            "concurrency": mode.concurrency,
            "buffer-size": mode.size,
            "staleness-power": mode.staleness_power,
            "count-busy": mode.count_busy,
        }
    )
    return {
        **buffered,
        "selector": method.selector,
        "selector-settings": " ".join(f"{name}={value}" for name, value in method.settings.items()),
        "num-clients": CLIENTS,
        "clients-per-round": PER_ROUND,
        "num-rounds": rounds * (1 if mode is None else ROUNDS_PER_ROUND),
        "partition": "dirichlet:0.3",
        "guard": False,
        "seed": seed,
        "output-dir": str(folder),
    }


def measure(seeds: int, rounds: int = ROUNDS) -> dict[str, dict[str, list[float]]]:
    """Return for each method the values of the seeds 1, 2, and so on.

    "real_s" and "simulated_s" are the seconds to `LEVEL` % of the best accuracy of any method (infinite if
    never), "real_round_s" and "simulated_round_s" the mean seconds of a round.
    """
    names = ("real_s", "simulated_s", "real_round_s", "simulated_round_s")
    found: dict[str, dict[str, list[float]]] = {method: {name: [] for name in names} for method in COMPARED}
    for seed in range(1, 1 + seeds):
        with tempfile.TemporaryDirectory(prefix="cohort-slow-", ignore_cleanup_errors=True) as folder:
            lines = train(seed, rounds, COMPARED, Path(folder))
        real = {
            method: (
                np.cumsum([line["seconds"] for line in each]),
                moving_mean([line["test_accuracy"] for line in each]),
            )
            for method, each in lines.items()
        }
        typical = tuple(slow_app.typical(seed, m) for m in range(CLIENTS))
        federation = Federation(Setting(clients=CLIENTS, per_round=PER_ROUND, typical=typical), seed)
        simulated = {method: play(federation, METHODS[method], rounds=rounds)[:2] for method in COMPARED}
        for kind, curves in (("real", real), ("simulated", simulated)):
            best = max(float(accuracy.max()) for _, accuracy in curves.values())
            for method, (seconds, accuracy) in curves.items():
                found[method][f"{kind}_s"].append(first_at(LEVEL / 100 * best, seconds, accuracy))
                found[method][f"{kind}_round_s"].append(float(seconds[-1]) / len(seconds))
    return found
