"""How long a federation with slow clients takes to reach an accuracy, and how biased its aggregate is.

``cohort bench time-to-accuracy [--seeds 5] [--quick] [--json]``

M clients train a softmax model on the digits (Dirichlet 0.3, so clients differ in size and labels). Each
client's speed is lognormal; in some settings its time for a round also grows or shrinks with its size. All
seconds are simulated, so the results do not depend on the machine. A method trains until `BUDGET` seconds
have passed. Nothing was tuned: all methods have their default settings, except that Oort's pacer moves by 5 %
of the clients, as in its published code. (With its paper's step, nobody is penalised among so few clients.)
The buffered methods keep as many clients busy as a round of the other methods selects, and take a step after
half as many arrivals.

For each method:

- The seconds until the mean accuracy of `WINDOW` rounds reaches 80, 90 and 95 % of the best accuracy that any
  method reaches with this setting and seed; infinite if never.
- The accuracy at the end, and that on the samples of the slowest quarter of the clients.
- The bias: 1 - (the share of the aggregate's weights that the slowest quarter has) / (its share of the data
  of the available clients). The weights of a buffered round include the staleness factor, and their sum is
  below 1, so their share of this sum counts. An unbiased method has the expectation 0. At 1, the slowest
  quarter counts for nothing.
- The megabytes that clients received and sent until 90 %.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

import tasks
from deploy.runs.seeds import interval
from simulation.availability import Availability, Markov
from simulation.kernels import kernel_of
from simulation.response_times import ResponseTimes
from simulation.simulator import Simulator
from strategies.numerics.arrays import Floats, Ints
from strategies.options import Buffered, Faults
from tasks.data import Dataset, FederatedData

BUDGET = 6_000.0  # simulated seconds
WINDOW = 5  # rounds
ROUNDS_PER_ROUND = 4  # the most buffered rounds in place of a round
LEVELS = (80, 90, 95)  # % of the best accuracy
MEDIAN, SIGMA, JITTER = 10.0, 1.0, 0.3  # of the clients' seconds


class Setting(NamedTuple):
    """A federation."""

    power: float = 0.0  # a client's seconds grow with its size to this power
    awake: float = 1.0  # the share of the rounds in which a client is available
    clients: int = 60  # M
    per_round: int = 6  # K
    typical: tuple[float, ...] | None = None  # (M,) the clients' median seconds, if they are known

    def response_times(self, sizes: Ints, seed: int) -> ResponseTimes:
        """Return the seconds that clients take, for clients with these numbers of samples."""
        if self.typical is not None:
            return ResponseTimes(self.clients, seed, median=1, sigma=0, jitter=JITTER, work=self.typical)
        work = (sizes / np.median(sizes)) ** self.power
        return ResponseTimes(self.clients, seed, median=MEDIAN, sigma=SIGMA, jitter=JITTER, work=work)


class Method(NamedTuple):
    """A way to select clients and to wait for them."""

    selector: str
    settings: Mapping[str, Any] = {}
    over_selection: float = 1.0
    correction: Literal["equal", "rates"] = "equal"
    buffered: Literal["", "fair", "fedbuff"] = ""  # "fair": draws count for busy clients, see `Buffered`
    staleness_power: float = 0.5  # of buffered rounds

    def mode(self, per_round: int) -> Buffered | None:
        """Return the buffered rounds, with as many busy clients as a round of another method selects."""
        if not self.buffered:
            return None
        return Buffered(
            concurrency=per_round,
            size=max(1, per_round // 2),
            staleness_power=self.staleness_power,
            count_busy=self.buffered == "fair",
        )


class Result(NamedTuple):
    """What one method reached with one seed."""

    seconds: Floats  # (R,) simulated time at the end of each round
    accuracy: Floats  # (R,) mean of the last `WINDOW` rounds
    megabytes: Floats  # (R,) sent and received so far
    slowest: float  # accuracy on the slowest quarter's samples at the end
    bias: float


SETTINGS = {
    "independent": Setting(),
    "large clients slow": Setting(power=1.0),
    "large clients fast": Setting(power=-1.0),
    "independent, half available": Setting(awake=0.5),
}
METHODS = {
    "uniform": Method("uniform"),
    "md": Method("md"),
    "forecast": Method("forecast"),
    "timed-md": Method("timed-md"),
    "timed-forecast": Method("timed-forecast"),
    "oort": Method("oort", {"pace": 0.05}),
    "md, 1.3 K": Method("md", over_selection=1.3),
    "md, 1.3 K, rates": Method("md", over_selection=1.3, correction="rates"),
    "timed-md, 1.3 K, rates": Method("timed-md", over_selection=1.3, correction="rates"),
    "fedbuff": Method("uniform", buffered="fedbuff"),
    "buffered-md": Method("md", buffered="fair"),
    "buffered-forecast": Method("forecast", buffered="fair"),
    "buffered-forecast, power 0": Method("forecast", buffered="fair", staleness_power=0),
}


def play(
    setting: Setting, method: Method, seed: int, *, budget: float = math.inf, rounds: int = 1_000
) -> Result:
    """Train with one method and one seed until `budget` simulated seconds have passed, or for `rounds`."""
    task = tasks.create("digits", partition="dirichlet:0.3")
    data, test = task.federated_data(setting.clients, seed), task.test_data()
    sizes = data.sizes()
    times = setting.response_times(sizes, seed)
    slow = times.typical >= np.quantile(times.typical, 0.75)
    availability: Availability | None = None
    if setting.awake < 1:
        availability = Markov(setting.clients, seed, rates=np.full(setting.clients, setting.awake))
    simulator = Simulator(
        data,
        kernel_of(task),
        method.selector,
        clients_per_round=setting.per_round,
        num_rounds=rounds,
        learning_rate=tasks.learning_rate("digits"),
        batch_size=16,
        local_steps=5,
        seed=seed,
        selector_settings=method.settings,
        availability=availability,
        response_times=times,
        mode=method.mode(setting.per_round),
        faults=Faults(
            guard=False, silence=False, over_selection=method.over_selection, correction=method.correction
        ),
    )
    size = sum(array.nbytes for array in simulator.arrays.values()) / 1e6
    seconds: list[float] = []
    accuracy: list[float] = []
    megabytes, given, given_of, due, used = [0.0], 0.0, 0.0, 0.0, 0
    most = rounds * (ROUNDS_PER_ROUND if method.buffered else 1)
    while simulator.seconds < budget and len(seconds) < most:
        record = simulator.step()
        seconds.append(simulator.seconds)
        accuracy.append(simulator.evaluate(test).accuracy)
        clients = record.selection.clients
        megabytes.append(megabytes[-1] + 2 * size * clients.size)
        here = np.arange(setting.clients) if availability is None else availability.available(record.round)
        if not record.skipped:
            used += 1
            given += float(record.weights[slow[clients]].sum())
            given_of += float(record.weights.sum()) if method.buffered else 1.0
            due += float(sizes[here][slow[here]].sum() / sizes[here].sum())
    return Result(
        np.array(seconds),
        moving_mean(accuracy),
        np.array(megabytes[1:]),
        simulator.evaluate(_samples(data, np.flatnonzero(slow))).accuracy,
        1 - given / given_of / (due / used),
    )


def moving_mean(accuracy: Sequence[float]) -> Floats:
    """Return (R,) the mean accuracy of the last `WINDOW` rounds; of rounds before the first, 0."""
    found: Floats = np.convolve(accuracy, np.full(WINDOW, 1 / WINDOW))[: len(accuracy)]
    return found


def first_at(level: float, spent: Floats, accuracy: Floats) -> float:
    """Return the seconds or megabytes spent when the accuracy first reaches a level; infinite if never."""
    there = np.flatnonzero(accuracy >= level)
    return float(spent[there[0]]) if there.size else math.inf


def measure(names: Iterable[str], seeds: Iterable[int], budget: float = BUDGET) -> dict[str, dict[str, Any]]:
    """Return the results of all methods in the named settings: setting -> method -> number -> value.

    Each of "to80_s", "to90_s", "to95_s", "final", "slowest", "bias" and "to90_mb" is a mean over the seeds.
    With two seeds or more, "low" and "high" are the ends of the 95 % interval of "to90_s", "bias_low" and
    "bias_high" those of "bias".
    """
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        values: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
        for seed in seeds:
            played = {m: play(SETTINGS[name], method, seed, budget=budget) for m, method in METHODS.items()}
            best = max(float(result.accuracy.max()) for result in played.values())
            for method, result in played.items():
                values[method].append(_numbers(result, best))
        found[name] = {method: _summary(each) for method, each in values.items()}
    return found


def _numbers(result: Result, best: float) -> dict[str, float]:
    numbers = {"final": float(result.accuracy[-1]), "slowest": result.slowest, "bias": result.bias}
    for level in LEVELS:
        for unit, spent in (("s", result.seconds), ("mb", result.megabytes)):
            numbers[f"to{level}_{unit}"] = first_at(level / 100 * best, spent, result.accuracy)
    return numbers


def _summary(values: list[dict[str, float]]) -> dict[str, float]:
    means = {name: float(np.mean([each[name] for each in values])) for name in values[0]}
    seconds, bias = (interval([each[name] for each in values]) for name in ("to90_s", "bias"))
    return {
        **means,
        **{"low": seconds.mean - seconds.half, "high": seconds.mean + seconds.half},
        **{"bias_low": bias.mean - bias.half, "bias_high": bias.mean + bias.half},
    }


def _samples(data: FederatedData, clients: Any) -> Dataset:
    rows = np.concatenate([np.arange(*data.offsets[m : m + 2]) for m in clients])
    return Dataset(data.inputs[rows], data.labels[rows])


def run(seeds: int, quick: bool, as_json: bool) -> None:
    """Print the table, or a JSON object: setting -> method -> numbers (see `measure`), null if not finite.

    ``quick`` measures one setting with two seeds for a tenth of the time.
    """
    names = list(SETTINGS)[:1] if quick else list(SETTINGS)
    found = measure(names, range(1, (2 if quick else seeds) + 1), BUDGET / 10 if quick else BUDGET)
    if as_json:
        print(json.dumps(_finite(found)))
        return
    number = 2 if quick else seeds
    size = SETTINGS[names[0]]
    print(f"M = {size.clients}, K = {size.per_round}, {number} seeds; seconds to shares of the best accuracy")
    for name, methods in found.items():
        print(f"\n{name}\n{'':24}{'80 %':>8}{'90 %':>8}{'95 % interval':>18}{'95 %':>8}", end="")
        print(f"{'MB to 90 %':>12}{'final':>8}{'slowest':>9}{'bias':>7}{'95 % interval':>18}")
        for method, each in methods.items():
            print(
                f"{method:24}{each['to80_s']:8.0f}{each['to90_s']:8.0f}"
                f"{_range(each['low'], each['high'], '.0f'):>18}{each['to95_s']:8.0f}{each['to90_mb']:12.2f}"
                f"{100 * each['final']:8.1f}{100 * each['slowest']:9.1f}{each['bias']:7.2f}"
                f"{_range(each['bias_low'], each['bias_high'], '.2f'):>18}"
            )


def _finite(values: Any) -> Any:
    """Replace numbers that JSON does not have, such as the seconds to a level never reached, by None."""
    if isinstance(values, dict):
        return {name: _finite(each) for name, each in values.items()}
    return values if math.isfinite(values) else None


def _range(low: float, high: float, form: str) -> str:
    return "-" if math.isnan(low) else f"{low:{form}} to {high:{form}}"
