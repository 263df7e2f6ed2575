"""Projection onto the simplex with a floor, in the KL divergence.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback"
(the OSMD paper), Proposition 1 and Algorithm 2.
"""

import numpy as np
import numpy.typing as npt

from .arrays import Floats


def project_floored_simplex(log_weights: npt.ArrayLike, floor: float) -> Floats:
    """Return the p nearest to weights w in KL(p || w), among p_m >= floor and sum_m p_m = 1.

    The solution is ``p_m = max(floor, c w_m)`` with the one c that makes the sum 1 (Proposition 1; its
    "π(m) < m*" is the rank of m). Algorithm 2 finds c by sorting. Here the floor set grows until it is
    stable: flooring the entries below the floor takes mass from the others and lowers c, so a floored entry
    stays floored, and the final set is the solution. It takes a few passes over M, and no sort.

    Parameters
    ----------
    log_weights : array_like, shape (M,)
        log w, up to a constant; finite or -inf. Weights that underflow next to the largest get the floor.
    floor : float
        Lower bound of every p_m, in [0, 1/M] (α/M in the paper); 1/M gives the uniform distribution.

    Returns
    -------
    ndarray, shape (M,)
        p, with p >= floor and sum 1 up to rounding.

    Raises
    ------
    ValueError
        If `log_weights` is empty, not 1-D, holds NaN or +inf, or nothing finite, or `floor` is out of range.
    """
    log_w = np.asarray(log_weights, dtype=np.float64)
    if log_w.ndim != 1 or log_w.size == 0:
        raise ValueError(f"log_weights has shape {log_w.shape}: must be (M,) with M >= 1")
    largest = log_w.max()
    if not np.isfinite(largest):
        raise ValueError(f"log_weights has maximum {largest}: must be finite, without NaN")
    if not 0 <= floor <= 1 / log_w.size:
        raise ValueError(f"floor = {floor}: must be between 0 and {1 / log_w.size} (1/M)")

    return scale_above_floor(np.exp(log_w - largest), floor)


def scale_above_floor(weights: Floats, floor: float) -> Floats:
    """Return the projection of weights (M,), see `project_floored_simplex`; nothing is checked.

    They must be finite and >= 0, the largest neither 0 nor tiny.
    """
    free = weights
    while True:
        c = (1 - floor * (weights.size - free.size)) / free.sum()
        above = free >= floor / c
        left = np.count_nonzero(above)
        # No entry is left only by rounding, when the floor is 1/M.
        if left in (0, free.size):
            p: Floats = c * weights
            return np.maximum(p, floor, out=p)
        free = free[above]


def scale_rows_above_floor(weights: Floats, floor: float) -> Floats:
    """Return the projections of the rows of weights (E, M), see `scale_above_floor`.

    All passes go over all entries, which is faster as long as rows are short, up to some 10,000 entries.
    """
    size, free = weights.shape[1], weights.size
    c = 1 / weights.sum(axis=1)[:, None]
    p: Floats = c * weights
    # Until the floor sets of all rows are final.
    while (left := int(np.count_nonzero(above := p >= floor))) < free:
        free, counts = left, above.sum(axis=1)[:, None]
        sums = np.vecdot(weights, above)[:, None]
        # No entry of a row is left only by rounding, when the floor is 1/M.
        np.divide(1 - floor * (size - counts), sums, out=c, where=counts > 0)
        np.multiply(c, weights, out=p)
    return p if free == p.size else np.maximum(p, floor, out=p)
