"""The OSMD paper's bounds beside the regret, heterogeneity and gradient, on the problem of appendix F."""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.experiments.osmd import bounds
from benchmarks.experiments.osmd.least_squares import (
    Problem,
    Track,
    Trial,
    train,
    train_fedavg,
    unlike_clients,
)
from benchmarks.experiments.osmd.section_f import SIGMAS
from benchmarks.experiments.osmd.section_f_selectors import ALPHA, K, M, T
from benchmarks.experiments.regret import feedback_of
from benchmarks.experiments.report import Cell, Experiment, Outcome
from strategies.numerics.arrays import Floats
from strategies.numerics.projection import project_floored_simplex
from strategies.selectors import Selector, create
from strategies.selectors.osmd.rates import num_experts, smallest_rate

MARGIN = 10.0
"""ā (v2: A_max) divided by the largest a before training. The theorems demand that no later a exceeds ā."""


class Comparator(NamedTuple):
    """Probabilities that the regret is measured against."""

    q: Floats  # (T, M) probabilities
    losses: float  # sum of l_t(q^t)
    variation: float  # TV(q), the sum of the L1 distances between q of successive rounds


def comparators(roots: Floats, floor: float) -> dict[str, Comparator]:
    """Return the best q^t >= `floor`, the best q^t, and the best fixed q >= `floor`, by name.

    `roots` (T, M) holds sqrt(a) of all clients in each round.
    """
    with np.errstate(divide="ignore"):
        dynamic = np.array([project_floored_simplex(np.log(root), floor) for root in roots])
        fixed = project_floored_simplex(0.5 * np.log((roots**2).sum(axis=0)), floor)
    every = roots / roots.sum(axis=1, keepdims=True)
    found = {"best p ≥ α/M": dynamic, "best p": every, "best fixed p ≥ α/M": np.tile(fixed, (len(roots), 1))}
    return {
        name: Comparator(
            q,
            float(np.divide(roots**2, q, out=np.zeros(q.shape), where=q > 0).sum() / K),
            float(np.abs(np.diff(q, axis=0)).sum()),
        )
        for name, q in found.items()
    }


def _selectors(seed: int, num_rounds: int, a_max: float) -> dict[tuple[str, str], Selector]:
    """Return (name, version) -> selector with the printed rates and γ, and with a fixed ā."""
    new = partial(create, clients_per_round=K, num_rounds=num_rounds, seed=seed, alpha=ALPHA, a_max=a_max)
    printed: dict[str, Any] = {"gamma": "printed"}
    return {
        (name, version): new(name, M, rates=version, **({} if name == "osmd" else printed))
        for name in ("osmd", "adaptive-osmd", "adaptive-doubling-osmd")
        for version in ("v1", "v2")
    }


def _check(track: Track, a_max: float) -> None:
    if (track.roots**2).max() > a_max:
        raise ValueError("an a exceeds ā, which the theorems exclude; raise MARGIN")


def _bound(name: str, at: bounds.Setting, a_max: float, track: Track, against: Comparator) -> float:
    """Return the paper's bound of the regret of the selector `name` against a comparator with q >= α/M."""
    rounds, variation = len(track.roots), against.variation
    if name == "osmd":
        rate = smallest_rate(at.version, M, K, ALPHA, rounds, 0) / a_max
        return bounds.intrinsic_regret(at, rate, variation, (track.roots**2).max(axis=1))
    blocks = 2 ** (rounds.bit_length() - 1) if name == "adaptive-doubling-osmd" else rounds
    experts = num_experts(at.version, M, ALPHA, blocks)
    of = bounds.doubling_regret if name == "adaptive-doubling-osmd" else bounds.ensemble_regret
    return of(at, rounds, a_max, variation, experts)


