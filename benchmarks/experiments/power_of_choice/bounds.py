"""The bounds of Power-of-Choice: eqs. 8, 9 and 86, with the local-global objective gap Γ of eq. 4.

In the paper m of K clients train in a round of τ iterations. F_k is the loss of client k, p_k the client's
share of the data, and F = sum_k p_k F_k. F* and F_k* are the least values of F and F_k, and w* is the model
at which F is least. The selection skew ρ (eq. 5) depends on two models w and w': clients are selected at w,
and ρ is the mean of F_k(w') - F_k* over the selected clients, divided by F(w') - sum_k p_k F_k*.
"""

from typing import NamedTuple

import numpy as np

from benchmarks.experiments.power_of_choice.quadratics import Quadratic
from strategies.numerics.arrays import Floats


class Constants(NamedTuple):
    """The constants of the bounds that do not depend on the selection."""

    smoothness: float  # L and μ > 0: every client's loss is L-smooth and μ-strongly convex
    convexity: float
    gap: float  # Γ >= 0, see `objective_gap`
    gradient: float  # G², a bound of the mean squared norm of every stochastic gradient
    noise: float  # σ², a bound of the variance of every stochastic gradient
    steps: int  # τ and m
    selected: int
    start: float  # ||w_0 - w*||²
    start_gap: float  # F(w_0) - F*


def objective_gap(problem: Quadratic) -> float:
    """Return Γ = F* - sum_k p_k F_k* (eq. 4). F_k* is 0 for the quadratic losses."""
    losses = problem.losses(problem.optimum, np.arange(problem.sizes.size))
    return float(problem.sizes @ losses)


def decaying_offset(of: Constants) -> float:
    """Return γ = 4L/μ of Theorem 3.1, whose learning rate in iteration t is 1/(μ (t + γ))."""
    return 4 * of.smoothness / of.convexity


def decaying_bound(of: Constants, iterations: Floats, least: float, largest: float) -> Floats:
    """Return the bound of E F(w_T) - F* for each T with a falling learning rate (eq. 8), the bias Q included.

    `least` is ρ̄ > 0, the least skew over all w and w'; `largest` is ρ̃, the largest for w' = w* (eqs. 6, 7).
    """
    size, mu, offset = of.smoothness, of.convexity, decaying_offset(of)
    first = 4 * size * (32 * of.steps**2 * of.gradient + of.noise / of.selected) / (3 * mu**2 * least)
    vanishing = first + 8 * size**2 * of.gap / mu**2 + size * offset * of.start / 2
    return vanishing / (iterations + offset) + bias(of, least, largest)


def bias(of: Constants, least: float, largest: float) -> float:
    """Return Q(ρ̄, ρ̃) = 8LΓ/(3μ) (ρ̃/ρ̄ - 1), the part of eq. 8 that does not vanish."""
    return 8 * of.smoothness * of.gap / (3 * of.convexity) * (largest / least - 1)


def fixed_bound(of: Constants, rate: float, iterations: Floats, least: float, largest: float) -> Floats:
    """Return the bound of F(w_T) - F* with a fixed rate η <= min(1/(2μB), 1/(4L)), B = 1 + 3ρ̄/8 (eq. 9)."""
    size, mu = of.smoothness, of.convexity
    grow = 1 + 3 * least / 8
    highest = min(1 / (2 * mu * grow), 1 / (4 * size))
    if not 0 < rate <= highest:
        raise ValueError(f"rate = {rate}: must be above 0 and at most {highest}")
    noise = rate * (32 * of.steps**2 * of.gradient + of.noise / of.selected + 6 * least * size * of.gap)
    floor = (4 * noise + 8 * of.gap * (largest - least)) / (8 + 3 * least)
    return size / mu * ((1 - rate * mu * grow) ** iterations * (of.start_gap - floor) + floor)


def averaging_offset(of: Constants) -> float:
    """Return γ = 4m(1 + m)L/μ of eq. 86, whose learning rate in iteration t is m/(μ (t + γ))."""
    return 4 * of.selected * (1 + of.selected) * of.smoothness / of.convexity


def averaging_bound(of: Constants, iterations: Floats, least: float, largest: float) -> Floats:
    """Return the bound of E F(w_T) - F* with fixed weights q_k and a falling learning rate (eq. 86).

    The bias is as printed: it has one factor 1/ρ̄_q more than eqs. 82 to 85 give. `least` and `largest` are
    ρ̄_q and ρ̃_q, the skews with these weights (eqs. 78 and 79).
    """
    size, mu, m, offset = of.smoothness, of.convexity, of.selected, averaging_offset(of)
    first = size * m**2 * (32 * m * (m - 1) * of.steps**2 * of.gradient + of.noise) / (mu**2 * least)
    vanishing = first + 2 * size**2 * m * (m + 2) * of.gap / mu**2 + size * offset * of.start / 2
    return vanishing / (iterations + offset) + 2 * size * of.gap / (least * mu) * (largest / least - 1)
