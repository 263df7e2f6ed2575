"""Filling groups up to a common level: FLICS' allocation of a round's budget, in closed form.

Ribero, Vikalo, de Veciana, "Federated Learning at Scale: Addressing Client Intermittency and Resource
Constraints" (the FLICS paper), problem Var, eqs. 5 and 6.
"""

import numpy as np
import numpy.typing as npt

from .arrays import Floats, Ints


def water_fill(
    targets: npt.ArrayLike,
    counts: npt.ArrayLike,
    budget: float,
    upper: npt.ArrayLike,
    lower: npt.ArrayLike | None = None,
) -> Floats:
    """Return the r with least sum_j p_j²/(n_j + r_j), among lower <= r <= upper and sum_j r_j <= budget.

    The paper's ŝ_j(t) is (n_j + r_j)/t with n_j = (t - 1) ŝ_j(t - 1); its t drops out. By KKT the groups that
    meet no bound are at one level, (n_j + r_j)/p_j = μ, so ``r_j = clip(μ p_j - n_j, lower_j, upper_j)``. The
    sum of the r_j grows with μ, piecewise linearly between the points where a group leaves its lower bound or
    meets its upper one. These points are sorted, bisection over them finds the interval that holds the
    budget, and a division gives μ. It takes O(G log G).

    Parameters
    ----------
    targets : array_like, shape (G,)
        p >= 0, in any unit; a group with p_j = 0 gets its lower bound. Others count as at least 1e-150 of
        the largest.
    counts : array_like, shape (G,)
        n >= 0, the number of participants so far.
    budget : float
        At least the sum of the lower bounds, finite.
    upper : array_like, shape (G,)
        Finite and >= lower; the number of available clients.
    lower : array_like, shape (G,), optional
        Finite, >= 0 (default: 0).

    Returns
    -------
    ndarray, shape (G,)
        r; its sum is the budget up to rounding, or the sum of `upper` if that is less.

    Raises
    ------
    ValueError
        If an argument has the wrong shape or is out of range.
    """
    p, n, high = (np.asarray(each, dtype=np.float64) for each in (targets, counts, upper))
    low = np.zeros(p.shape) if lower is None else np.asarray(lower, dtype=np.float64)
    for name, values, least in (("targets", p, 0), ("counts", n, 0), ("lower", low, 0), ("upper", high, low)):
        if values.ndim != 1 or values.shape != p.shape:
            raise ValueError(f"{name} has shape {values.shape}: must be (G,), as targets has {p.shape}")
        if not (np.isfinite(values) & (values >= least)).all():
            raise ValueError(f"{name} = {values}: must be finite and >= {least}")
    if not low.sum() * (1 - 1e-9) <= budget < np.inf:  # the sum may be rounded
        raise ValueError(f"budget = {budget}: must be finite and at least {low.sum()}, the sum of lower")

    rates, wanted = low.copy(), p > 0
    budget -= low[~wanted].sum()
    p, n, low, high = p[wanted], n[wanted], low[wanted], high[wanted]
    if high.sum() <= budget:
        rates[wanted] = high
        return rates

    p = np.maximum(p / p.max(), 1e-150)
    leaves, meets = (n + low) / p, (n + high) / p
    points = np.sort(np.concatenate([leaves, meets]))

    def fill(level: float) -> Floats:
        filled: Floats = np.clip(level * p - n, low, high)
        return filled

    below, above = 0, points.size - 1  # the fill at points[below] is within the budget, at points[above] not
    while above - below > 1:
        middle = (below + above) // 2
        if fill(points[middle]).sum() <= budget:
            below = middle
        else:
            above = middle
    level = points[below]
    rising = p[(leaves <= level) & (meets > level)].sum()
    if rising > 0:
        level += max(0.0, budget - fill(level).sum()) / rising
    rates[wanted] = fill(level)
    return rates


def round_to_total(expected: npt.ArrayLike, rng: np.random.Generator) -> Ints:
    """Round to integers at random, keeping each expectation and the total (systematic rounding).

    Parameters
    ----------
    expected : array_like, shape (G,)
        Numbers >= 0 whose sum is an integer up to rounding.
    rng : np.random.Generator
        Source of randomness; one number is taken.

    Returns
    -------
    ndarray of int, shape (G,)
        Each is `expected` rounded down or up; they sum to the sum of `expected`.

    Raises
    ------
    ValueError
        If an entry is negative or the sum is not an integer.
    """
    values = np.asarray(expected, dtype=np.float64)
    edges = np.concatenate([[0.0], np.cumsum(values)])
    total = round(float(edges[-1]))
    if not ((values >= 0).all() and abs(edges[-1] - total) <= 1e-9 * max(1, total)):
        raise ValueError(f"expected = {values}: must be >= 0, with an integer as sum")
    edges[-1] = total
    steps: Ints = np.floor(edges + rng.random()).astype(np.int64)
    return steps[1:] - steps[:-1]
