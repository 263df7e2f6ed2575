"""Real tasks: how many rounds, seconds and megabytes the ways to select clients need.

10 clients train in a round, with a perceptron on MNIST, a small CNN on CIFAR-10 (both with labels by
Dirichlet(α) over 100 clients), or a small LSTM on the roles of Shakespeare, 156 clients who have what they
say; it reads the last 20 of the 80 characters. All methods of a seed share the data, the initial model, the
mini-batches, the devices and the test samples: 1,000 random ones, measured in every second round.

The learning rate was tuned for each task in steps of 2, with `md` on the seeds 1000 and 1001, which are not
measured (`tune`). Shakespeare has half of the best rate, with which some seeds diverge. "The best accuracy"
is the final one of `md` in these runs. Methods have no rates of their own: tuning each would take longer than
the experiment. A round takes as long as its slowest client. No method looks at durations, so one run gives
the seconds for all kinds of devices (`SPEEDS`). The polls of `cpow-d` take no time; the models that it sends
to candidates count as megabytes.

With "diurnal", a client's chance to be available follows a sine over 24 rounds, by its time zone, which has
nothing to do with its data. The error of the aggregate is that among all clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tasks
from benchmarks.experiments.draws import products
from benchmarks.experiments.methods import OWN_DRAWS, Method
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from benchmarks.time_to_accuracy.federation import JITTER, MEDIAN, SIGMA
from simulation.availability import create
from simulation.kernels import Kernel, Plan, kernel_of
from simulation.response_times import ResponseTimes
from simulation.simulator import Simulator
from strategies.numerics.arrays import Floats, Ints
from strategies.numerics.streams import generator
from strategies.selectors import Selector, register
from strategies.selectors.context import RoundContext
from strategies.selectors.power_of_choice.plain_mean import PlainMeanSelector
from tasks.federated_data import Dataset, FederatedData

CLIENTS_PER_ROUND, BATCH_SIZE = 10, 16
TESTED, OWN = 1_000, 50  # at most so many test samples, and training samples of each client, are evaluated
EVERY = 2  # rounds between two evaluations
WINDOW = 3  # an accuracy is reached when the mean of so many evaluations reaches it
LAST = 6  # evaluations at the end whose accuracy is averaged
LEVELS = (80, 90, 95)  # % of the best accuracy
REDRAWS = 200  # draws from which the error and the bias of the aggregate are measured
SPEEDS = {"any": 0, "slow are large": 1, "slow are small": -1}
"""Which clients are slow -> the sign of the rank correlation of seconds with data, which is 1, -1 or none."""


class FedAvgSelector(PlainMeanSelector):
    """FedAvg as people run it: K random clients without replacement, and their mean weighted by data."""

    name = "fedavg"
    summary = "with equal probability, weighted by data among the selected"

    def _choose(self, context: RoundContext) -> tuple[Ints, Floats]:
        clients = context.rng("select").permutation(context.available.clients)[: context.k]
        return clients, np.full(clients.size, 1 / context.available.count)


BASELINE = "md"
METHODS = {
    "md": Method("md"),
    "md, balanced": Method("md", {"design": "balanced"}),
    "fedavg": Method("fedavg", {"averaging": "sizes"}),
    "forecast": Method("forecast", OWN_DRAWS),
    "forecast, balanced": Method("forecast"),
    "clustered-updates": Method("clustered-updates"),
    "divfl": Method("divfl"),
    "cpow-d": Method("cpow-d", {"batch_size": BATCH_SIZE}),
}


@dataclass(frozen=True)
class Setting:
    """A task and its training."""

    task: str
    partition: str
    learning_rate: float
    local_steps: int
    num_rounds: int
    best: float  # the best accuracy in %
    num_clients: int = 100
    model: Mapping[str, Any] = field(default_factory=dict)
    diurnal: bool = False  # whether clients sleep: half are available on average, each by its time zone


class Federation(NamedTuple):
    """The data of a seed."""

    data: FederatedData
    test: Dataset
    own: Sequence[Dataset]  # some training samples of each client
    kernel: Kernel


class Track(NamedTuple):
    """What a method did."""

    accuracy: Floats  # (T / EVERY,) in %
    cohorts: Sequence[Ints]  # the clients of each round
    megabytes: Floats  # (T,) sent and received up to the end of each round
    worst: float  # accuracy in % of the worst tenth of the clients on their own samples
    error: float  # of the aggregate, divided by that of `md`
    bias: float  # in % of the error, see `_error_and_bias`


def run(
    seed: int, path: Path, *, setting: Setting, methods: Mapping[str, Method] = METHODS, quick: bool = False
) -> Outcome:
    """Train with each method; `quick` trains for a tenth of the rounds."""
    setting = replace(setting, num_rounds=setting.num_rounds // 10) if quick else setting
    federation = federation_of(setting, seed, path)
    devices = {name: times_of(federation.data.sizes(), sign, seed) for name, sign in SPEEDS.items()}
    cells: dict[Cell, float] = {}
    curves = {}
    for name, method in methods.items():
        track = train(setting, federation, method, seed)
        costs = {"rounds": np.arange(1.0, setting.num_rounds + 1)}
        costs |= {f"s ({slow})": elapsed(track.cohorts, times) for slow, times in devices.items()}
        costs["MB"] = track.megabytes
        smooth = np.convolve(track.accuracy, np.full(WINDOW, 1 / WINDOW), "valid")
        curve = curves[name] = Curve(EVERY * np.arange(WINDOW, track.accuracy.size + 1.0), smooth)
        for cost, values in costs.items():
            for level in LEVELS:
                at = curve.first(smooth >= level / 100 * setting.best)
                cells[name, f"{cost} to {level} %"] = at if np.isnan(at) else float(values[int(at) - 1])
        cells[name, "final accuracy, %"] = float(track.accuracy[-LAST:].mean())
        cells[name, "worst tenth, %"] = track.worst
        # Unlike the standard deviation, this hardly depends on how much the accuracy still rises.
        steps = np.diff(track.accuracy[-LAST:])
        cells[name, "wobble, points"] = float(np.sqrt((steps**2).mean() / 2))
        cells[name, "error of the aggregate"] = track.error
        cells[name, "bias, % of the error"] = track.bias
    return Outcome(cells, {"": curves})


def federation_of(setting: Setting, seed: int, path: Path) -> Federation:
    """Return the data of a seed, which are the same for all methods."""
    task = tasks.create(setting.task, partition=setting.partition, data_dir=str(path), **setting.model)
    data, test = task.federated_data(setting.num_clients, seed), task.test_data()
    rng = generator(seed, 0, "tested")
    test = test.take(rng.permutation(len(test))[:TESTED])
    clients = [data.client(m) for m in range(data.num_clients)]
    own = [each.take(rng.permutation(len(each))[:OWN]) for each in clients]
    return Federation(data, test, own, kernel_of(task, "cpu"))


def times_of(sizes: Ints, sign: int, seed: int) -> ResponseTimes:
    """Return the clients' times. They have the same distribution for every `sign`, see `SPEEDS`."""
    typical = ResponseTimes(sizes.size, seed, median=MEDIAN, sigma=SIGMA).typical
    if sign:
        typical[np.argsort(sign * sizes, kind="stable")] = np.sort(typical)
    return ResponseTimes(sizes.size, seed, median=1, sigma=0, jitter=JITTER, work=typical)


