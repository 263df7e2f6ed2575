"""Compares the bounds of the DELTA paper with measurements: variances on given updates, gradients of runs."""

import math
from typing import NamedTuple

import numpy as np

from benchmarks.experiments.delta import bounds
from benchmarks.experiments.delta.synthetic import estimate_variance, updates_with_common_part
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from strategies.numerics.arrays import Floats

OF = bounds.Constants(smoothness=1.0, local_rate=0.01, global_rate=1.0, steps=5, selected=5)


def run_bounds(seed: int) -> Outcome:
    """Compare Φ, Φ̃ and the variances of uniform sampling, IS and DELTA."""
    rng = np.random.default_rng(seed)
    cells: dict[Cell, float] = {}
    for row, g in updates_with_common_part(rng).items():
        m, mean = len(g), g.mean(axis=0)
        zeta, norms = np.linalg.norm(g - mean, axis=1), np.linalg.norm(g, axis=1)
        sigma = g.shape[1] * rng.lognormal(0, 1, m)  # as large as the squared norms of the clients' own parts
        uniform = np.full(m, 1 / m)
        chosen = {"DELTA": bounds.best_probabilities(OF, zeta, sigma), "IS": norms / norms.sum()}
        for label, p in chosen.items():
            for replacement, how in ((True, "Φ̃"), (False, "Φ̃ w/o repl.")):
                terms = [bounds.phi_tilde(OF, each, zeta, sigma, replacement) for each in (uniform, p)]
                cells[row, f"{how}, {label}"] = terms[0] / terms[1]
            variances = [estimate_variance(g, each, 1) for each in (uniform, p)]
            # The gradients do not change over the local steps, so an update is K times a gradient.
            terms = [
                bounds.phi(OF, float((zeta**2).max()), float(sigma.max()), m, OF.steps**2 * each)
                for each in variances
            ]
            cells[row, f"Φ, {label}"] = terms[0] / terms[1]
            cells[row, f"variance, {label}"] = variances[0] / variances[1]
        cells[row, "eq. 84"] = bounds.delta_gain(OF, zeta, sigma)
        cells[row, "eq. 78"] = bounds.is_gain(norms)
    return Outcome(cells)


# The bounds of the gradient: clients with quadratic losses F_i(x) = ||x - θ_i||²/2.

CLIENTS, DIMENSION, START = 20, 10, 3.0
"""m, d, and every entry of x_0."""
RUN = bounds.Constants(smoothness=1.0, local_rate=0.005, global_rate=1.0, steps=5, selected=5)
EXCESS = 1.0
"""A² of Assumption 3: ||∇F_i||² <= 2 ||∇f||² + σ_G², where σ_G² = 2 max_i ζ_i²."""


class Quadratics(NamedTuple):
    """Clients with the losses ||x - θ_i||²/2, whose gradients have the noise N(0, σ_i²/d) in each entry."""

    optima: Floats  # (m, d) θ
    variances: Floats  # (m,) σ_i²

    @property
    def diversities(self) -> Floats:
        """ζ_i = ||∇F_i - ∇f|| (m,), which is the same at every model."""
        apart: Floats = np.linalg.norm(self.optima - self.optima.mean(axis=0), axis=1)
        return apart


class Descent(NamedTuple):
    """The result of a run of T rounds."""

    squares: Floats  # (T,) ||∇f(x_t)||² before each round
    variances: Floats  # (T,) V of each round, see `bounds.phi`, given the noise of the round
    reciprocals: Floats  # (T, m) 1/p_i in each round
    gradient: float  # largest squared norm of a stochastic gradient


def make_quadratics(rng: np.random.Generator) -> Quadratics:
    """Draw θ_i, N(0, 1) in each entry times one lognormal(0, 1) number, and σ_i² ~ lognormal(0, 1)."""
    optima = rng.normal(size=(CLIENTS, DIMENSION)) * rng.lognormal(0, 1, (CLIENTS, 1))
    return Quadratics(optima, rng.lognormal(0, 1, CLIENTS))


