"""Personalised OSMD (H.1 of the OSMD paper, D.1 of its later version) on quadratic losses.

The paper does not measure the method, so the experiment is ours. Each of M = 100 clients has the same weight,
and a personal model β of d = 10 parameters. A penalty keeps β near the global model w, as in
`client.personal_model`::

    φ_m(w, β; a) = (β - a)' A_m (β - a)/2 + μ/2 ||β - w||²,   μ = 1
    A_m = s_m diag(κ^((j-1)/(d-1) - 1)) for j = 1, ..., d,   κ = 25
    β_m(w) = argmin_β φ_m(w, β; a'_m),   h(w) = (1/M) sum_m φ_m(w, β_m(w); a_m)

(β - a)' is a transpose, but a'_m a second vector of client m: its loss is least at a'_m on training samples,
which β_m(w) fits, and at a_m on held-out samples, on which h(w) is evaluated. The personal models, the
gradients and the minimum of h are known in closed form. Each client has three lognormal numbers with σ = 1.5:
the scale of a'_m, the scale of a_m - a'_m, and s_m. w starts at 0.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.experiments.regret import feedback_of
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from strategies.numerics.arrays import Floats
from strategies.selectors import Feedback, Selector, create

M, K, T, D = 100, 10, 1000, 10
MU, STEP, CONDITION, SPREAD = 1.0, 0.1, 25.0, 1.5


class Quadratics(NamedTuple):
    """The clients' losses, see the module's docstring."""

    curvature: Floats  # (M, d) diagonal of each A_m
    mine: Floats  # (M, d) minimisers a'_m of the clients' losses on training samples
    held: Floats  # (M, d) minimisers a_m of the clients' losses on held-out samples

    def personal(self, w: Floats) -> Floats:
        """Return the personal models β_m(w) (M, d)."""
        return (self.curvature * self.mine + MU * w) / (self.curvature + MU)

    def parts(self, w: Floats) -> Floats:
        """Return the gradients (2, M, d): g_1 of h with the personal model fixed, g_2 through it (eq. 47)."""
        beta = self.personal(w)
        right = self.curvature * (beta - self.held) + MU * (beta - w)
        return np.stack([MU * (w - beta), MU / (self.curvature + MU) * right])

    def objective(self, w: Floats) -> float:
        """Return h(w)."""
        beta = self.personal(w)
        losses = self.curvature * (beta - self.held) ** 2 + MU * (beta - w) ** 2
        return float(losses.sum(axis=1).mean() / 2)

    def best(self) -> Floats:
        """Return the w (d,) that minimises h. Each entry of h's gradient is linear in the same entry of w."""
        at_0, at_1 = (self.parts(np.full(D, value)).sum(axis=0).mean(axis=0) for value in (0.0, 1.0))
        best: Floats = at_0 / (at_0 - at_1)
        return best


def quadratics(rng: np.random.Generator) -> Quadratics:
    """Draw the clients' losses."""
    scale, far, apart = rng.lognormal(0, SPREAD, (3, M, 1))
    mine = far * rng.normal(size=(M, D))
    return Quadratics(
        scale * CONDITION ** (np.arange(D) / (D - 1) - 1), mine, mine + apart * rng.normal(size=(M, D))
    )


def _selectors(seed: int, num_rounds: int) -> Mapping[str, Selector]:
    new = partial(create, num_clients=M, clients_per_round=K, num_rounds=num_rounds, seed=seed)
    still = 1e-9  # factor on the learning rates: with it, p stays uniform
    twice = partial(new, "personalised-osmd", clients_per_round=2 * K)
    rows = {"uniform, one sampler": new("uniform")}
    for factor in (1.0, 10.0, 100.0):
        name = "adaptive-osmd" if factor == 1 else f"adaptive-osmd × {factor:g}"
        rows[f"{name}, one sampler"] = new("adaptive-osmd", learning_rate_multiplier=factor)
    rows["uniform, two samplers"] = new("personalised-osmd", learning_rate_multiplier=still)
    for factor in (1.0, 10.0, 100.0):
        name = "personalised-osmd" if factor == 1 else f"personalised-osmd × {factor:g}"
        rows[name] = new("personalised-osmd", learning_rate_multiplier=factor)
    rows["uniform, two samplers, 2K draws"] = twice(learning_rate_multiplier=still)
    rows["personalised-osmd × 100, 2K draws"] = twice(learning_rate_multiplier=100.0)
    return rows


def _play(problem: Quadratics, selector: Selector, num_rounds: int) -> tuple[Floats, float]:
    """Return h(w) - min h after each round (T,), and the sum of the aggregates' squared errors."""
    w, least = np.zeros(D), problem.objective(problem.best())
    excess, error = np.empty(num_rounds), 0.0
    for round in range(1, num_rounds + 1):
        parts = problem.parts(w)
        selection = selector.select(round)
        drawn = parts[:, selection.clients]  # (2, S, d)
        scales = np.ones((selection.clients.size, 2)) if selection.parts is None else selection.parts
        updates = np.einsum("sp,psd->sd", scales, drawn)
        feedback = feedback_of(np.linalg.norm(updates, axis=1))
        if selection.parts is not None:
            norms = np.linalg.norm(drawn, axis=2).T
            feedback = Feedback(**{**vars(feedback), "part_norms": norms})
        selector.update(round, selection, feedback)
        step = selection.weights @ updates
        error += float(((step - parts.sum(axis=0).mean(axis=0)) ** 2).sum())
        w = w - STEP * step
        excess[round - 1] = problem.objective(w) - least
    return excess, error


def run(seed: int, num_rounds: int = T) -> Outcome:
    """Train with every selector."""
    problem = quadratics(np.random.default_rng(seed))
    cells: dict[Cell, float] = {}
    lines: dict[str, Curve] = {}
    first: tuple[float, float] | None = None
    for row, selector in _selectors(seed, num_rounds).items():
        excess, error = _play(problem, selector, num_rounds)
        level = float(excess[num_rounds // 2 :].mean())
        first = first or (error, level)
        cells[row, "squared error"] = error / first[0]
        cells[row, "h - min h, second half"] = level / first[1]
        rounds = np.arange(num_rounds, 0, -max(1, num_rounds // 50))[::-1]
        lines[row] = Curve(rounds.astype(np.float64), excess[rounds - 1])
    return Outcome(cells, {"h - min h": lines})


EXPERIMENTS = (Experiment(name="osmd-personalised", run=run, seeds=20, log_y=True),)
