"""Power-of-Choice on CIFAR-10, Sent140 and EMNIST: Figures 6, 7, 10 and 11.

The data were not available here, so these experiments have no results yet. As in `mnist_training`, 80 % of
all samples are distributed over the clients, and 15 % are the test samples. docs/results/power-of-choice.md
describes the data, the clients and the networks.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

import tasks
from benchmarks.experiments.power_of_choice.mnist_training import Pool, Trial, shuffled
from benchmarks.experiments.power_of_choice.quadratics import RANDOM
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from simulation.kernels import MLP, Kernel, kernel_of
from simulation.simulator import Simulator
from tasks import datasets
from tasks.federated_data import Dataset, FederatedData, federate


@dataclass(frozen=True)
class Setting:
    """A data set, its clients and their training."""

    dataset: str  # name of the data set, see `tasks.datasets.DESCRIPTIONS`
    kernel: Callable[[], Kernel]  # function that makes the kernel, which trains the model
    num_clients: int  # K, T, b and τ
    num_rounds: int
    batch_size: int
    local_steps: int
    rate: float  # η in round 1
    halved: tuple[int, ...] = ()  # rounds after which η is halved
    # One α of the Dirichlet distribution for each group of rows; () = each client is a user of the data set.
    alphas: tuple[float, ...] = ()
    # Number of rounds between two measurements of the accuracy. T is a multiple of this number.
    evaluate_every: int = 10
    min_samples: int = 32  # least number of samples of a user that becomes a client

    def learning_rate(self, round: int) -> float:
        """Return η of a round."""
        return self.rate * 0.5 ** sum(round > each for each in self.halved)


def split(setting: Setting, file: Path, seed: int, alpha: float | None) -> tuple[FederatedData, Dataset]:
    """Return the clients' samples and the test samples.

    Raises ValueError if the file holds another data set, or too few users with `min_samples` samples.
    """
    if alpha is not None:
        return shuffled(setting.dataset, file, seed, setting.num_clients, alpha)
    halves, random = datasets.load(setting.dataset, str(file)), np.random.default_rng(seed)
    # Each client is a user, with the samples of both halves.
    train_users, test_users = halves.train.users, halves.test.users
    if train_users is None or test_users is None:
        raise ValueError(f"{file}: must have users_train and users_test, see tasks.datasets")
    users = np.concatenate([train_users, test_users])
    names, counts = np.unique(users, return_counts=True)
    names = names[counts >= setting.min_samples]
    if len(names) < setting.num_clients:
        raise ValueError(
            f"{file}: users_train and users_test name {len(names)} users with at least {setting.min_samples} "
            f"samples: must name at least {setting.num_clients}"
        )
    clients, held_out = [], []
    for name in random.permutation(names)[: setting.num_clients]:
        rows = random.permutation(np.flatnonzero(users == name))
        mine, _, others = np.split(rows, [len(rows) * 80 // 100, len(rows) * 85 // 100])
        clients.append(mine)
        held_out.append(others)
    return federate(Pool(halves), clients), Pool(halves).take(np.concatenate(held_out))


def run(
    seed: int, file: Path, *, setting: Setting, trials: tuple[Trial, ...], quick: bool = False
) -> Outcome:
    """Train all trials, for each α; `quick` trains for two rounds of at most 8 steps."""
    if quick:
        setting = replace(setting, num_rounds=2, evaluate_every=1, local_steps=min(8, setting.local_steps))
    cells: dict[Cell, float] = {}
    panels: dict[str, dict[str, Curve]] = {}
    for alpha in setting.alphas or (None,):
        data, test = split(setting, file, seed, alpha)
        group = "" if alpha is None else f"α={alpha:g}: "
        accuracies = {trial.label: _train(setting, trial, data, test, seed) for trial in trials}
        of_random = _late(accuracies[RANDOM])
        for label, curve in accuracies.items():
            cells[f"{group}{label}", "accuracy, %"] = _late(curve)
            if label != RANDOM:
                cells[f"{group}{label}", "above rand's"] = _late(curve) - of_random
            cells[f"{group}{label}", "best"] = float(curve.y.max())
        panels[f"test accuracy, %{', ' if group else ''}{group.rstrip(': ')}"] = accuracies
    return Outcome(cells, panels)


def _late(curve: Curve) -> float:
    """Return the mean accuracy over the last fifth of the measurements."""
    return float(curve.y[-max(1, len(curve.y) // 5) :].mean())


def _train(setting: Setting, trial: Trial, data: FederatedData, test: Dataset, seed: int) -> Curve:
    """Return the test accuracy in %, over the rounds."""
    simulator = Simulator(
        data,
        setting.kernel(),
        trial.selector,
        clients_per_round=trial.clients_per_round,
        num_rounds=setting.num_rounds,
        learning_rate=setting.learning_rate,
        batch_size=setting.batch_size,
        local_steps=setting.local_steps,
        seed=seed,
        selector_settings=trial.settings,
    )
    measured = []
    for _ in range(setting.num_rounds // setting.evaluate_every):
        simulator.run(setting.evaluate_every)
        measured.append(100 * simulator.evaluate(test).accuracy)
    rounds = setting.evaluate_every * np.arange(1.0, len(measured) + 1)
    return Curve(rounds, np.array(measured))


def cifar10() -> Kernel:
    """Return the paper's convolutional network for CIFAR-10."""
    return kernel_of(tasks.create("cifar10"))


CIFAR = Setting("cifar10", cifar10, 100, 400, 128, 64, 0.5, (150, 300), (2.0, 0.3))
SENT140 = Setting("sent140", partial(MLP, (200, 128, 86, 30, 2)), 314, 200, 32, 100, 0.05)
EMNIST = Setting("emnist", partial(MLP, (784, 64, 30, 10)), 500, 500, 64, 30, 0.005, (300,), (2.0, 0.3))


def _trials(clients: int, candidates: tuple[int, ...], of: Setting | None = None) -> tuple[Trial, ...]:
    """Return rand, pow-d for each d, and afl; with `of`, also cpow-d for the first d, and rpow-d for d = M/2.

    A candidate of cpow-d evaluates b samples, as many as a mini-batch of the training has (Algorithm 1).
    """
    others: tuple[Trial, ...] = ()
    if of is not None:
        d, half = candidates[0], of.num_clients // 2
        others = (
            Trial(f"cpow-d, d={d}", "cpow-d", {"num_candidates": d, "batch_size": of.batch_size}),
            Trial(f"rpow-d, d={half}", "rpow-d", {"num_candidates": half}),
        )
    trials = (
        Trial(RANDOM, "md"),
        *(Trial(f"pow-d, d={d}", "pow-d", {"num_candidates": d}) for d in candidates),
        *others,
        Trial("afl", "afl"),
    )
    return tuple(trial._replace(clients_per_round=clients) for trial in trials)


EXPERIMENTS = tuple(
    Experiment(
        f"poc-{name}",
        partial(run, setting=setting, trials=trials),
        seeds=3,
        digits=1,
        data=f"{setting.dataset}.npz",
        gpu=setting is CIFAR,
    )
    for name, setting, trials in (
        ("cifar10", CIFAR, _trials(9, (18,), CIFAR)),
        ("sent140", SENT140, _trials(8, (16,), SENT140)),
        ("emnist-d", EMNIST, _trials(15, (30, 60, 150))),
        ("emnist", EMNIST, _trials(15, (30,), EMNIST)),
    )
)
"""The experiments of the Power-of-Choice paper on other data than MNIST and Fashion-MNIST."""
