"""How long a federation with slow clients takes to reach an accuracy, and how biased its aggregate is.

M clients train a softmax model on the digits (Dirichlet 0.3, so clients differ in size and labels). The
seconds of a client's round are lognormal, or follow from the speeds of devices. The slowest clients are
random, or those with the most samples and the largest loss, or the fewest and the smallest. In some settings
a client is available in half of the rounds. All seconds are simulated. A method trains until `BUDGET` seconds
have passed; an accuracy is reached when the mean of `WINDOW` rounds reaches it. "worst" is the least of four
accuracies, on the samples of the clients' quarters by speed.

All selectors have their default settings, except Oort, whose pacer covers 5 % of the clients in a step, as in
Oort's published code: with the paper's step, nobody is penalised among so few clients. The buffered methods
keep as many clients busy as a round of the others selects, and take a step after half as many arrivals.

The file ``devices.json`` is not FedScale's, which is too large for this repository: its 200 devices were
drawn, with lognormal speeds (computation: median 100 ms a sample, σ = 0.75; network: median 5 Mbit/s, σ =
1.2). ``--devices`` names another file, for example FedScale's own.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.time_to_accuracy.bias import bias
from benchmarks.time_to_accuracy.federation import (
    BATCH_SIZE,
    DEVICES,
    METHODS,
    STEPS,
    Federation,
    Method,
    Setting,
)
from deploy.runs.seed_statistics import interval
from simulation.simulator import Simulator
from strategies.numerics.arrays import Floats
from strategies.options import Faults

BUDGET = 3_000.0  # simulated seconds
WINDOW = 5  # rounds
ROUNDS_PER_ROUND = 4  # a run may have at most this many buffered rounds for each round of another method
LEVELS = (80, 90, 95)  # % of the best accuracy
BIASED = ("oort", "md, 1.3 K", "md, 1.3 K, rates", "fedbuff", "buffered-forecast, power 0.5")
BIAS_ROUNDS, LEARNS_EVERY, BIASED_ROUNDS = 6_000, 100, 2_000
"""The bias is measured in `BIAS_ROUNDS` rounds, since a bias of 1 % shows only in many rounds. The selector
learns from every `LEARNS_EVERY`-th round. For the methods in `BIASED`, whose bias is larger, `BIASED_ROUNDS`
are enough, and the selector learns from each round."""

SETTINGS = {
    "lognormal": Setting(),
    "lognormal, slow are large and hard": Setting(slow="large and hard"),
    "lognormal, slow are small and easy": Setting(slow="small and easy"),
    "lognormal, half available": Setting(awake=0.5),
    "devices": Setting("devices"),
    "devices, slow are large and hard": Setting("devices", "large and hard"),
    "devices, slow are small and easy": Setting("devices", "small and easy"),
    "devices, half available": Setting("devices", awake=0.5),
}


class Result(NamedTuple):
    """What one method reached with one seed."""

    seconds: Floats  # (R,) simulated time at the end of each round
    accuracy: Floats  # (R,) mean of the last `WINDOW` rounds
    megabytes: Floats  # (R,) sent and received so far
    worst: float  # the least accuracy at the end on the samples of a quarter of the clients by speed


def play(federation: Federation, method: Method, *, budget: float = math.inf, rounds: int = 1_000) -> Result:
    """Train with one method until `budget` simulated seconds have passed, or for `rounds` rounds.

    A buffered method may have `ROUNDS_PER_ROUND` times as many rounds.
    """
    setting = federation.setting
    simulator = Simulator(
        federation.data,
        federation.kernel,
        method.selector,
        clients_per_round=setting.per_round,
        num_rounds=rounds,
        learning_rate=federation.learning_rate,
        batch_size=BATCH_SIZE,
        local_steps=STEPS,
        seed=federation.seed,
        selector_settings=method.settings,
        availability=federation.availability(),
        response_times=federation.times,
        mode=method.mode(setting.per_round),
        faults=Faults(
            guard=False, silence=False, over_selection=method.over_selection, correction=method.correction
        ),
    )
    size = sum(array.nbytes for array in simulator.arrays.values()) / 1e6
    seconds: list[float] = []
    accuracy: list[float] = []
    megabytes: list[float] = []
    most = rounds * (ROUNDS_PER_ROUND if method.buffered else 1)
    while simulator.seconds < budget and len(seconds) < most:
        record = simulator.step()
        seconds.append(simulator.seconds)
        accuracy.append(simulator.evaluate(federation.test).accuracy)
        megabytes.append(2 * size * record.selection.clients.size)
    return Result(
        np.array(seconds),
        moving_mean(accuracy),
        np.cumsum(megabytes),
        min(simulator.evaluate(group).accuracy for group in federation.groups),
    )


def moving_mean(accuracy: Sequence[float]) -> Floats:
    """Return (R,) the mean accuracy of the last `WINDOW` rounds; rounds before the first count as 0."""
    found: Floats = np.convolve(accuracy, np.full(WINDOW, 1 / WINDOW))[: len(accuracy)]
    return found


def first_at(level: float, spent: Floats, accuracy: Floats) -> float:
    """Return the seconds or megabytes spent when the accuracy first reaches a level; infinite if never."""
    there = np.flatnonzero(accuracy >= level)
    return float(spent[there[0]]) if there.size else math.inf


def numbers(
    federation: Federation,
    methods: Mapping[str, Method] = METHODS,
    budget: float = BUDGET,
    bias_rounds: float = 1.0,
) -> dict[str, dict[str, float]]:
    """Return the numbers of all methods in a federation: method -> number -> value.

    They are "to80_s", "to80_mb" and so on for 90 and 95, "final", "worst" and "bias". The number of rounds in
    which the bias is measured is multiplied by ``bias_rounds``.
    """
    played = {name: play(federation, method, budget=budget) for name, method in methods.items()}
    best = max(float(result.accuracy.max()) for result in played.values())
    found = {}
    for name, result in played.items():
        each = {}
        for level in LEVELS:
            for unit, spent in (("s", result.seconds), ("mb", result.megabytes)):
                each[f"to{level}_{unit}"] = first_at(level / 100 * best, spent, result.accuracy)
        rounds, every = (BIASED_ROUNDS, 1) if name in BIASED else (BIAS_ROUNDS, LEARNS_EVERY)
        each["bias"] = bias(federation, methods[name], max(2, int(bias_rounds * rounds)), every)
        found[name] = {**each, "final": float(result.accuracy[-1]), "worst": result.worst}
    return found


def measure(seeds: int, quick: bool = False, devices: Path = DEVICES) -> dict[str, dict[str, Any]]:
    """Return means over the seeds in all settings: setting -> method -> name of a number -> value.

    To the `numbers` come "low" and "high", the ends of the 95 % interval of "to90_s", and "bias_low" and
    "bias_high". ``quick`` measures one setting with two seeds for a tenth of the time.
    """
    found: dict[str, dict[str, Any]] = {}
    share = 0.1 if quick else 1.0
    for name in list(SETTINGS)[: 1 if quick else None]:
        each = [
            numbers(Federation(SETTINGS[name], seed, devices=devices), METHODS, share * BUDGET, share)
            for seed in range(1, 1 + (2 if quick else seeds))
        ]
        found[name] = {method: _summary([values[method] for values in each]) for method in METHODS}
    return found


def _summary(values: list[dict[str, float]]) -> dict[str, float]:
    means = {name: float(np.mean([each[name] for each in values])) for name in values[0]}
    seconds, biases = (interval([each[name] for each in values]) for name in ("to90_s", "bias"))
    return {
        **means,
        **{"low": seconds.mean - seconds.half, "high": seconds.mean + seconds.half},
        **{"bias_low": biases.mean - biases.half, "bias_high": biases.mean + biases.half},
    }
