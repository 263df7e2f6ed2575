"""Power-of-Choice on images: the split of the data, the training of a trial, and the duration of a round.

docs/results/power-of-choice.md says what the paper's terms mean here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.experiments.report import Curve
from simulation import availability
from simulation.kernels import MLP
from simulation.response_times import ResponseTimes
from simulation.simulator import Simulator
from strategies.numerics.arrays import Floats, Ints
from tasks import datasets
from tasks.federated_data import Dataset, FederatedData, federate
from tasks.partitions import dirichlet

M = 100
SIZES = (784, 64, 30, 10)
BATCH_SIZE, STEPS = 64, 30
EVALUATED, LOSS_EVERY = 5, 20
"""The test accuracy is measured every `EVALUATED` rounds; the training loss, which takes longer, every
`LOSS_EVERY` rounds."""
SECONDS, JITTER = 0.296, 0.22
"""The median of the seconds that a local update of 30 mini-batches of 64 samples takes, and the standard
deviation of the logarithm of these seconds, see `Clock`."""


class Trial(NamedTuple):
    """A selector to train with."""

    label: str  # row of the table
    selector: str  # name of the selector in the registry
    # Keyword arguments of the selector
    settings: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    clients_per_round: int = 3  # paper's m
    num_rounds: int = 0  # maximum number of rounds; 0 = as many as the case has


class Case(NamedTuple):
    """The split of the data, and how all trials are trained on it."""

    alpha: float  # α of the Dirichlet distribution, > 0
    num_rounds: int  # T
    batch_size: int = BATCH_SIZE  # b and τ
    local_steps: int = STEPS
    # Whether only half of the clients is available in a round (appendix G.3). The two halves take turns, and
    # each client of the current half is unavailable with probability 0.1.
    in_turns: bool = False
    name: str = ""  # prefix of the row labels if an experiment has several cases, otherwise ""
    dropout: float = 0.0  # probability with which a unit of the first hidden layer is dropped in training


class Federation(NamedTuple):
    """The images."""

    data: FederatedData  # training images of all clients
    test: Dataset  # images on which the accuracy is measured
    # images on which the training loss is measured: every eighth training image, so an eighth of each
    # client's images.
    some: Dataset


class Track(NamedTuple):
    """The result of one trial."""

    accuracy: Curve  # test accuracy in % after rounds 5, 10, ...
    loss: Curve  # training loss in nats after rounds 20, 40, ...
    seconds: float  # t_comp in seconds, the mean over the rounds


@dataclass(frozen=True)
class Pool:
    """All samples of a data set: those of its training half and those of its test half."""

    halves: datasets.Halves

    def take(self, rows: Ints) -> Dataset:
        """Return the samples in these rows; the rows of the test half follow those of the training half."""
        first = len(self.halves.train.labels)
        inner = rows < first
        train, test = self.halves.train.take(rows[inner]), self.halves.test.take(rows[~inner] - first)
        order = np.argsort(np.concatenate([np.flatnonzero(inner), np.flatnonzero(~inner)]), kind="stable")
        inputs, labels = (train.inputs, test.inputs), (train.labels, test.labels)
        return Dataset(np.concatenate(inputs)[order], np.concatenate(labels)[order])


def shuffled(
    dataset: str, file: Path, seed: int, num_clients: int, alpha: float
) -> tuple[FederatedData, Dataset]:
    """Give the clients 80 % of all samples of a file, and return the last 15 % as the test samples."""
    halves = datasets.load(dataset, str(file))
    labels = np.concatenate([halves.train.labels, halves.test.labels])
    order = np.random.default_rng(seed).permutation(len(labels))
    train, _, test = np.split(order, [len(order) * 80 // 100, len(order) * 85 // 100])
    parts = dirichlet(labels[train], num_clients, seed, alpha)
    return federate(Pool(halves), [train[part] for part in parts]), Pool(halves).take(test)


def make_federation(file: Path, seed: int, alpha: float) -> Federation:
    """Return the images of an .npz file, see `shuffled`."""
    data, test = shuffled(file.stem, file, seed, M, alpha)
    return Federation(data, test, Dataset(data.inputs[::8], data.labels[::8]))


def learning_rate(round: int) -> float:
    """Return η of a round: .005, halved after 150 and after 300 rounds."""
    return 0.005 * 0.5 ** ((round > 150) + (round > 300))


class Clock:
    """Simulates t_comp, the paper's duration of a round, for clients with these numbers of samples (M,).

    t_comp is the time until the slowest candidate has evaluated its loss, plus the time until the slowest
    selected client has trained. All clients have equal machines, as in appendix F, but their times are noisy:
    a local update of 30 mini-batches of 64 samples takes .296 s · exp(.22 N(0, 1)), drawn for each client and
    round. The numbers .296 and .22 are fitted to the paper's tables, where rand takes .36 s with 3 clients
    and .42 s with 10 clients. Times are proportional to the number of samples. Evaluation takes a third of
    the time of training, since it needs only one of the three matrix products that a layer needs in training.
    The server's time is ignored.
    """

    def __init__(self, sizes: Ints, case: Case, seed: int) -> None:
        self._sizes, self._seed = sizes, seed
        self.training = self._times(case.local_steps * np.minimum(case.batch_size, sizes))

    def _times(self, samples: Floats | Ints) -> ResponseTimes:
        work = samples / (STEPS * BATCH_SIZE)
        return ResponseTimes(M, self._seed, median=SECONDS, sigma=0.0, jitter=JITTER, work=work)

    def polling(self, loss_batch_size: float | None) -> ResponseTimes:
        """Return each client's time to evaluate its loss on `loss_batch_size` samples, or on all if None."""
        asked = self._sizes if loss_batch_size is None else np.minimum(loss_batch_size, self._sizes)
        return self._times(asked / 3)


def train(federation: Federation, case: Case, trial: Trial, seed: int) -> Track:
    """Train one trial. All trials of a seed have the same mini-batches and the same initial model."""
    num_rounds = min(case.num_rounds, trial.num_rounds or case.num_rounds)
    clock = Clock(federation.data.sizes(), case, seed)
    # The halves are the first fifty and the last fifty clients, which differ only by chance.
    here = availability.create("cyclic", M, seed=seed, rates=0.9) if case.in_turns else None
    simulator = Simulator(
        federation.data,
        MLP(SIZES, dropout=case.dropout),
        trial.selector,
        clients_per_round=trial.clients_per_round,
        num_rounds=case.num_rounds,
        learning_rate=learning_rate,
        batch_size=case.batch_size,
        local_steps=case.local_steps,
        seed=seed,
        selector_settings=trial.settings,
        availability=here,
        response_times=clock.training,
    )
    selector = simulator.selector
    polling, polled = clock.polling(selector.poll_settings.get("batch-size")), 0.0
    accuracies, losses = [], []
    for round in range(1, num_rounds + 1):
        asked = selector.candidates(round, available=None if here is None else here.available(round))
        if asked is not None:
            polled += float(polling.seconds(round, asked).max())
        simulator.step()
        if round % EVALUATED == 0:
            accuracies.append(100 * simulator.evaluate(federation.test).accuracy)
        if round % LOSS_EVERY == 0:
            losses.append(simulator.evaluate(federation.some).loss)
    return Track(
        Curve(EVALUATED * np.arange(1.0, len(accuracies) + 1), np.array(accuracies)),
        Curve(LOSS_EVERY * np.arange(1.0, len(losses) + 1), np.array(losses)),
        (simulator.seconds + polled) / num_rounds,
    )
