"""Three lying clients of twenty against every selector: test accuracy, and how often the liars are drawn.

``cohort bench liars [--seeds 5] [--first-seed 1] [--rounds 60] [--json]``

The batched simulator trains softmax regression on digits with K = 5. The operator declares no data sizes. The
clients' data are alike (partition `balanced`) or differ (partition `dirichlet:0.5`). A cell of a table reads
"accuracy (worst seed), share %". The accuracy is the test accuracy in percent, the mean over the last ten
rounds and all seeds. The number in brackets is the mean over the last ten rounds in the worst seed. The share
is the percentage of all draws that fell on the three clients that lie in the attacks. With equal
probabilities, the share would be 15 %.

There are four defences: the guard, the guard without its comparison of directions, no guard, and the guard
together with FedMedian. FedMedian is measured with `uniform` alone, since it ignores importance weights.
``--json`` prints the result of every training, the command and the commit.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.serverapp.strategy import FedMedian

import tasks
from simulation.kernels import Kernel, Plan, Trained, kernel_of
from simulation.kernels.base import StackedUpdates
from simulation.simulator import Simulator
from strategies.numerics.arrays import Floats, Ints
from strategies.options import Faults, GuardSettings
from strategies.rounds.limits import believed_sizes
from tasks.base import Arrays, Metrics
from tasks.data import Dataset, FederatedData

NUM_CLIENTS, CLIENTS_PER_ROUND = 20, 5
LIARS = (3, 9, 16)
LAST = 10  # number of rounds at the end whose accuracies are averaged
DATA = ("balanced", "dirichlet:0.5")


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
    "forecast": {},
    "adaptive-osmd": {"learning_rate_multiplier": 100.0},
    "delta": {},
    "prac-delta": {},
    "pow-d": {},
    "flics": {"groups": np.arange(NUM_CLIENTS) % 2},
}


@dataclass(frozen=True)
class Defence:
    """The server's defence against liars."""

    guard: bool | GuardSettings = True  # True = with default settings, False = no guard
    median: bool = False  # whether FedMedian is the server strategy, instead of the default


DEFENCES = {
    "guard": Defence(),
    "without directions": Defence(GuardSettings(direction_deviations=1000)),
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
    """The result of one training.

    Attributes
    ----------
    accuracy : float
        Test accuracy in percent, the mean over the last `LAST` rounds.
    draws : float
        The share of all draws that fell on the clients in `LIARS`, whether they lie or not, in [0, 1].
    quarantined_liars, quarantined_honest : int
        Number of liars, and of honest clients, that were quarantined at least once.
    rejected_honest : float
        The share of the honest clients' replies that were rejected, in [0, 1].
    """

    accuracy: float
    draws: float
    quarantined_liars: int
    quarantined_honest: int
    rejected_honest: float


def play(selector: str, partition: str, attack: Attack, defence: Defence, seed: int, rounds: int) -> Played:
    """Train one federation.

    Parameters
    ----------
    selector : str
        A key of `SELECTORS`.
    partition : str
        One of `DATA`.
    attack : Attack
        The lies.
    defence : Defence
        The defence against them.
    seed : int
        Seed of the data, the training and the selection.
    rounds : int
        Number of rounds, >= 1.
    """
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


def cells() -> list[tuple[str, str, str, str]]:
    """Return (partition, selector, defence, attack) of each cell of the tables."""
    found = []
    for partition in DATA:
        for selector in SELECTORS:
            for defence in DEFENCES:
                if defence == "FedMedian" and selector != "uniform":
                    continue
                whole = defence in ("guard", "FedMedian")
                found += [(partition, selector, defence, name) for name in (ATTACKS if whole else ALL_WITH)]
    return found


def measure(seeds: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Run the training of each cell with each seed, and return one row per training."""
    return [
        {"data": partition, "selector": selector, "defence": defence, "attack": attack, "seed": seed}
        | play(selector, partition, ATTACKS[attack], DEFENCES[defence], seed, rounds)._asdict()
        for partition, selector, defence, attack in cells()
        for seed in seeds
    ]


def tables(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table for each partition in `DATA`."""
    lines: list[str] = []
    for partition in DATA:
        lines += [f"{partition}:", "", f"| selector, defence | {' | '.join(ATTACKS)} |"]
        lines.append("|" + "---|" * (len(ATTACKS) + 1))
        of_data = [row for row in rows if row["data"] == partition]
        for selector, defence in dict.fromkeys((row["selector"], row["defence"]) for row in of_data):
            name = f"`{selector}`" if defence == "guard" else f"`{selector}`, {defence}"
            shown = []
            for attack in ATTACKS:
                found = [
                    row
                    for row in of_data
                    if (row["selector"], row["defence"], row["attack"]) == (selector, defence, attack)
                ]
                shown.append(_cell(found) if found else "")
            lines.append(f"| {name} | {' | '.join(shown)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(rows: list[dict[str, Any]]) -> str:
    accuracies = [row["accuracy"] for row in rows]
    draws = 100 * float(np.mean([row["draws"] for row in rows]))
    return f"{np.mean(accuracies):.1f} ({min(accuracies):.1f}), {draws:.0f} %"


def run(seeds: range, rounds: int, as_json: bool) -> None:
    """Print the tables, or the result of every training as JSON."""
    commit = _commit()
    rows = measure(seeds, rounds)
    if not as_json:
        print(tables(rows))
        return
    result = {
        "command": f"cohort bench liars --seeds {len(seeds)} --first-seed {seeds[0]} "
        f"--rounds {rounds} --json",
        "commit": commit,
        "seeds": list(seeds),
        "attacks": {name: attack._asdict() for name, attack in ATTACKS.items()},
        "defences": {name: asdict(defence) for name, defence in DEFENCES.items()},
        "runs": rows,
    }
    print(json.dumps(result, indent=1))


def _commit() -> str:
    """Return the commit of this checkout, or "" if this is not a checkout."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()
