"""The bound of FLICS' Theorem 1 beside the measured gradient, on groups with quadratic losses.

Group j has the loss F_j(w) = ||w - θ_j||²/2 with d = 10 parameters. Its clients make local steps with noisy
gradients; their models after a round are known in closed form up to the noise.
"""

import math
from typing import NamedTuple

import numpy as np

from benchmarks.experiments.flics import bounds
from benchmarks.experiments.flics.availability import PROCESSES
from benchmarks.experiments.flics.variance_above_optimum import MEANS, NUM_GROUPS, SHARES, K, toss
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from strategies.numerics.arrays import Floats

DIMENSION, LOCAL_STEPS, NOISE, START = 10, 5, 1.0, 3.0
"""d, T_L, σ_L², and every entry of w_0. L is 1."""


class Rates(NamedTuple):
    """The learning rates η_L of the clients and η of the server."""

    local: float
    server: float


RATES = Rates(0.01, 1.0)


def corollary(num_rounds: int) -> Rates:
    """Return the rates of Corollary 1.1: η_L = 1/(√T T_L L) and η = √(T_L G)."""
    return Rates(1 / (math.sqrt(num_rounds) * LOCAL_STEPS), math.sqrt(LOCAL_STEPS * NUM_GROUPS))


def descend(
    optima: Floats, took_part: Floats, estimates: Floats, rng: np.random.Generator, rates: Rates = RATES
) -> Floats:
    """Train with FLICS-AVG: w <- w + η sum_j (p_j/ŝ_j(t)) times the sum of the updates of group j.

    Returns the models (T + 1, d). `took_part` and `estimates` (T, G) come from `toss`, `optima` (G, d) are θ.
    """
    left = (1 - rates.local) ** np.arange(LOCAL_STEPS + 1)
    deviation = rates.local * math.sqrt(NOISE / optima.shape[1] * float((left[:-1] ** 2).sum()))
    w = np.full(optima.shape[1], START)
    path = [w]
    for number, estimate in zip(took_part, estimates, strict=True):
        noise = deviation * np.sqrt(number)[:, None] * rng.normal(size=optima.shape)
        updates = number[:, None] * (1 - left[-1]) * (optima - w) + noise
        w = w + rates.server * (SHARES / estimate) @ updates
        path.append(w)
    return np.array(path)


def run_bound(seed: int, num_rounds: int = 2000) -> Outcome:
    """Train with every availability process, and compare the least squared gradient with its bound."""
    cells: dict[Cell, float] = {}
    curves: dict[str, dict[str, Curve]] = {}
    for number, (name, process) in enumerate(PROCESSES.items()):
        a = process(MEANS, num_rounds, np.random.default_rng((seed, number))).astype(np.float64)
        rng = np.random.default_rng((seed, number, 1))
        took_part, estimates = toss(a, np.full(num_rounds, float(K)), rng)
        optima = rng.normal(size=(NUM_GROUPS, DIMENSION))
        best = SHARES @ optima
        error = bounds.participation_error(estimates, estimates[-1])
        variances = bounds.selection_variance(SHARES, estimates, np.cov(took_part.T))
        rounds = np.unique(np.geomspace(10, num_rounds, 20).round().astype(int))
        for row, rates in ((name, RATES), (f"{name}, Cor. 1.1", corollary(num_rounds))):
            path = descend(optima, took_part, estimates, rng, rates)
            squares = ((path - best) ** 2).sum(axis=1)  # the squared norm of the gradient of f
            apart = ((path[:, None] - optima) ** 2).sum(axis=2)
            of = bounds.Constants(
                smoothness=1.0,
                noise=NOISE,
                spread=float(((optima - best) ** 2).sum(axis=1).max()),
                gradient=float(apart.max()) + NOISE,
                local_rate=rates.local,
                global_rate=rates.server,
                steps=LOCAL_STEPS,
                shares=SHARES,
                gap=float(squares[0]) / 2,
            )
            least = np.minimum.accumulate(squares)[rounds - 1]
            limits = np.array([bounds.bound(of, t, error, variances[:t]) for t in rounds.tolist()])
            cells[row, "log10 least gradient²"] = math.log10(least[-1])
            cells[row, "log10 bound"] = math.log10(limits[-1])
            cells[row, "C / bound"] = bounds.remainder(of, error, variances, of.margin()) / float(limits[-1])
            cells[row, "least bound / gradient²"] = float((limits / least).min())
            cells[row, "ε̂ η η_L T_L L"] = error * rates.server * rates.local * LOCAL_STEPS
            curves[row] = {
                "least squared gradient": Curve(rounds.astype(float), least),
                "bound": Curve(rounds.astype(float), limits),
            }
        weights = (took_part / estimates).mean(axis=0)
        clients = np.maximum(a.mean(axis=0), estimates[-1])
        low, of_coins, high = bounds.around_eq_7(SHARES, estimates, estimates[-1], clients)
        cells[name, "ε̂"] = error
        cells[name, "largest weight / p"] = float(weights.max())
        cells[name, "smallest weight / p"] = float(weights.min())
        cells[name, "σ_T, eq. 7"] = float(variances.mean())
        cells[name, "eq. 7 bounded, %"] = 100 * float(((low <= of_coins) & (of_coins <= high)).mean())
    return Outcome(cells, curves)


EXPERIMENTS = (
    Experiment(name="flics-bound", run=run_bound, x="round", y="squared gradient of f", log_y=True),
)
