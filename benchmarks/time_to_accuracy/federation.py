"""The federations and the methods that the benchmark of time to accuracy compares."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import tasks
from benchmarks.experiments.methods import OWN_DRAWS
from simulation.availability import Availability, Markov
from simulation.kernels import Plan, kernel_of
from simulation.measured_speeds import read_device_speeds
from simulation.response_times import ResponseTimes
from strategies.numerics.arrays import Floats, Ints
from strategies.numerics.streams import generator
from strategies.options import Buffered
from tasks.federated_data import Dataset, FederatedData

# The median seconds of a round, and two standard deviations of the logarithm of the seconds: SIGMA over the
# clients, and JITTER over the rounds of a client.
MEDIAN, SIGMA, JITTER = 10.0, 1.0, 0.3
BATCH_SIZE, STEPS = 16, 5
DEVICES = Path(__file__).with_name("devices.json")
MEGABYTES = 20.0  # received plus sent by a client in a round, if the speeds come from the file of devices
TESTED = 2_000  # at most this many test samples are used


class Setting(NamedTuple):
    """A federation."""

    speeds: Literal["lognormal", "devices"] = "lognormal"
    slow: Literal["any", "large and hard", "small and easy"] = "any"  # the clients that are slow
    awake: float = 1.0  # the share of the rounds in which a client is available
    task: str = "digits"
    clients: int = 60  # M
    per_round: int = 6  # K
    typical: tuple[float, ...] | None = None  # (M,) the clients' median seconds, if they are known


class Method(NamedTuple):
    """A way to select clients and to wait for them."""

    selector: str
    settings: Mapping[str, Any] = {}
    over_selection: float = 1.0
    correction: Literal["equal", "rates"] = "equal"
    buffered: Literal["", "fair", "fedbuff"] = ""  # "": not buffered; "fair": with `Buffered.count_busy`
    staleness_power: float = 0.0  # of buffered rounds

    def mode(self, per_round: int) -> Buffered | None:
        """Return the settings of buffered rounds, with `per_round` busy clients; None if not buffered."""
        if not self.buffered:
            return None
        return Buffered(
            concurrency=per_round,
            size=max(1, per_round // 2),
            staleness_power=self.staleness_power,
            count_busy=self.buffered == "fair",
        )


METHODS = {
    "uniform": Method("uniform"),
    "md": Method("md"),
    "forecast": Method("forecast", OWN_DRAWS),
    "timed-md": Method("timed-md"),
    "timed-forecast": Method("timed-forecast"),
    "oort": Method("oort", {"pace": 0.05}),
    "md, 1.3 K": Method("md", over_selection=1.3),
    "md, 1.3 K, rates": Method("md", over_selection=1.3, correction="rates"),
    "fedbuff": Method("uniform", buffered="fedbuff", staleness_power=0.5),
    "buffered-md": Method("md", buffered="fair"),
    "buffered-forecast": Method("forecast", OWN_DRAWS, buffered="fair"),
    "buffered-forecast, power 0.5": Method("forecast", OWN_DRAWS, buffered="fair", staleness_power=0.5),
}


class Federation:
    """The clients of a setting with one seed: their samples, sizes, speeds and availability.

    ``devices`` is the file with the speeds of devices, see `simulation.measured_speeds`; ``data_dir`` the
    folder with the task's data, "" for a task that needs no files.
    """

    def __init__(self, setting: Setting, seed: int, *, devices: Path = DEVICES, data_dir: str = "") -> None:
        self.setting, self.seed = setting, seed
        task = tasks.create(setting.task, partition="dirichlet:0.3", data_dir=data_dir)
        self.learning_rate = tasks.learning_rate(setting.task)
        self.kernel = kernel_of(task, "cpu")
        self.data = task.federated_data(setting.clients, seed)
        self.sizes: Ints = self.data.sizes()
        self.test = task.test_data()
        if len(self.test) > TESTED:
            self.test = self.test.take(generator(seed, 0, "tested").permutation(len(self.test))[:TESTED])
        work = self._typical(devices)
        self.times = ResponseTimes(setting.clients, seed, median=1, sigma=0, jitter=JITTER, work=work)
        quarters = np.argsort(np.argsort(self.times.typical)) * 4 // setting.clients
        self.groups = [_samples(self.data, np.flatnonzero(quarters == quarter)) for quarter in range(4)]
        """The samples of each quarter of the clients; the first quarter has the fastest clients."""

    def availability(self) -> Availability | None:
        """Return the process that says which clients are available; None if all clients always are."""
        if self.setting.awake == 1:
            return None
        return Markov(self.setting.clients, self.seed, rates=self.setting.awake)

    @cached_property
    def difficulty(self) -> Floats:
        """(M,) the loss on each client's samples, with a model that was trained on all samples."""
        everything = FederatedData(self.data.inputs, self.data.labels, np.array([0, len(self.data.labels)]))
        arrays = self.kernel.initial_arrays(self.seed)
        plan = Plan(self.seed, 1, self.learning_rate, batch_size=64, steps=300)
        trained = self.kernel.train(arrays, everything, np.array([0]), plan)
        model = {name: np.asarray(array) for name, array in trained.updates.model(0).items()}
        return self.kernel.losses(model, self.data, np.arange(self.setting.clients))

    @cached_property
    def updates(self) -> Floats:
        """(M, P) the update of each client from the initial model, which has P parameters."""
        arrays = self.kernel.initial_arrays(self.seed)
        plan = Plan(self.seed, 1, self.learning_rate, BATCH_SIZE, STEPS)
        trained = self.kernel.train(arrays, self.data, np.arange(self.setting.clients), plan)
        rows = []
        for row in range(self.setting.clients):
            model = trained.updates.model(row)
            rows.append(np.concatenate([(model[name] - arrays[name]).ravel() for name in arrays]))
        return np.array(rows, dtype=np.float64)

    def _typical(self, devices: Path) -> Floats:
        """Return the clients' median seconds in a round (M,), by default drawn around `MEDIAN`."""
        if self.setting.typical is not None:
            return np.array(self.setting.typical)
        number = self.setting.clients
        if self.setting.speeds == "devices":
            speeds = read_device_speeds(devices).assigned(number, self.seed)
            seconds = speeds.seconds(BATCH_SIZE * STEPS, MEGABYTES)
            seconds = MEDIAN * seconds / np.median(seconds)
        else:
            seconds = ResponseTimes(number, self.seed, median=MEDIAN, sigma=SIGMA).typical
        if self.setting.slow == "any":
            return seconds
        order = _ranks(self.sizes) + _ranks(self.difficulty)
        if self.setting.slow == "small and easy":
            order = -order
        found: Floats = np.sort(seconds)[_ranks(order)]
        return found


def _ranks(values: Any) -> Ints:
    ranks: Ints = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return ranks


def _samples(data: FederatedData, clients: Ints) -> Dataset:
    rows = np.concatenate([np.arange(*data.offsets[m : m + 2]) for m in clients])
    return Dataset(data.inputs[rows], data.labels[rows])
