"""The bounds of Power-of-Choice beside the measured gap on quadratic losses, and the toy of Figure 1."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.experiments.power_of_choice import bounds
from benchmarks.experiments.power_of_choice.quadratics import (
    RANDOM,
    STEP_SIZE,
    STEPS,
    Quadratic,
    Trial,
    ask_and_select,
    make_quadratic,
    make_selector,
    models_around,
    selection_shares,
    skews_at,
    smallest_skews,
)
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from strategies.numerics.arrays import Floats
from strategies.selectors import Selector

TRIALS = (Trial(RANDOM, "md"), *(Trial(f"d={d}", "pow-d", {"num_candidates": d}) for d in (6, 15, 30)))
BY_DATA = Trial("d=6, q∝p", "pow-d", {"num_candidates": 6, "averaging": "sizes"})
"""The trial for eq. 86. The selected clients have weights in proportion to their data."""


class Descent(NamedTuple):
    """The result of a run."""

    gaps: Floats  # (R + 1,) F(w) - F* before each round, and after the last
    # The largest squared norm of any client's gradient at any global model of the run. In local training, the
    # model comes nearer to the client's optimum, so the client's gradient does not grow.
    gradient: float
    path: Floats  # (R + 1, v) global models


def descend(problem: Quadratic, selector: Selector, num_rounds: int, rate: Callable[[int], float]) -> Descent:
    """Train by federated averaging from w = (1, ..., 1); `rate` gives η of iterations 0, 1, ..."""
    w, optimum, everyone = np.ones(problem.optima.shape[1]), problem.optimum, np.arange(problem.sizes.size)
    path, largest = [w], 0.0
    for round in range(num_rounds):
        apart = np.linalg.norm(w - problem.optima, axis=1)
        largest = max(largest, float(((problem.curvatures * apart) ** 2).max()))
        selection = ask_and_select(selector, round, functools.partial(problem.losses, w))
        left = np.ones(everyone.size)
        for step in range(STEPS):
            left *= 1 - rate(STEPS * round + step) * problem.curvatures
        chosen = selection.clients
        # A client's model after the round is w_k* + left_k (w - w_k*). The weights need not sum to 1.
        w = w + (selection.weights * (1 - left[chosen])) @ (problem.optima[chosen] - w)
        path.append(w)
    models = np.array(path)
    apart = models - optimum
    total = problem.sizes @ problem.curvatures
    return Descent(0.5 * total * (apart**2).sum(axis=1), largest, models)


def _constants(problem: Quadratic, gradient: float) -> bounds.Constants:
    start = np.ones(problem.optima.shape[1]) - problem.optimum
    total = float(problem.sizes @ problem.curvatures)
    return bounds.Constants(
        smoothness=float(problem.curvatures.max()),
        convexity=float(problem.curvatures.min()),
        gap=bounds.objective_gap(problem),
        gradient=gradient,
        noise=0.0,
        steps=STEPS,
        selected=problem.sizes.size // 10,
        start=float(start @ start),
        start_gap=0.5 * total * float(start @ start),
    )


def _skews(
    problem: Quadratic, selector: Selector, points: Floats, samples: int, by_data: bool
) -> tuple[float, float]:
    """Return ρ̄ (at any of the models `points`) and ρ̃: eqs. 6 and 7, or 78 and 79 if `by_data`."""
    shares = selection_shares(problem, selector, points, samples, by_data)
    return (
        float(smallest_skews(problem, shares).min()),
        float(skews_at(problem, shares, problem.optimum).max()),
    )


def run_bounds(seed: int, num_rounds: int = 3000, num_points: int = 60, num_samples: int = 4000) -> Outcome:
    """Train with the learning rates of the theorems, and compare the gap with its bound in each round.

    ρ̄ and ρ̃ are taken over `num_points` models and those on the path, from `num_samples` sets of candidates.
    """
    problem = make_quadratic(seed, 30)
    around = models_around(problem, np.random.default_rng((seed, 1)), num_points)
    iterations = STEPS * np.arange(num_rounds + 1.0)
    mu = float(problem.curvatures.min())
    cells: dict[Cell, float] = {}
    curves: dict[str, dict[str, Curve]] = {}
    shown = np.arange(0, num_rounds + 1, max(1, num_rounds // 100))

    def compare(row: str, column: str, gaps: Floats, bound: Floats) -> None:
        # A gap of 0 does not occur: the rates are too small to reach the optimum.
        cells[row, f"log10 gap, {column}"] = math.log10(gaps[-1])
        cells[row, f"log10 bound, {column}"] = math.log10(bound[-1])
        cells[row, f"least bound / gap, {column}"] = float((bound / gaps).min())
        panel = curves.setdefault(column, {})
        panel[row] = Curve(iterations[shown], gaps[shown])
        panel[f"{row}, bound"] = Curve(iterations[shown], bound[shown])

    for trial in (*TRIALS, BY_DATA):
        by_data = trial is BY_DATA
        of = _constants(problem, 0.0)
        offset = bounds.averaging_offset(of) if by_data else bounds.decaying_offset(of)
        step = of.selected / mu if by_data else 1 / mu

        def falling(t: int, offset: float = offset, step: float = step) -> float:
            return step / (t + offset)

        run = descend(problem, make_selector(problem, trial, seed), num_rounds, falling)
        selector = make_selector(problem, trial, seed)
        points = np.vstack([around, run.path[:: max(1, num_rounds // 20)]])
        least, largest = _skews(problem, selector, points, num_samples, by_data)
        cells[trial.label, "Γ"] = of.gap
        cells[trial.label, "ρ̄"], cells[trial.label, "ρ̃"] = least, largest
        of = of._replace(gradient=run.gradient)
        if by_data:
            compare(trial.label, "eq. 86", run.gaps, bounds.averaging_bound(of, iterations, least, largest))
            continue
        compare(trial.label, "eq. 8", run.gaps, bounds.decaying_bound(of, iterations, least, largest))
        fixed = descend(problem, make_selector(problem, trial, seed), num_rounds, lambda t: STEP_SIZE)
        of = of._replace(gradient=fixed.gradient)
        bound = bounds.fixed_bound(of, STEP_SIZE, iterations, least, largest)
        compare(trial.label, "eq. 9", fixed.gaps, bound)
    return Outcome(cells, curves)


# The toy of Figure 1.

MINIMA = np.array([-1.0, 1.0])
"""The minima of F_1 and F_2, which are (w + 1)²/2 and (w - 1)²/2. F is their mean, with its minimum at 0."""
MOVE = 0.4
"""A round moves the model by this share of the way to the minimum of the selected client's loss."""
ORDER = (1, 1, 0, 0, 1)
"""The clients of the paper's random selection, 2, 2, 1, 1, 2, counted from 0."""


