"""The cost of privacy: how much worse selection gets if clients add noise to the norms and losses in reports.

Clients clip a norm or loss to a bound and release it by the Gaussian mechanism, as a client with the setting
``noise-epsilon`` does. In a column "ε = ...", one report has this ε at δ = 1e-5. In the column "clipped" the
numbers are clipped and have no noise. In the column "exact" they are unchanged. The bound of all rounds is
the 90 % quantile of the true norms or losses of round 1. So the noise does not shrink when the norms shrink.
"""

from dataclasses import replace
from typing import cast

import numpy as np

from benchmarks.experiments.forecast.streams import make_stream, regret_on_stream
from benchmarks.experiments.methods import OWN_DRAWS, Method
from benchmarks.experiments.osmd.least_squares import Track, Trial, train, unlike_clients
from benchmarks.experiments.regret import feedback_of
from benchmarks.experiments.report import Cell, Experiment, Outcome
from strategies.clients.report_noise import GaussianMechanism, composed_epsilon
from strategies.numerics.arrays import Floats
from strategies.numerics.streams import generator
from strategies.selectors import Feedback, Selection, Selector, create

DELTA = 1e-5
NUM_CLIENTS, CLIENTS_PER_ROUND, NUM_ROUNDS = 100, 5, 500
QUANTILE = 0.9
EPSILONS = (10.0, 1.0, 0.1)
COLUMNS = ("exact", "clipped", *(f"ε = {epsilon:g}" for epsilon in EPSILONS))


BY_NORM = {
    "forecast": Method("forecast", OWN_DRAWS),
    "adaptive-osmd × 100": Method("adaptive-osmd", {"learning_rate_multiplier": 100.0}),
    "avare": Method("avare"),
}
BY_LOSS = {
    "pow-d, d = 20": Method("pow-d", {"num_candidates": 20}),
    "rpow-d": Method("rpow-d"),
    "afl": Method("afl", {"alpha2": 1.0}),
}
BEDS = ("static", "section F, σ = 3", "section F, σ = 10")


class Release:
    """Turns clients' true numbers into those that they report: exact, clipped to `bound`, or with noise, too.

    The seed of the noise is an experiment's alone: a real client's noise must not be repeatable.
    """

    def __init__(self, column: str, bound: float, seed: int) -> None:
        self.column, self.bound, self.seed = column, bound, seed
        self._mechanism = None
        if column.startswith("ε"):
            self._mechanism = GaussianMechanism(float(column.split()[-1]), DELTA, bound)

    def __call__(self, round: int, values: Floats) -> Floats:
        if self.column == "exact":
            return values
        if self._mechanism is None:
            return np.minimum(values, self.bound)
        rng = generator(self.seed, round, "noise")
        return np.array([self._mechanism.release(float(value), rng) for value in values])


class Reported:
    """A selector that learns from the norms that clients report, instead of their true norms."""

    def __init__(self, selector: Selector, release: Release) -> None:
        self._selector, self._release = selector, release
        self.clients_per_round = selector.clients_per_round

    @property
    def probabilities(self) -> Floats:
        """The probabilities (M,) of the wrapped selector."""
        return self._selector.probabilities

    def select(self, round: int) -> Selection:
        """Select as the wrapped selector does."""
        return self._selector.select(round)

    def update(self, round: int, selection: Selection, feedback: Feedback) -> None:
        """Let the wrapped selector learn from the reported norms."""
        told = replace(feedback, update_norms=self._release(round, feedback.update_norms))
        self._selector.update(round, selection, told)


def regret(bed: str, method: Method, column: str, seed: int, num_rounds: int) -> float:
    """Return the cumulative regret of a selector that learns from the norms that clients report.

    `bed` is one of `BEDS`: a stream of norms, or the least-squares problem of section F of the OSMD paper.
    """

    def make(first_norms: Floats) -> Selector:
        selector = method.made(NUM_CLIENTS, CLIENTS_PER_ROUND, seed, num_rounds)
        bound = float(np.quantile(first_norms, QUANTILE))
        return cast("Selector", Reported(selector, Release(column, bound, seed)))

    if not bed.startswith("section F"):
        stream = make_stream(bed, seed, NUM_CLIENTS, num_rounds)
        return regret_on_stream(make(stream.norms[0]), stream, CLIENTS_PER_ROUND)

    def play(selector: Selector, num_rounds: int) -> Track:
        rng = np.random.default_rng(seed)
        problem = unlike_clients(rng, float(bed.split()[-1]), NUM_CLIENTS)
        trials = [Trial(selector)]
        (track,) = train(problem, trials, rng, num_rounds=num_rounds, replacement=False)
        return track

    uniform = create("uniform", NUM_CLIENTS, clients_per_round=CLIENTS_PER_ROUND)
    first_norms = play(uniform, 1).roots[0] * NUM_CLIENTS  # norms of all clients in round 1, selected or not
    return float(play(make(first_norms), num_rounds).regret[-1])


def chosen_loss(method: Method, column: str, seed: int, num_rounds: int) -> float:
    """Return the mean true loss of the selected clients divided by the mean true loss of all clients.

    The true losses are lognormal, and constant. The first tenth of the rounds, in which rpow-d and afl see
    each client for the first time, does not count.
    """
    losses = np.random.default_rng(seed).lognormal(0, 1, NUM_CLIENTS)
    release = Release(column, float(np.quantile(losses, QUANTILE)), seed)
    selector = method.made(NUM_CLIENTS, CLIENTS_PER_ROUND, seed)
    found = []
    for round in range(1, num_rounds + 1):
        candidates = selector.candidates(round)
        reports = None if candidates is None else {"loss": release(round, losses[candidates])}
        selection = selector.select(round, candidates=candidates, reports=reports)
        told = feedback_of(np.ones(selection.clients.size))
        told = replace(told, losses=release(round, losses[selection.clients]))
        selector.update(round, selection, told)
        found.append(losses[selection.clients].mean())
    return float(np.mean(found[num_rounds // 10 :]) / losses.mean())


def run(seed: int, num_rounds: int = NUM_ROUNDS) -> Outcome:
    """Measure all selectors in all columns."""
    cells: dict[Cell, float] = {}
    for bed in BEDS:
        base = regret(bed, Method("uniform"), "exact", seed, num_rounds)
        for label, method in BY_NORM.items():
            for column in COLUMNS:
                cells[f"{bed}: {label}", column] = regret(bed, method, column, seed, num_rounds) / base
    for label, method in BY_LOSS.items():
        for column in COLUMNS:
            cells[f"loss: {label}", column] = chosen_loss(method, column, seed, num_rounds)
    for epsilon in EPSILONS:
        z = GaussianMechanism(epsilon, DELTA, 1.0).noise_multiplier
        for n in (10, 50, NUM_ROUNDS):
            cells[f"total ε of {n} reports", f"ε = {epsilon:g}"] = composed_epsilon([z] * n, DELTA)
    return Outcome(cells)


EXPERIMENTS = (Experiment(name="report-noise", run=run, seeds=5),)
