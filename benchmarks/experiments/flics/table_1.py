"""Table I and Figures 2 and 3 of the FLICS paper: training with groups of clients that come and go."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flwr.serverapp.strategy import FedAdam

from benchmarks.experiments.flics.availability import sessions
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from simulation.availability import Availability, create
from simulation.availability.trace_file import Recording
from simulation.kernels import MLP, Kernel, Softmax
from simulation.simulator import Simulator
from strategies.numerics.arrays import Floats, Ints
from tasks import datasets
from tasks.federated_data import Dataset, FederatedData, federate
from tasks.partitions import label_groups

NUM_GROUPS, K = 10, 20
EVERY, LAST = 5, 50
"""The accuracy is measured every `EVERY` rounds; the final accuracy is the mean of the last `LAST` rounds."""

TRIALS = {
    "FedAvg": ("uniform", False),
    "Naive": ("naive-group", False),
    "FLICS-AVG": ("flics", False),
    "FedAdam": ("uniform", True),
    "FLICS-ADAM": ("flics", True),
}
"""Column of the table -> (selector, whether the server strategy is FedAdam)."""

# Availability.

MEANS = np.geomspace(1, 100, NUM_GROUPS)
COUNTS = {
    # As in the paper, each group always has at least 2 available clients, its quota in `naive-group`.
    "uniform": ("uniform", np.geomspace(4, 100, NUM_GROUPS)),
    "Poisson": ("poisson", MEANS),
    "cyclic": ("cyclic", MEANS),
    "Markov": ("markov", MEANS),
    "diurnal": ("diurnal", MEANS),
    "scarce Poisson": ("poisson", np.geomspace(0.3, 1000, NUM_GROUPS)),
}
"""Row of the table -> (process, mean number of available clients of each group)."""
RECORDED, SHARES = 1000, np.geomspace(0.01, 0.5, 10)
"""Number of clients in the synthetic trace, and the share of time that each tenth of them is available."""
PAPER_ROWS = ("uniform", "Poisson", "cyclic", "trace, random", "trace, correlated")
ROWS = (*PAPER_ROWS, "Markov", "diurnal", "scarce Poisson")


def availability(row: str, data: FederatedData, num_rounds: int, seed: int) -> Availability:
    """Return the availability of the clients in a row of the table.

    "trace, random" and "trace, correlated" stand for the paper's real-random and real-correlated. In the
    first, each client comes and goes as a random recorded client of a synthetic trace does. In the second,
    the recorded clients are cut into thirds of low, medium and high availability; the first three groups get
    the low third, the next four the medium, and the last three the high. The paper has equally many groups in
    each third.
    """
    assert data.groups is not None
    if row in COUNTS:
        process, means = COUNTS[row]
        return create(process, data.num_clients, seed=seed, groups=data.groups, means=means)
    level = np.arange(RECORDED) * SHARES.size // RECORDED
    record = Recording(sessions(level, SHARES, num_rounds, np.random.default_rng((seed, 1))), origin=0.0)
    if row == "trace, random":
        return create("trace", data.num_clients, seed=seed, recording=record)
    return create("trace", data.num_clients, seed=seed, recording=record, assign="key", key=data.groups)


# The learning problems.


class Problem(NamedTuple):
    """The data, the model and the test samples."""

    data: FederatedData  # clients' training samples, with the clients' groups
    kernel: Kernel  # model
    tests: tuple[Dataset, ...]  # several sets of test samples
    # (G, number of test sets) The weight of each test set for each group, rows sum to 1. The accuracy of a
    # group is the weighted mean of the accuracies on the test sets.
    mixtures: Floats
    shares: tuple[float, ...]  # (G,) weights of the groups


class Training(NamedTuple):
    """How the clients train."""

    clients_per_round: int = K
    num_rounds: int = 500
    local_steps: int = 10
    batch_size: int = 10
    rate: float = 0.1  # learning rates of the clients, and of the server in the trials with Adam
    adam_rate: float = 0.05
    evaluate_every: int = EVERY  # number of rounds between two measurements


CLIENTS_PER_GROUP, SAMPLES, TEST_SAMPLES = 1000, 50, 200
INPUTS, CLASSES = 60, 10


def synthetic(seed: int) -> Problem:
    """Draw the clustered Synthetic(.5, .5) of section IV-A. We read the 0.5 as a variance.

    The samples of group j = 1, ..., 10 are x ~ N(μ_j, j^-1.2 I) with μ_j ~ N(B_j, I) and B_j ~ N(0, 0.5). The
    label of x is the index of the largest entry of x W_j + b_j. The entries of W_j and b_j are N(0, 0.5); the
    paper does not define b_j. The paper prints softmax(w_j x) + b_j; here b_j is inside the softmax, as in
    the Synthetic data of Li et al. (FedProx). With b_j outside, a third to a half of the labels would differ.
    Each group has 200 test samples of its own; we chose this number.
    """
    rng = np.random.default_rng((seed, 0))
    sd = 0.5**0.5
    centres = rng.normal(0, sd, (NUM_GROUPS, 1)) + rng.normal(size=(NUM_GROUPS, INPUTS))
    weights = rng.normal(0, sd, (NUM_GROUPS, INPUTS, CLASSES))
    offsets = rng.normal(0, sd, (NUM_GROUPS, CLASSES))

    def draw(group: int, count: int) -> Dataset:
        spread = (group + 1) ** -0.6
        x = centres[group] + spread * rng.normal(size=(count, INPUTS))
        labels = (x @ weights[group] + offsets[group]).argmax(axis=1)
        return Dataset(x.astype(np.float32), labels)

    trains = [draw(group, CLIENTS_PER_GROUP * SAMPLES) for group in range(NUM_GROUPS)]
    groups = np.repeat(np.arange(NUM_GROUPS), CLIENTS_PER_GROUP)
    data = FederatedData(
        np.concatenate([each.inputs for each in trains]),
        np.concatenate([each.labels for each in trains]),
        np.arange(groups.size + 1) * SAMPLES,
        groups,
    )
    tests = tuple(draw(group, TEST_SAMPLES) for group in range(NUM_GROUPS))
    return Problem(data, Softmax(INPUTS, CLASSES), tests, np.eye(NUM_GROUPS), (1.0,) * NUM_GROUPS)


IMAGE_CLIENTS, SIDE, HIDDEN = 2000, 28, 32


def digits(path: Path, seed: int) -> Problem:
    """Distribute the digits of MNIST or FEMNIST over clients in ten groups.

    A client of group k holds images of the digits k and k + 1 modulo 10. The file's name tells the data set.
    There is a test set for each digit: all test images of the digit in the file.
    """
    halves = datasets.load(path.stem, str(path))

    def small(half: datasets.Samples, rows: Ints) -> Dataset:
        """Return the samples `rows` of a half, with each square of 2 x 2 pixels averaged to one pixel."""
        images, labels = half.take(rows)
        pooled = images.reshape(-1, SIDE // 2, 2, SIDE // 2, 2).mean(axis=(2, 4))
        return Dataset(pooled.reshape(len(images), -1), labels)

    # Labels of 10 and more are FEMNIST's letters.
    train = small(halves.train, np.flatnonzero(halves.train.labels < NUM_GROUPS))
    parts = label_groups(train.labels, IMAGE_CLIENTS, seed, NUM_GROUPS)
    tests = tuple(
        small(halves.test, np.flatnonzero(halves.test.labels == digit)) for digit in range(NUM_GROUPS)
    )
    mixtures = (np.eye(NUM_GROUPS) + np.roll(np.eye(NUM_GROUPS), 1, axis=1)) / 2
    kernel = MLP((SIDE * SIDE // 4, HIDDEN, NUM_GROUPS))
    return Problem(federate(train, parts.clients, parts.groups), kernel, tests, mixtures, (1.0,) * NUM_GROUPS)


def learn(problem: Problem, available: Availability, trial: str, training: Training, seed: int) -> Floats:
    """Train one trial, a key of `TRIALS`; return each group's accuracy in %, (measurements, G)."""
    logging.getLogger("flwr").setLevel(logging.WARNING)  # Flower logs a line for every server step
    selector, adam = TRIALS[trial]
    simulator = Simulator(
        problem.data,
        problem.kernel,
        selector,
        clients_per_round=training.clients_per_round,
        num_rounds=training.num_rounds,
        learning_rate=training.rate,
        batch_size=training.batch_size,
        local_steps=training.local_steps,
        seed=seed,
        # The paper selects k(t) distinct clients.
        selector_settings={"replacement": False}
        if selector == "uniform"
        else {"group_shares": problem.shares},
        client_sizes=np.ones(problem.data.num_clients),
        availability=available,
        server_strategy=FedAdam(eta=training.adam_rate) if adam else None,
    )
    accuracy = []
    for _ in range(training.num_rounds // training.evaluate_every):
        simulator.run(training.evaluate_every)
        accuracy.append([simulator.evaluate(part).accuracy for part in problem.tests])
    return 100 * np.array(accuracy) @ problem.mixtures.T


# The tables and figures.

Accuracies = Mapping[str, Mapping[str, Floats]]
"""Row -> trial -> accuracy of each group in % at each of P measurements (P, G)."""


def compare(problem: Problem, rows: tuple[str, ...], num_rounds: int, seed: int) -> Accuracies:
    """Train all trials with the availability of each of the rows."""
    return {
        row: {
            trial: learn(problem, available, trial, Training(num_rounds=num_rounds), seed) for trial in TRIALS
        }
        for row in rows
        for available in [availability(row, problem.data, num_rounds, seed)]
    }


def at_the_end(accuracy: Floats) -> Floats:
    """Return the mean accuracy of each group (G,) over the last `LAST` rounds."""
    mean: Floats = accuracy[-LAST // EVERY :].mean(axis=0)
    return mean


def tabulate(accuracies: Accuracies) -> dict[Cell, float]:
    """Return three cells for each row and trial.

    They are the groups' mean accuracy in the best round, the final accuracy of the worst group, and the first
    round in which the mean accuracy reaches 95 % of FLICS-AVG's best.
    """
    cells: dict[Cell, float] = {}
    for row, trials in accuracies.items():
        goal = 0.95 * trials["FLICS-AVG"].mean(axis=1).max()
        for trial, accuracy in trials.items():
            mean = accuracy.mean(axis=1)
            cells[row, trial] = float(mean.max())
            cells[f"{row}, worst group", trial] = float(at_the_end(accuracy).min())
            over_time = Curve(EVERY * np.arange(1.0, mean.size + 1), mean)
            cells[f"{row}, rounds", trial] = over_time.first(mean >= goal)
    return cells


def run_synthetic(seed: int, num_rounds: int = 500) -> Outcome:
    """Repeat Table I for Synthetic, and Figure 2, the mean accuracy of the groups over the rounds."""
    accuracies = compare(synthetic(seed), ROWS, num_rounds, seed)
    rounds = np.arange(EVERY, num_rounds + 1.0, EVERY)
    curves = {
        row: {trial: Curve(rounds, accuracy.mean(axis=1)) for trial, accuracy in trials.items()}
        for row, trials in accuracies.items()
    }
    return Outcome(tabulate(accuracies), curves)


def run_digits(seed: int, path: Path, num_rounds: int = 500) -> Outcome:
    """Repeat Table I for EMNIST, and Figure 3, the distribution of the groups' final accuracies."""
    accuracies = compare(digits(path, seed), PAPER_ROWS, num_rounds, seed)
    levels = np.arange(101.0)
    curves = {
        row: {
            trial: Curve(levels, 100 * (at_the_end(accuracy) <= levels[:, None]).mean(axis=1))
            for trial, accuracy in trials.items()
        }
        for row, trials in accuracies.items()
    }
    return Outcome(tabulate(accuracies), curves)


_experiment = partial(Experiment, seeds=3, digits=1, quick={"num_rounds": 120})
_on_digits = partial(_experiment, run=run_digits, x="accuracy in a group, %", y="groups with at most that, %")

EXPERIMENTS = (
    _experiment("flics-synthetic", run_synthetic, y="mean accuracy, %"),
    _on_digits("flics-mnist", data="mnist.npz"),
    _on_digits("flics-emnist", data="femnist.npz"),
)