def toy_path(start: float, choose: Callable[[int, float], int]) -> Floats:
    """Return F(w) - F* after each of five rounds with one client, which `choose(round, w)` returns."""
    gaps, w = np.empty(5), start
    for round in range(5):
        w += MOVE * (MINIMA[choose(round, w)] - w)
        gaps[round] = w**2 / 2
    return gaps


def _in_order(order: tuple[int, ...], round: int, w: float) -> int:
    return order[round]


def run_toy(seed: int) -> Outcome:
    """Select one of two clients, five times: by the larger loss, in the paper's order, or at random."""
    start = float(np.random.default_rng(seed).uniform(-4, -2))
    orders = itertools.product((0, 1), repeat=5)
    every = [toy_path(start, functools.partial(_in_order, order)) for order in orders]
    rows = {
        "larger loss": toy_path(start, lambda round, w: int(np.argmax((w - MINIMA) ** 2))),
        "in the order 2, 2, 1, 1, 2": toy_path(start, functools.partial(_in_order, ORDER)),
        "at random, mean of all orders": np.mean(every, axis=0),
    }
    cells = {
        (row, f"after {round + 1}"): float(gap)
        for row, gaps in rows.items()
        for round, gap in enumerate(gaps)
    }
    cells |= {(row, "before"): start**2 / 2 for row in rows}
    lines = {row: Curve(np.arange(1.0, 6), gaps) for row, gaps in rows.items()}
    return Outcome(cells, {"F(w) - F*": lines})


EXPERIMENTS = (
    Experiment(name="poc-toy", run=run_toy, y="F(w) - F*", x="selection", log_y=True),
    Experiment(
        name="poc-bounds",
        run=run_bounds,
        seeds=10,
        digits=2,
        x="iteration",
        y="F(w) - F*",
        log_y=True,
        quick={"num_rounds": 300, "num_points": 15, "num_samples": 1000},
    ),
)