def descend(problem: Quadratics, method: str, num_rounds: int, rng: np.random.Generator) -> Descent:
    """Train with n draws a round with replacement; `method` is "FedAvg" (uniform p), "IS" or "DELTA"."""
    m, d = problem.optima.shape
    x, mean = np.full(d, START), problem.optima.mean(axis=0)
    best = bounds.best_probabilities(RUN, problem.diversities, problem.variances)
    squares, variances, gradient = np.empty(num_rounds), np.empty(num_rounds), 0.0
    reciprocals = np.empty((num_rounds, m))
    for t in range(num_rounds):
        squares[t] = (x - mean) @ (x - mean)
        local, total = np.tile(x, (m, 1)), np.zeros((m, d))
        for _ in range(RUN.steps):
            noise = np.sqrt(problem.variances / d)[:, None] * rng.normal(size=(m, d))
            g = local - problem.optima + noise
            gradient = max(gradient, float((g**2).sum(axis=1).max()))
            local, total = local - RUN.local_rate * g, total + g
        norms = np.linalg.norm(total, axis=1)
        p = {"FedAvg": np.full(m, 1 / m), "IS": norms / norms.sum(), "DELTA": best}[method]
        variances[t] = estimate_variance(total, p, 1)
        reciprocals[t] = 1 / p
        counts = rng.multinomial(RUN.selected, p)
        x = x - RUN.global_rate * RUN.local_rate * (counts / (m * RUN.selected * p)) @ total
    return Descent(squares, variances, reciprocals, gradient)


def run_theorems(seed: int, num_rounds: int = 2000) -> Outcome:
    """Train with each method, and compare the least squared gradient with the bounds."""
    problem = make_quadratics(np.random.default_rng(seed))
    zeta, sigma = problem.diversities, problem.variances
    spread, noise = 2 * float((zeta**2).max()), float(sigma.max())
    rounds = np.unique(np.geomspace(10, num_rounds, 20).round().astype(int))
    cells: dict[Cell, float] = {}
    curves: dict[str, Curve] = {}
    for method in ("FedAvg", "IS", "DELTA"):
        run = descend(problem, method, num_rounds, np.random.default_rng((seed, 1)))
        gap = float(run.squares[0]) / 2
        least = np.minimum.accumulate(run.squares)[rounds - 1]
        limits: dict[str, list[float]] = {"Theorem D.1": [], "Theorem 3.5": []}
        for t in rounds.tolist():
            term = bounds.phi(RUN, spread, noise, CLIENTS, float(run.variances[:t].mean()))
            c = bounds.is_margin(RUN, EXCESS)
            limits["Theorem D.1"].append(bounds.is_bound(RUN, c, t, gap, term))
            so_far = run.reciprocals[:t]
            mean = 1 / so_far.mean(axis=0)  # Φ̃ is linear in 1/p, so this p gives the mean Φ̃ of the rounds
            term = bounds.phi_tilde(RUN, mean, zeta, sigma, True)
            worst = 1 / so_far[so_far.sum(axis=1).argmax()]  # its c is allowed in each round
            c = bounds.delta_margin(RUN, worst, EXCESS)
            limits["Theorem 3.5"].append(bounds.delta_bound(RUN, c, t, gap, term))
        cells[method, "log10 least gradient²"] = math.log10(least[-1])
        curves[method] = Curve(rounds.astype(float), least)
        for theorem, limit in limits.items():
            cells[method, f"log10 bound, {theorem}"] = math.log10(limit[-1])
            cells[method, f"least bound / gradient², {theorem}"] = float((np.array(limit) / least).min())
            curves[f"{method}, {theorem}"] = Curve(rounds.astype(float), np.array(limit))
        crude = [bounds.crude_variances(RUN, run.gradient, spread, each, EXCESS) for each in run.squares]
        for row, limit_of in zip(("eq. 39", "eq. 40"), np.array(crude).T, strict=True):
            cells[method, f"least bound / V, {row}"] = float((limit_of / run.variances).min())
    return Outcome(cells, {"": curves})


EXPERIMENTS = (
    Experiment(name="delta-bounds", run=run_bounds),
    Experiment(
        name="delta-theorems", run=run_theorems, digits=2, x="round", y="squared gradient of f", log_y=True
    ),
)
