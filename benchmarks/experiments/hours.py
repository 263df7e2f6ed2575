"""Real tasks by the clock: how long waiting for slow clients takes, and what shortens it.

The tasks, the training, the devices and the accuracies are those of `benchmarks.experiments.real_tasks`. Here
selectors also learn durations, and rounds may be buffered: with as many busy clients as a round of the other
methods selects, and a step after half as many arrivals. A run ends when the highest accuracy is reached, or
after `BUDGET` simulated seconds.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.experiments.real_tasks import (
    BATCH_SIZE,
    CLIENTS_PER_ROUND,
    EVERY,
    LEVELS,
    SETTINGS,
    SPEEDS,
    WINDOW,
    FedAvgSelector,
    federation_of,
    times_of,
)
from benchmarks.experiments.report import Cell, Experiment, Outcome
from benchmarks.time_to_accuracy.federation import Method
from simulation.simulator import Simulator
from strategies.options import Faults
from strategies.selectors import register

BUDGET = 4_000.0  # simulated seconds
METHODS = {
    "fedavg": Method("fedavg", {"averaging": "sizes"}),
    "md": Method("md"),
    "forecast": Method("forecast"),
    "timed-md": Method("timed-md", {"design": "balanced"}),
    "timed-forecast": Method("timed-forecast", {"design": "balanced"}),
    "fedbuff": Method("uniform", buffered="fedbuff", staleness_power=0.5),
    "buffered-md": Method("md", buffered="fair"),
    "buffered-forecast": Method("forecast", buffered="fair"),
}


class Case(NamedTuple):
    """A task of `real_tasks`, and which clients are slow, see `real_tasks.SPEEDS`."""

    task: str
    slow: str


def run(seed: int, path: Path, *, case: Case, quick: bool = False) -> Outcome:
    """Train with each method; `quick` trains for a tenth of the time."""
    register(FedAvgSelector)  # not on import: only these experiments use it
    setting, cells = SETTINGS[case.task], dict[Cell, float]()
    federation = federation_of(setting, seed, path)
    times = times_of(federation.data.sizes(), SPEEDS[case.slow], seed)
    goals = {level: level / 100 * setting.best for level in LEVELS}
    for name, method in METHODS.items():
        simulator = Simulator(
            federation.data,
            federation.kernel,
            method.selector,
            clients_per_round=CLIENTS_PER_ROUND,
            num_rounds=10_000,
            learning_rate=setting.learning_rate,
            batch_size=BATCH_SIZE,
            local_steps=setting.local_steps,
            seed=seed,
            selector_settings=method.settings,
            response_times=times,
            mode=method.mode(CLIENTS_PER_ROUND),
            faults=Faults(guard=False, silence=False),
        )
        every = EVERY * (2 if method.buffered else 1)  # a buffered round has half as many updates
        rounds, updates, accuracy, left = 0, 0, list[float](), dict(goals)
        while left and simulator.seconds < (BUDGET / 10 if quick else BUDGET):
            updates += simulator.step().selection.clients.size
            rounds += 1
            if rounds % every:
                continue
            accuracy.append(100 * simulator.evaluate(federation.test).accuracy)
            reached = float(np.mean(accuracy[-WINDOW:])) if len(accuracy) >= WINDOW else 0.0
            for level in [level for level, goal in left.items() if reached >= goal]:
                cells[name, f"s to {level} %"] = simulator.seconds
                cells[name, f"updates to {level} %"] = updates
                del left[level]
        for level in left:
            cells[name, f"s to {level} %"] = cells[name, f"updates to {level} %"] = np.nan
    return Outcome(
        {
            (row, f"{unit} to {level} %"): cells[row, f"{unit} to {level} %"]
            for row in METHODS
            for unit in ("s", "updates")
            for level in LEVELS
        }
    )


CASES = {
    "hours-mnist": Case("real-mnist", "any"),
    "hours-mnist-large": Case("real-mnist", "slow are large"),
    "hours-mnist-small": Case("real-mnist", "slow are small"),
    "hours-cifar": Case("real-cifar-.1", "any"),
}
EXPERIMENTS = tuple(
    Experiment(
        name,
        partial(run, case=case),
        seeds=10,
        digits=0,
        data=f"{SETTINGS[case.task].task.removesuffix('-mlp')}.npz",
    )
    for name, case in CASES.items()
)