def elapsed(cohorts: Sequence[Ints], times: ResponseTimes) -> Floats:
    """Return (T,) the seconds up to the end of each round, which waits for the slowest client."""
    seconds = [times.seconds(number, cohort).max(initial=0) for number, cohort in enumerate(cohorts, 1)]
    return np.cumsum(seconds)


def train(setting: Setting, federation: Federation, method: Method, seed: int) -> Track:
    """Train with one method."""
    if method.selector == FedAvgSelector.name:
        register(FedAvgSelector)  # not on import: only these experiments use it
    simulator = Simulator(
        federation.data,
        federation.kernel,
        method.selector,
        clients_per_round=CLIENTS_PER_ROUND,
        num_rounds=setting.num_rounds,
        learning_rate=setting.learning_rate,
        batch_size=BATCH_SIZE,
        local_steps=setting.local_steps,
        seed=seed,
        selector_settings=method.settings,
        availability=create("diurnal", setting.num_clients, seed=seed) if setting.diurnal else None,
    )
    accuracy, cohorts, models = [], [], []
    for number in range(1, setting.num_rounds + 1):
        polled = simulator.selector.candidates(number)
        cohorts.append(simulator.step().selection.clients)
        models.append(2 * cohorts[-1].size + (0 if polled is None else polled.size))
        if number % EVERY == 0:
            accuracy.append(100 * simulator.evaluate(federation.test).accuracy)
    size = sum(array.nbytes for array in simulator.arrays.values()) / 1e6
    own = np.sort([100 * simulator.evaluate(each).accuracy for each in federation.own])
    plan = Plan(seed, setting.num_rounds + 1, setting.learning_rate, BATCH_SIZE, setting.local_steps)
    found = products(federation.kernel, simulator.arrays, federation.data, plan)
    error, bias = _error_and_bias(simulator.selector, *found, setting.num_rounds)
    worst = float(own[: own.size // 10].mean())
    return Track(np.array(accuracy), cohorts, size * np.cumsum(models), worst, error, bias)


def _error_and_bias(
    selector: Selector, products: Floats, losses: Floats, num_rounds: int
) -> tuple[float, float]:
    """Return the error and the bias of the aggregate after the last round, from many selections.

    `products` (M, M) holds the inner products of all clients' updates u, `losses` (M,) the losses that
    candidates report. The error e of a selection is Σ c_m u_m - Σ λ_m u_m. The results are the root of E‖e‖²
    divided by that of `md`, and ‖E e‖ in % of the root of E‖e‖². As in `benchmarks.time_to_accuracy.bias`, ‖E
    e‖² is the product of the mean errors in two halves, so the values of unbiased methods are around 0.
    """
    shares: Floats = selector.client_sizes / selector.client_sizes.sum()
    off = np.tile(-shares, (REDRAWS, 1))
    for i in range(REDRAWS):
        number = num_rounds + 1 + i
        polled = selector.candidates(number)
        reports = None if polled is None else {"loss": losses[polled]}
        selection = selector.select(number, candidates=polled, reports=reports)
        off[i, selection.clients] += selection.weights
    square = float(np.einsum("im,mn,in->i", off, products, off, optimize=True).mean())
    independent = float(shares @ np.diag(products) - shares @ products @ shares) / selector.clients_per_round
    first, second = off[: REDRAWS // 2].mean(axis=0), off[REDRAWS // 2 :].mean(axis=0)
    mean = float(first @ products @ second) / square
    return float(np.sqrt(square / independent)), 100 * float(np.copysign(np.sqrt(abs(mean)), mean))


def tune(name: str, path: Path, seeds: Sequence[int] = (1000, 1001)) -> dict[float, float]:
    """Return the mean final accuracy in % of `md` by learning rate: the setting's, half and twice of it."""
    setting, found = SETTINGS[name], {}
    for rate in (setting.learning_rate / 2, setting.learning_rate, 2 * setting.learning_rate):
        tried, runs = replace(setting, learning_rate=rate), []
        for seed in seeds:
            runs.append(train(tried, federation_of(tried, seed, path), METHODS[BASELINE], seed))
        found[rate] = float(np.mean([each.accuracy[-LAST:].mean() for each in runs]))
    return found


SETTINGS = {
    "real-mnist": Setting("mnist-mlp", "dirichlet:0.3", 0.4, 10, 100, best=94.5),
    "real-cifar-.1": Setting("cifar10", "dirichlet:0.1", 0.1, 10, 80, best=37.7, model={"small": True}),
    "real-cifar-.3": Setting("cifar10", "dirichlet:0.3", 0.2, 10, 80, best=45.6, model={"small": True}),
    "real-shakespeare": Setting(
        "shakespeare", "natural", 4.0, 5, 70, 33.7, 156, {"hidden": 64, "depth": 1, "length": 20}
    ),
}
SETTINGS |= {
    f"{name}-diurnal": replace(SETTINGS[name], diurnal=True) for name in ("real-mnist", "real-cifar-.1")
}
EXPERIMENTS = tuple(
    Experiment(
        name,
        partial(run, setting=setting),
        seeds=10,
        digits=1,
        y="test accuracy, %",
        data=f"{setting.task.removesuffix('-mlp')}.npz",
    )
    for name, setting in SETTINGS.items()
)
