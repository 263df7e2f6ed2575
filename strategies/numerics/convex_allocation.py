"""FLICS' allocation of a round under several budgets: without a closed form, so computed with cvxpy.

Ribero, Vikalo, de Veciana, "Federated Learning at Scale: Addressing Client Intermittency and Resource
Constraints" (the FLICS paper). cvxpy is installed with the extra ``optim``; no other module needs it.
"""

from importlib import import_module
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import numpy.typing as npt

from .arrays import Floats


def load_cvxpy() -> Any:
    """Return the module cvxpy."""
    try:
        return import_module("cvxpy")
    except ImportError:
        raise ModuleNotFoundError(
            "cost_budget, energy_budgets: needs cvxpy: pip install 'cohort-app[optim]' (the library: "
            "'flwr-cohort[optim]')",
            name="cvxpy",
        ) from None


def fill_with_budgets(
    targets: npt.ArrayLike,
    counts: npt.ArrayLike,
    upper: npt.ArrayLike,
    lower: npt.ArrayLike,
    usage: npt.ArrayLike,
    budgets: npt.ArrayLike,
) -> Floats:
    """Return the r that minimises sum_j p_j²/(n_j + r_j), among lower <= r <= upper and usage r <= budgets.

    As in `budget_allocation.water_fill`, r_j is the number of participants of group j in this round.

    The first four arguments (G,) are those of `budget_allocation.water_fill`. `usage` (B, G) >= 0 says how
    much of each budget one participant of each group uses, and `budgets` (B,) are the limits, >= ``usage @
    lower``. The result (G,) is within all bounds and budgets. If the solver finds no solution, a RuntimeError
    is raised.
    """
    cp = load_cvxpy()
    p, n, high, low, rows, limits = (
        np.asarray(each, dtype=np.float64) for each in (targets, counts, upper, lower, usage, budgets)
    )
    if not (rows @ low <= limits * (1 + 1e-9)).all():
        raise ValueError(f"budgets = {limits}: must be at least {rows @ low}, which the lower bounds use up")
    rates, left = low.copy(), limits - rows @ low
    used_up = (rows[left <= 0] > 0).any(axis=0)
    free = (p > 0) & (high > low) & ~used_up
    if not free.any():
        return rates
    p, n, high, low, rows = p[free], n[free], high[free], low[free], rows[:, free]
    used = rows.any(axis=1)
    if not used.any():
        rates[free] = high
        return rates
    rows, left = rows[used], left[used]

    # The solver works best with numbers near 1. If only the total were limited, all groups would have the
    # same (n_j + r_j)/p_j. `unit` is p times this quotient, so the variables x_j = (n_j + r_j)/unit_j are
    # near 1.
    with np.errstate(divide="ignore"):
        total = min((high - low).sum(), (left * p.sum() / (rows @ p)).min())
        most = np.minimum(high, low + (left[:, None] / rows).min(axis=0))
    unit = p * (((n + low).sum() + total) / p.sum())
    x = cp.Variable(p.size)
    more = cp.multiply(unit, x) - (n + low)
    constraints = [x >= (n + low) / unit, x <= (n + most) / unit]
    constraints += [(row / limit) @ more <= 1 for row, limit in zip(rows, left, strict=True)]
    _solve(cp, cp.Minimize((p / p.sum()) @ cp.inv_pos(x)), constraints)
    found = np.clip(unit * x.value - n, low, high) - low
    taken = rows @ found  # the solver may exceed a budget by its tolerance, so r is scaled down
    rates[free] += found * np.divide(left, taken, out=np.ones(left.size), where=taken > left).min()
    return rates


def _solve(cp: Any, objective: Any, constraints: list[Any]) -> None:
    problem = cp.Problem(objective, constraints)
    precise = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)
    try:
        with catch_warnings():
            simplefilter("ignore", UserWarning)  # "may be inaccurate": the solver stopped before 1e-10
            problem.solve(solver="CLARABEL", **precise)
    except cp.error.SolverError as error:
        raise RuntimeError(f"the solver failed: {error}") from error
    if problem.status not in ("optimal", "optimal_inaccurate"):
        raise RuntimeError(f"the solver found no solution: its status is {problem.status}")
