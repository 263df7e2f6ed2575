"""FLICS' allocation of a round's budget to groups, in closed form: groups are filled up to a common level.

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
    """Return the r that minimises sum_j p_j²/(n_j + r_j), among lower <= r <= upper and sum_j r_j <= budget.

    Here r_j is the number of participants of group j in this round, and n_j their number in all earlier
    rounds. The paper's ŝ_j(t), the mean of these numbers over t rounds, is (n_j + r_j)/t with n_j = (t - 1)
    ŝ_j(t - 1); the factor 1/t does not change the solution. By the KKT conditions, all groups that are at no
    bound have the same level μ = (n_j + r_j)/p_j. So ``r_j = clip(μ p_j - n_j, lower_j, upper_j)``. The sum
    of the r_j grows with μ, and is linear between the points at which a group leaves its lower bound or
    reaches its upper bound. A bisection over these points gives μ in O(G log G).

    `targets` (G,) is p >= 0, in any unit; a group with p_j = 0 gets its lower bound, and a positive p_j below
    1e-150 times the largest is raised to this value. `counts` (G,) is n >= 0. `budget` is finite and at least
    the sum of `lower`. The bounds `lower` (default: 0) and `upper` (G,) are finite and >= 0. If all p_j > 0,
    the sum of the result (G,) is, up to rounding, the budget or the sum of `upper`, whichever is less.
    """
    p, n, high = (np.asarray(each, dtype=np.float64) for each in (targets, counts, upper))
    low = np.zeros(p.shape) if lower is None else np.asarray(lower, dtype=np.float64)
    for name, values, least in (("targets", p, 0), ("counts", n, 0), ("lower", low, 0), ("upper", high, low)):
        if values.ndim != 1 or values.shape != p.shape:
            raise ValueError(f"{name} has shape {values.shape}: must be (G,), as targets has {p.shape}")
        if not (np.isfinite(values) & (values >= least)).all():
            raise ValueError(f"{name} = {values}: must be finite and >= {least}")
    if not low.sum() * (1 - 1e-9) <= budget < np.inf:  # allows for rounding of the sum
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

    # The sum at level points[below] is within the budget, and at level points[above] it is not.
    below, above = 0, points.size - 1
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
    """Round ``expected`` (G,) >= 0, of a whole sum, up or down: total and expectations stay; one draw."""
    values = np.asarray(expected, dtype=np.float64)
    edges = np.concatenate([[0.0], np.cumsum(values)])
    total = round(float(edges[-1]))
    if not ((values >= 0).all() and abs(edges[-1] - total) <= 1e-9 * max(1, total)):
        raise ValueError(f"expected = {values}: must be >= 0, with an integer as sum")
    edges[-1] = total
    steps: Ints = np.floor(edges + rng.random()).astype(np.int64)
    return steps[1:] - steps[:-1]
