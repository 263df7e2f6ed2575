"""Table I of the FLICS paper on CIFAR-100: ResNet-18 with group norm, clients that come and go in 20 groups.

The data were not available here, so this experiment has no results yet; docs/results/flics.md describes it.
"""

from pathlib import Path

import numpy as np

import tasks
from benchmarks.experiments.flics.table_1 import TRIALS, Problem, Training, learn
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from simulation import availability
from simulation.kernels import kernel_of
from strategies.numerics.arrays import Floats, Ints
from tasks import datasets
from tasks.federated_data import federate

COARSE = {
    "aquatic mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food containers": "bottle bowl can cup plate",
    "fruit and vegetables": "apple mushroom orange pear sweet_pepper",
    "household electrical devices": "clock keyboard lamp telephone television",
    "household furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large carnivores": "bear leopard lion tiger wolf",
    "large man-made outdoor things": "bridge castle house road skyscraper",
    "large natural outdoor scenes": "cloud forest mountain plain sea",
    "large omnivores and herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium-sized mammals": "fox porcupine possum raccoon skunk",
    "non-insect invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles 1": "bicycle bus motorcycle pickup_truck train",
    "vehicles 2": "lawn_mower rocket streetcar tank tractor",
}
"""Coarse label -> its fine labels. Both are numbered in alphabetical order, as in the data set's files."""
PROCESSES = {"uniform": ("uniform", 4.0), "Poisson": ("poisson", 1.0), "cyclic": ("cyclic", 1.0)}
"""Row of the table -> (process, the smallest mean number of available clients of a group)."""
SPARSITY, SAMPLES = 0.1, 100
"""The parameter of the symmetric Dirichlet distribution, and the number of samples of each client."""


CLIENTS, LARGEST = 500, 20.0
"""The number of clients, and the largest mean number of available clients of a group."""
TRAINING = Training(10, 10_000, 5, 20, 0.1, 0.01, 100)
QUICK = Training(2, 2, 1, 4, 0.1, 0.01, 2)
"""The quick form measures on two images of each coarse label."""


def coarse_labels() -> Ints:
    """Return the coarse label of each of the 100 fine labels."""
    of = {fine: number for number, names in enumerate(COARSE.values()) for fine in names.split()}
    return np.array([of[fine] for fine in sorted(of)])


def distribute(labels: Ints, num_clients: int, seed: int) -> tuple[list[Ints], Ints, Floats]:
    """Give each client samples by its own distribution over the coarse labels; none goes to two clients.

    If a coarse label is used up, the client's other labels keep their proportions. Returns the sample indexes
    of each client, the clients' groups (M,) from 0 without gaps, and the mean distribution (G, 20) of each
    group over the coarse labels. Raises ValueError if there are too few samples.
    """
    if num_clients * SAMPLES > len(labels):
        raise ValueError(
            f"num_clients = {num_clients}: must be at most {len(labels) // SAMPLES} ({SAMPLES} samples each)"
        )
    rng = np.random.default_rng(seed)
    coarse = coarse_labels()[labels]
    rows = [rng.permutation(np.flatnonzero(coarse == label)) for label in range(len(COARSE))]
    left = np.array([len(each) for each in rows])
    shares = rng.dirichlet(np.full(len(COARSE), SPARSITY), num_clients)
    parts = []
    for share in shares:
        taken = np.zeros(len(COARSE), np.int64)
        while (missing := int(SAMPLES - taken.sum())) > 0:
            open_ = np.where(left > taken, share, 0)
            if open_.sum() < 1e-9:  # all labels of this client are used up
                open_ = (left - taken).astype(np.float64)
            taken = np.minimum(taken + rng.multinomial(missing, open_ / open_.sum()), left)
        parts.append(np.concatenate([row[n - k : n] for row, n, k in zip(rows, left, taken, strict=True)]))
        left = left - taken
    _, groups = np.unique(shares.argmax(axis=1), return_inverse=True)
    mixtures = np.stack([shares[groups == group].mean(axis=0) for group in range(groups.max() + 1)])
    return parts, groups.astype(np.int64), mixtures


def run(
    seed: int,
    path: Path,
    *,
    num_clients: int = CLIENTS,
    largest: float = LARGEST,
    training: Training = TRAINING,
) -> Outcome:
    """Repeat Table I for CIFAR-100."""
    halves = datasets.load("cifar100", str(path))
    parts, groups, mixtures = distribute(halves.train.labels, num_clients, seed)
    data = federate(halves.train, parts, groups)
    coarse = coarse_labels()[halves.test.labels]
    found = [np.flatnonzero(coarse == label) for label in range(len(COARSE))]
    if min(map(len, found)) == 0:
        raise ValueError(f"{path}: y_test lacks labels: must have a sample of each of the 20 coarse labels")
    tests = tuple(halves.test.take(rows[:2] if training is QUICK else rows) for rows in found)
    counts = np.bincount(groups)
    shares = tuple((counts / counts.sum()).tolist())
    problem = Problem(data, kernel_of(tasks.create("cifar100")), tests, mixtures, shares)
    cells: dict[Cell, float] = {}
    panels: dict[str, dict[str, Curve]] = {}
    rounds = np.arange(training.evaluate_every, training.num_rounds + 1.0, training.evaluate_every)
    for row, (process, smallest) in PROCESSES.items():
        means = np.geomspace(smallest, max(largest, smallest), len(counts))
        for trial in TRIALS:
            here = availability.create(process, num_clients, seed=seed, groups=groups, means=means)
            accuracy = learn(problem, here, trial, training, seed)
            mean = accuracy.mean(axis=1)
            last = accuracy[-max(1, len(accuracy) // 20) :].mean(axis=0)
            cells[row, trial] = float(mean.max())
            cells[f"{row}, worst group", trial] = float(last.min())
            panels.setdefault(row, {})[trial] = Curve(rounds, mean)
    return Outcome(cells, panels)


EXPERIMENTS = (
    Experiment(
        name="flics-cifar100",
        run=run,
        seeds=1,
        digits=1,
        y="mean accuracy, %",
        data="cifar100.npz",
        gpu=True,
        quick={"training": QUICK},
    ),
)
