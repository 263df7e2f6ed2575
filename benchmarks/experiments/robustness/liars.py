"""Three lying clients of twenty against nine selectors: test accuracy, and how often the liars are drawn.

The batched simulator trains softmax regression on digits, with K = 5 clients per round. The operator declares
no data sizes. The clients' data are alike (partition `balanced`) or differ (partition `dirichlet:0.5`).

The defences are the strict guard, this guard without its comparison of directions, no guard, and the strict
guard with FedMedian. FedMedian ignores importance weights, so it is measured with `uniform` alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Any, Literal, NamedTuple

import numpy as np
from flwr.serverapp.strategy import FedMedian

import tasks
from benchmarks.experiments.methods import OWN_DRAWS
from benchmarks.experiments.report import Cell, Experiment, Outcome
from simulation.kernels import Kernel, Plan, Trained, kernel_of
from simulation.kernels.base import StackedUpdates
from simulation.simulator import Simulator
from strategies.numerics.arrays import Floats, Ints
from strategies.options import Faults, GuardSettings, Level
from strategies.rounds.guard.claimed_sizes import believed_sizes
from tasks.base import Arrays, Metrics
from tasks.federated_data import Dataset, FederatedData

NUM_CLIENTS, CLIENTS_PER_ROUND, NUM_ROUNDS = 20, 5, 60
LIARS = (3, 9, 16)
LAST = 10  # number of rounds at the end whose accuracies are averaged


class Attack(NamedTuple):
    """The lies of an attack."""

    update: float = 1.0  # factor by which liars multiply their honest update
    loss: float = 1.0  # factor by which liars multiply their honest loss
    size: float = nan  # claimed data size divided by the mean size of all clients; NaN = the honest size
    since: int = 1  # the first round with false updates; losses and sizes are false from round 1
    liars: tuple[int, ...] = LIARS


ATTACKS = {
    "honest": Attack(liars=()),
    "size 1e9": Attack(size=1e9),
    "loss x 3": Attack(loss=3.0),
    "update x -2": Attack(update=-2.0),
    "all three": Attack(update=-2.0, loss=3.0, size=1e9),
    "all, update x -10": Attack(update=-10.0, loss=3.0, size=1e9),
    "all, size x 3": Attack(update=-2.0, loss=3.0, size=3.0),
    "all, from round 31": Attack(update=-2.0, loss=3.0, size=1e9, since=31),
}
SELECTORS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "md": {},
    "full": {},
    "forecast": OWN_DRAWS,
    "adaptive-osmd": {"learning_rate_multiplier": 100.0},
    "delta": {},
    "prac-delta": {},
    "pow-d": {},
    "flics": {"groups": np.arange(NUM_CLIENTS) % 2},
}


@dataclass(frozen=True)
class Defence:
    """The server's defence against liars."""

    guard: Level | Literal[False] | GuardSettings = "strict"  # False = no guard
    median: bool = False  # whether FedMedian is the server strategy, instead of the default


DEFENCES = {
    "guard": Defence(),
    "without directions": Defence(GuardSettings(level="strict", direction_deviations=1000)),
    "no guard": Defence(guard=False),
    "FedMedian": Defence(median=True),
}
ALL_WITH = ("honest", "all three")  # the only attacks on the defences "without directions" and "no guard"


class LyingKernel(Kernel):
    """Trains as the kernel `honest` does, but the liars of an attack change their updates and losses."""

    def __init__(self, honest: Kernel, attack: Attack) -> None:
        self._honest, self._attack = honest, attack

    def initial_arrays(self, seed: int) -> Arrays:
        return self._honest.initial_arrays(seed)

    def train(
        self,
        arrays: Arrays,
        data: FederatedData,
        clients: Ints,
        plan: Plan,
        controls: Mapping[int, Arrays] | None = None,
    ) -> Trained:
        trained = self._honest.train(arrays, data, clients, plan, controls)
        lying = np.isin(clients, self._attack.liars)
        assert isinstance(trained.updates, StackedUpdates)
        if plan.round >= self._attack.since:
            trained.updates.rows[lying] *= np.float32(self._attack.update)
        return trained._replace(losses=np.where(lying, trained.losses * self._attack.loss, trained.losses))

    def losses(self, arrays: Arrays, data: FederatedData, clients: Ints) -> Floats:
        losses = self._honest.losses(arrays, data, clients)
        return np.where(np.isin(clients, self._attack.liars), losses * self._attack.loss, losses)

    def evaluate(self, arrays: Arrays, data: Dataset) -> Metrics:
        return self._honest.evaluate(arrays, data)


class Played(NamedTuple):
    """The result of one training."""

    accuracy: float  # test accuracy in percent, the mean over the last `LAST` rounds
    # share of all draws that fell on the clients in `LIARS`, whether they lie or not, in [0, 1].
    draws: float
    quarantined_liars: int  # number of liars, and of honest clients, that were quarantined at least once
    quarantined_honest: int
    rejected_honest: float  # share of the honest clients' replies that were rejected, in [0, 1]


def play(selector: str, partition: str, attack: Attack, defence: Defence, seed: int, rounds: int) -> Played:
    """Train one federation."""
    task = tasks.create("digits", partition=partition)
    data, test = task.federated_data(NUM_CLIENTS, seed), task.test_data()
    liars = list(attack.liars)
    claimed = data.sizes().astype(np.float64)
    if attack.size == attack.size:
        claimed[liars] = attack.size * claimed.mean()
    faults = Faults(guard=defence.guard)
    simulator = Simulator(
        data,
        LyingKernel(kernel_of(task), attack),
        selector,
        clients_per_round=CLIENTS_PER_ROUND,
        num_rounds=rounds,
        learning_rate=0.5,
        batch_size=16,
        local_steps=5,
        seed=seed,
        selector_settings=SELECTORS[selector],
        client_sizes=believed_sizes(claimed, None, faults.guard_settings),
        faults=faults,
        server_strategy=FedMedian() if defence.median else None,
    )
    draws, accuracies, rejected, replies = np.zeros(NUM_CLIENTS), [], 0, 0
    for number in range(1, rounds + 1):
        record = simulator.step()
        draws[record.selection.clients] += record.selection.counts
        honest = np.setdiff1d(record.selection.clients, liars)
        replies += honest.size
        rejected += len(set(honest) & record.failures.keys())
        if number > rounds - LAST:
            accuracies.append(simulator.evaluate(test).accuracy)
    quarantined = {client for record in simulator.history for client in record.quarantined}
    return Played(
        100 * float(np.mean(accuracies)),
        float(draws[list(LIARS)].sum() / draws.sum()),
        len(quarantined & set(liars)),
        len(quarantined - set(liars)),
        rejected / max(1, replies),
    )


def run(partition: str, seed: int, num_rounds: int = NUM_ROUNDS) -> Outcome:
    """Train with each selector, defence and attack."""
    cells: dict[Cell, float] = {}
    for selector in SELECTORS:
        for name, defence in DEFENCES.items():
            if name == "FedMedian" and selector != "uniform":
                continue
            row = selector if name == "guard" else f"{selector}, {name}"
            for attack in ATTACKS if name in ("guard", "FedMedian") else ALL_WITH:
                played = play(selector, partition, ATTACKS[attack], defence, seed, num_rounds)
                cells[row, attack] = played.accuracy
                cells[f"{row}: liars' share", attack] = 100 * played.draws
    return Outcome(cells)


EXPERIMENTS = (
    Experiment("liars-alike", partial(run, "balanced"), seeds=5, digits=1),
    Experiment("liars-unlike", partial(run, "dirichlet:0.5"), seeds=5, digits=1),
)
