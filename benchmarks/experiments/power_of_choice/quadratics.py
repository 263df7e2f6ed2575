"""Power-of-Choice on quadratic losses: speed, final gap, how often clients are selected, and skew."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.experiments.methods import Method
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from strategies.numerics.arrays import Floats, Ints
from strategies.selectors import Selection, Selector

STEPS, STEP_SIZE = 2, 2e-5
"""The number of local steps τ and the learning rate η on the quadratic losses."""
RANDOM = "rand"
"""The paper's name for the selector `md`, and the label of this selector's row in the tables."""


class Trial(NamedTuple):
    """A selector to train with."""

    label: str  # row of the table
    selector: str  # name in the registry
    # Keyword arguments of the selector
    settings: dict[str, Any] = {}  # noqa: RUF012 (never changed)


def ask_and_select(selector: Selector, round: int, losses: Callable[[Ints], Floats]) -> Selection:
    """Poll the candidates for their losses, if the selector polls, and select."""
    asked = selector.candidates(round)
    reports = None if asked is None else {"loss": losses(asked)}
    return selector.select(round, candidates=asked, reports=reports)


# The quadratic losses F_k(w) = (h_k/2) ||w - w_k*||², which are eq. 87 with e_k = h_k w_k*.


class Quadratic(NamedTuple):
    """Clients with quadratic losses, on which gradient descent is known in closed form."""

    sizes: Floats  # (M,) clients' shares p_k of the data, which sum to 1
    curvatures: Floats  # (M,) h_k > 0
    optima: Floats  # (M, v) clients' minimisers w_k*, at which F_k is 0

    @property
    def optimum(self) -> Floats:
        """The minimiser (v,) of F = sum_k p_k F_k."""
        scale = self.sizes * self.curvatures
        w: Floats = scale @ self.optima / scale.sum()
        return w

    def losses(self, w: Floats, clients: Ints) -> Floats:
        """Return the losses F_k(w) (n,) of the given clients (n,)."""
        apart = w - self.optima[clients]
        losses: Floats = 0.5 * self.curvatures[clients] * np.einsum("kv,kv->k", apart, apart)
        return losses


class Descent(NamedTuple):
    """The result of training on quadratic losses."""

    # (T + 1,) gap (F(w) - F*) / (F(w_0) - F*) before each round, and at the end after the last round
    gaps: Floats
    counts: Floats  # (M,) how often each client was drawn
    path: Floats  # (21, v) model w before rounds 0, T/20, 2T/20, ..., and after the last round


def make_quadratic(seed: int, num_clients: int, dimension: int = 5) -> Quadratic:
    """Draw the clients: h_k ~ U(1, 20), e_k ~ N(0, 1), and p_k from the power law with a = 3, normalised.

    The paper does not give the distribution of e_k.
    """
    rng = np.random.default_rng(seed)
    curvatures = rng.uniform(1, 20, num_clients)
    sizes = rng.power(3, num_clients)
    e = rng.normal(size=(num_clients, dimension))
    return Quadratic(sizes / sizes.sum(), curvatures, e / curvatures[:, None])


def descend(problem: Quadratic, selector: Selector, num_rounds: int) -> Descent:
    """Train by federated averaging from w = (1, ..., 1); T is a multiple of 20."""
    # τ steps of gradient descent multiply w - w_k* by (1 - η h_k)^τ.
    moves: Floats = 1 - (1 - STEP_SIZE * problem.curvatures) ** STEPS
    optimum, w = problem.optimum, np.ones(problem.optima.shape[1])
    gaps, counts, path = np.empty(num_rounds + 1), np.zeros(problem.sizes.size), []
    for round in range(num_rounds):
        gaps[round] = (w - optimum) @ (w - optimum)
        if round % (num_rounds // 20) == 0:
            path.append(w)
        selection = ask_and_select(selector, round, functools.partial(problem.losses, w))
        chosen = selection.clients
        counts[chosen] += selection.counts
        w = w + (selection.weights * moves[chosen]) @ (problem.optima[chosen] - w)
    gaps[-1] = (w - optimum) @ (w - optimum)
    # F has the same curvature in all directions, so the gap is proportional to the squared distance.
    return Descent(gaps / gaps[0], counts, np.array([*path, w]))


def _trials(*candidates: int) -> tuple[Trial, ...]:
    return Trial(RANDOM, "md"), *(Trial(f"d={d}", "pow-d", {"num_candidates": d}) for d in candidates)


QUADRATIC_TRIALS = {
    30: (*_trials(6, 15, 30), Trial("adapow", "adapow-d", {"halve_every": 5000})),
    100: (*_trials(20, 100), Trial("adapow", "adapow-d", {"halve_every": 5000})),
}
PROFILE_TRIALS = {30: _trials(6, 15, 30), 100: (Trial("100 clients, d=15", "pow-d", {"num_candidates": 15}),)}


def make_selector(problem: Quadratic, trial: Trial, seed: int) -> Selector:
    """Return the selector of a trial, of which a tenth of the clients train in a round."""
    m = problem.sizes.size
    return Method(trial.selector, trial.settings).made(problem.sizes, m // 10, seed)


def run_quadratic(seed: int, num_clients: int = 30, num_rounds: int = 30_000) -> Outcome:
    """Measure how fast the gap of each trial shrinks, and how large the gap is at the end."""
    problem = make_quadratic(seed, num_clients)
    cells: dict[Cell, float] = {}
    lines: dict[str, Curve] = {}
    shown = np.arange(0, num_rounds + 1, max(1, num_rounds // 200))
    for trial in QUADRATIC_TRIALS[num_clients]:
        gaps = descend(problem, make_selector(problem, trial, seed), num_rounds).gaps
        over_time = Curve(np.arange(gaps.size, dtype=float), gaps)
        for level in (0.1, 0.01):
            cells[trial.label, f"rounds to {level:g}"] = over_time.first(gaps <= level)
        cells[trial.label, "log10 final gap"] = math.log10(gaps[-num_rounds // 20 :].mean())
        lines[trial.label] = Curve(shown.astype(float), gaps[shown])
    return Outcome(cells, {f"{num_clients} clients": lines})


# The skew of the selection (Definition 3.2), and its profile: how often each client is selected (appendix
# G.1).


def selection_shares(
    problem: Quadratic, selector: Selector, points: Floats, num_samples: int, by_data: bool = False
) -> Floats:
    """Return each client's expected weight (P, M) in the aggregate at each of P models (P, v).

    The K clients with the largest losses of each of `num_samples` sets of candidates are selected, as by
    ``selector.select``, which would take minutes. If `by_data`, their weights are p_k / sum_S p (appendix E).
    """
    everyone = np.arange(problem.sizes.size)
    first = selector.candidates(0)
    if first is None:  # `md`, which ignores losses
        return np.tile(selector.probabilities, (len(points), 1))
    if first.size == everyone.size:
        num_samples = 1  # the candidates are always the same
    sets = np.array([selector.candidates(round) for round in range(num_samples)])
    k = selector.select(0, candidates=first, reports={"loss": first.astype(float)}).clients.size
    shares = np.empty((len(points), everyone.size))
    for share, w in zip(shares, points, strict=True):
        losses = problem.losses(w, everyone)[sets]
        winners = np.take_along_axis(sets, np.argpartition(-losses, k - 1, axis=1)[:, :k], axis=1)
        weights = problem.sizes[winners] if by_data else np.ones(winners.shape)
        weights = weights / weights.sum(axis=1, keepdims=True)
        counted = np.bincount(winners.ravel(), weights=weights.ravel(), minlength=everyone.size)
        share[:] = counted / len(winners)
    return shares


def skews_at(problem: Quadratic, shares: Floats, w: Floats) -> Floats:
    """Return the skews ρ (P,) (eq. 5) of P selections with the expected weights `shares` (P, M)."""
    losses = problem.losses(w, np.arange(problem.sizes.size))
    skews: Floats = shares @ losses / (problem.sizes @ losses)
    return skews


def smallest_skews(problem: Quadratic, shares: Floats) -> Floats:
    """Return the least skew (P,) of each of P selections, over all models w' at which losses are measured.

    The numerator and the denominator of ρ are quadratic forms of (w', 1), so the minimum is the smallest
    generalised eigenvalue of the matrices of these forms.
    """

    def forms(weights: Floats) -> Floats:
        """Return the (P, v + 1, v + 1) matrices of sum_k weights_k h_k ||w' - w_k*||²."""
        ends = np.column_stack([-problem.optima, np.linalg.norm(problem.optima, axis=1) ** 2])
        scale = weights * problem.curvatures
        matrices = np.zeros((len(weights), ends.shape[1], ends.shape[1]))
        inner = np.arange(ends.shape[1] - 1)
        matrices[:, inner, inner] = scale.sum(axis=1)[:, None]
        matrices[:, -1] = scale @ ends
        matrices[:, :, -1] = matrices[:, -1]
        return matrices

    root = np.linalg.inv(np.linalg.cholesky(forms(problem.sizes[None])[0]))
    return np.asarray(np.linalg.eigvalsh(root @ forms(shares) @ root.T)[:, 0], dtype=np.float64)


def models_around(problem: Quadratic, rng: np.random.Generator, num_points: int) -> Floats:
    """Return models (P, v) at .01 to 100 times the mean distance of the clients' optima from that of F."""
    spread = np.linalg.norm(problem.optima - problem.optimum, axis=1).mean()
    directions: Floats = rng.normal(size=(num_points, problem.optima.shape[1]))
    directions *= (spread * np.geomspace(0.01, 100, num_points) / np.linalg.norm(directions, axis=1))[:, None]
    around: Floats = problem.optimum + directions
    return around


def run_profile(
    seed: int, num_rounds: int = 5000, num_points: int = 200, num_samples: int = 10_000
) -> Outcome:
    """Measure how often each client is selected, and how skewed the selection is, for `PROFILE_TRIALS`."""
    cells: dict[Cell, float] = {}
    panels: dict[str, dict[str, Curve]] = {}
    for m, trials in PROFILE_TRIALS.items():
        problem = make_quadratic(seed, m)
        around = models_around(problem, np.random.default_rng((seed, 1)), num_points)
        lines = panels.setdefault(f"{m} clients, {m // 10} a round", {})
        for trial in trials:
            selector = make_selector(problem, trial, seed)
            descent = descend(problem, selector, num_rounds)
            points = np.vstack([around, descent.path])
            shares = selection_shares(problem, selector, points, num_samples)
            on_path = shares[num_points:]
            here = np.diag([skews_at(problem, on_path, w) for w in descent.path]).min()
            at_optimum = skews_at(problem, shares, problem.optimum)
            cells |= {
                (trial.label, "ρ̄"): float(smallest_skews(problem, shares).min()),
                (trial.label, "ρ̃"): float(at_optimum.max()),
                (trial.label, "ρ̄ on the way"): float(here),
                (trial.label, "ρ̃ on the way"): float(at_optimum[num_points:].max()),
            }
            profile = descent.counts / descent.counts.sum()
            cells |= {
                (trial.label, "largest share, %"): 100 * float(profile.max()),
                (trial.label, "selected < 0.1 %"): float((profile < 0.001).sum()),
                (trial.label, "correlation with p"): float(np.corrcoef(profile, problem.sizes)[0, 1]),
            }
            lines[trial.label] = Curve(np.arange(1.0, m + 1), 100 * np.sort(profile)[::-1])
    return Outcome(cells, panels)


EXPERIMENTS = (
    *(
        Experiment(
            name,
            functools.partial(run_quadratic, num_clients=num_clients),
            seeds=10,
            digits=1,
            y="(F(w) - F*) / (F(w_0) - F*)",
            log_y=True,
        )
        for name, num_clients in (("poc-quadratic", 30), ("poc-quadratic-100", 100))
    ),
    Experiment(
        "poc-profile",
        run_profile,
        seeds=20,
        x="client, by number of selections",
        y="% of all selections",
        quick={"num_points": 50, "num_samples": 2500},
    ),
)