def gradients_on_the_way(problem: Problem, num_rounds: int, step: float = 0.1) -> tuple[Floats, Floats]:
    """Return ||∇F_m(w)|| (W, M) and ||∇F(w)|| (W,) at 20 models on the path of gradient descent from 0."""
    hessians, rights = problem.forms()
    w, norms, means = np.zeros(problem.x.shape[2]), [], []
    for round in range(num_rounds):
        g = hessians @ w - rights
        if round % max(1, num_rounds // 20) == 0:
            norms.append(np.linalg.norm(g, axis=1))
            means.append(float(np.linalg.norm(g.mean(axis=0))))
        w = w - step * g.mean(axis=0)
    return np.array(norms), np.array(means)


def run_bounds(seed: int, num_rounds: int = T) -> Outcome:
    """Measure regrets, and compute their bounds; compute ζ² on the path of gradient descent."""
    cells: dict[Cell, float] = {}
    for sigma in SIGMAS:
        rng = np.random.default_rng(seed)
        problem = unlike_clients(rng, sigma, M)
        a_max = MARGIN * float(problem.initial_norms().max() / M) ** 2
        selectors = _selectors(seed, num_rounds, a_max)
        trials = [Trial(selector) for selector in selectors.values()]
        tracks = train(problem, trials, rng, num_rounds=num_rounds)
        for (name, version), track in zip(selectors, tracks, strict=True):
            row, at = f"{name}, {version}, σ={sigma:g}", bounds.Setting(version, M, K, ALPHA)
            _check(track, a_max)
            # The selector's own loss: its regret against the best p of each round, plus the loss of this p.
            own = float(track.regret[-1] + (track.roots.sum(axis=1) ** 2).sum() / K)
            any_p = float((track.roots**2).sum()) * M / (ALPHA * K)
            for against, comparator in comparators(track.roots, ALPHA / M).items():
                regret = own - comparator.losses
                if against == "best p" and name != "osmd":
                    continue
                bound = _bound(name, at, a_max, track, comparator)
                if against == "best p":
                    rate = smallest_rate(version, M, K, ALPHA, num_rounds, 0) / a_max
                    bound += bounds.projection_error(at, rate, comparator.q, track.roots)
                cells[row, f"bound, {against}"] = math.log10(bound / regret)
            cells[row, "any p ≥ α/M"] = math.log10(any_p / track.regret[-1])
        zeta = bounds.heterogeneity(*gradients_on_the_way(problem, num_rounds), alpha=ALPHA)
        row = f"ζ², σ={sigma:g}"
        cells[row, "best fixed / uniform"] = zeta.fixed / zeta.uniform
        cells[row, "least / uniform"] = max(zeta.least, 0.0) / zeta.uniform
    return Outcome(cells)


# Theorem 2: the gradient.

BATCH, STEP_SIZE, LOCAL_STEPS = 10, 0.1, 5
"""B and μ, as in `train` and `Trial`; and B of Algorithm 4, the local steps of FedAvg."""


def along(problem: Problem, models: Floats) -> tuple[Floats, Floats, float]:
    """Return ||∇F_m(w)|| (W, M) and ||∇F(w)|| (W,) at the models (W, d), and the largest σ² of all."""
    norms, means, noise = [], [], 0.0
    for w in models:
        residuals = problem.x @ w - problem.y
        g = np.einsum("mn,mnd->md", residuals, problem.x) / problem.y.shape[1]
        squares = (residuals**2 * (problem.x**2).sum(axis=2)).mean(axis=1)
        noise = max(noise, float((squares - (g**2).sum(axis=1)).max()))
        norms.append(np.linalg.norm(g, axis=1))
        means.append(float(np.linalg.norm(g.mean(axis=0))))
    return np.array(norms), np.array(means), noise


def run_gradient(seed: int, num_rounds: int = T) -> Outcome:
    """Compare the mean squared gradient of several selectors, and the gap of eq. 5, with bounds."""
    cells: dict[Cell, float] = {}
    for sigma in SIGMAS:
        rng = np.random.default_rng(seed)
        problem = unlike_clients(rng, sigma, M)
        a_max = MARGIN * float(problem.initial_norms().max() / M) ** 2
        new = partial(create, num_clients=M, clients_per_round=K, num_rounds=num_rounds, seed=seed)
        learns: dict[str, Any] = {"alpha": ALPHA, "a_max": a_max}
        fast = partial(new, "adaptive-osmd", rates="v1", learning_rate_multiplier=100.0, **learns)
        selectors = {
            "uniform": new("uniform"),
            "osmd, v2": new("osmd", rates="v2", **learns),
            "adaptive-osmd, v2": new("adaptive-osmd", rates="v2", gamma="printed", **learns),
            "adaptive-osmd × 100": fast(),
        }
        trials = [Trial(selector, STEP_SIZE) for selector in selectors.values()]
        tracks = train(problem, trials, rng, num_rounds=num_rounds, batch_size=BATCH)
        whole = {"uniform, full": new("uniform"), "adaptive-osmd × 100, full": fast()}
        trials, samples = [Trial(selector, STEP_SIZE) for selector in whole.values()], problem.y.shape[1]
        tracks += train(problem, trials, rng, num_rounds=num_rounds, batch_size=samples, replacement=False)
        best = bounds.heterogeneity(*gradients_on_the_way(problem, num_rounds), alpha=ALPHA).best
        for name, track in zip((*selectors, *whole), tracks, strict=True):
            row = f"{name}, σ={sigma:g}"
            found = _gradient_bounds(problem, track, best, a_max, name, full=name in whole)
            cells |= {(row, column): math.log10(value) for column, value in found.items()}
        gap, limit = strongly_convex(problem, new("uniform"), num_rounds)
        cells[f"uniform, σ={sigma:g}", "log10 gap, eq. 5"] = math.log10(gap)
        cells[f"uniform, σ={sigma:g}", "log10 bound, eq. 5"] = math.log10(limit)
    return Outcome(cells)


def _gradient_bounds(
    problem: Problem,
    track: Track,
    best: Floats,
    a_max: float,
    name: str,
    local_rate: float | None = None,
    full: bool = False,
) -> dict[str, float]:
    """Return the mean squared gradient of a run and its bounds: column of the table -> value.

    `best` (M,) is the best fixed p. With a `local_rate`, `train_fedavg` ran with this step size, and `a_max`
    bounds the a of Algorithm 4; else `train` ran. With `full`, the run had full gradients, so σ is 0.
    """
    rounds, unit = len(track.loss), 1 if local_rate is None else LOCAL_STEPS
    _check(track, a_max * unit)
    x, y = problem.x.reshape(-1, problem.x.shape[2]), problem.y.ravel()
    models = np.vstack([np.zeros(x.shape[1]), track.models[:-1]])
    norms, means, noise = along(problem, models)
    noise = 0.0 if full else noise
    least = float(((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2).mean() / 2)
    gap = float((y**2).mean() / 2) - least
    if local_rate is None:
        smoothness = float(np.linalg.eigvalsh(x.T @ x / y.size)[-1])
        of = bounds.Descent(STEP_SIZE, smoothness, gap, noise, BATCH, rounds)
    else:
        of = bounds.Descent(local_rate, problem.smoothness(), gap, noise, LOCAL_STEPS, rounds)
    own = float(track.regret[-1] + (track.roots.sum(axis=1) ** 2).sum() / K)

    def spread(q: Floats) -> float:
        return float(bounds.variance(q, norms, means).max())

    def bound(q: Floats, regret: float | None = None) -> float:
        if regret is None:
            regret = (own - float((track.roots**2 / q).sum()) / K) / unit
        if local_rate is None:
            return bounds.gradient_bound(of, K, q, spread(q), regret)
        return bounds.fedavg_bound(of, K, q, spread(q), spread(np.full(M, 1 / M)), regret)

    found = {
        "mean gradient²": float((means**2).mean()),
        "bound, uniform p": bound(np.full(M, 1 / M)),
        "bound, best fixed p": bound(best),
    }
    at = bounds.Setting("v2", M, K, ALPHA)
    if name == "osmd, v2":
        theorem = "Theorem 4" if local_rate is None else "Theorem 5"
        found[f"bound, {theorem}"] = bound(best, bounds.best_rate_regret(at, rounds, a_max, 0.0))
    if name == "adaptive-osmd, v2":
        experts = num_experts("v2", M, ALPHA, rounds)
        found["bound, Theorem 9"] = bound(best, bounds.ensemble_regret(at, rounds, a_max, 0.0, experts))
    return {f"log10 {column}": value for column, value in found.items()}


def run_fedavg(seed: int, num_rounds: int = T) -> Outcome:
    """Train by FedAvg with several selectors, and compare the mean squared gradient with its bounds."""
    cells: dict[Cell, float] = {}
    for sigma in SIGMAS:
        rng = np.random.default_rng(seed)
        problem = unlike_clients(rng, sigma, M)
        # G²: the largest squared norm of one sample's gradient at w = 0.
        largest = float((problem.y**2 * (problem.x**2).sum(axis=2)).max())
        a_max = LOCAL_STEPS * largest / M**2
        rate = 1 / (4 * LOCAL_STEPS * problem.smoothness() * math.sqrt(2 + 1 / ALPHA))
        new = partial(create, num_clients=M, clients_per_round=K, num_rounds=num_rounds, seed=seed)
        learns: dict[str, Any] = {"alpha": ALPHA, "a_max": a_max, "rates": "v2"}
        selectors = {
            "uniform": new("uniform"),
            "osmd, v2": new("osmd", **learns),
            "adaptive-osmd, v2": new("adaptive-osmd", gamma="printed", **learns),
        }
        trials = [Trial(selector, rate) for selector in selectors.values()]
        tracks = train_fedavg(problem, trials, rng, num_rounds=num_rounds, local_steps=LOCAL_STEPS)
        best = bounds.heterogeneity(*gradients_on_the_way(problem, num_rounds), alpha=ALPHA).best
        for name, track in zip(selectors, tracks, strict=True):
            row = f"{name}, σ={sigma:g}"
            found = _gradient_bounds(problem, track, best, a_max, name, rate)
            cells |= {(row, column): math.log10(value) for column, value in found.items()}
    return Outcome(cells)


def strongly_convex(problem: Problem, selector: Selector, num_rounds: int) -> tuple[float, float]:
    """Train with full gradients and the step sizes 2/(ν t); return the gap of eq. 5 and its bound.

    ν is the strong convexity of F, and t counts the rounds from 1. The gap is F(w) - F* at the mean w of the
    models before the rounds, with the weights t. The bound is 2/(ν T (T + 1)) sum_t l_t(p_t). The mean
    squared aggregate is l_t(p_t) for one draw; for K draws it is larger by (1 - 1/K) ||∇F||², which eq. 5
    leaves out.
    """
    hessians, rights = problem.forms()
    hessian, right = hessians.mean(axis=0), rights.mean(axis=0)
    convexity, optimum = float(np.linalg.eigvalsh(hessian)[0]), np.linalg.solve(hessian, right)
    w, mean, losses = np.zeros(right.size), np.zeros(right.size), 0.0
    for t in range(1, num_rounds + 1):
        g = hessians @ w - rights
        norms = np.linalg.norm(g, axis=1)
        mean += 2 * t / (num_rounds * (num_rounds + 1)) * w
        losses += float(((norms / M) ** 2 / selector.probabilities).sum()) / K
        selection = selector.select(t)
        selector.update(t, selection, feedback_of(norms[selection.clients]))
        w = w - 2 / (convexity * t) * (selection.weights @ g[selection.clients])
    off = mean - optimum
    return float(off @ hessian @ off) / 2, 2 / (convexity * num_rounds * (num_rounds + 1)) * losses


EXPERIMENTS = (
    Experiment(name="osmd-bounds", run=run_bounds, seeds=20, digits=2),
    Experiment(name="osmd-gradient", run=run_gradient, seeds=20, digits=2),
    Experiment(name="osmd-fedavg", run=run_fedavg, seeds=20, digits=2),
)
