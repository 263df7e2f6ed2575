"""Projection onto the simplex with a floor, by the Kullback-Leibler divergence.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback"
(the OSMD paper), Proposition 1 and Algorithm 2.
"""

import numpy as np
import numpy.typing as npt

from .arrays import Floats


def scale_above_floor(weights: Floats, floor: float) -> Floats:
    """Return the p with the least KL(p || w) for weights w, among all p with p_m >= floor and sum_m p_m = 1.

    The solution is ``p_m = max(floor, c w_m)``, where c is such that the sum is 1 (Proposition 1; the paper's
    π(m) is the rank of w_m). Algorithm 2 finds c by sorting. Here the set of entries at the floor grows until
    it no longer changes. Raising entries to the floor takes mass from the others and lowers c, so an entry at
    the floor remains there, and the final set is the solution. This takes a few passes over M entries, and no
    sort.

    `weights` (M,) are finite and >= 0, and the largest is not so small that divisions by it overflow. `floor`
    (α/M in the paper) is in [0, 1/M]; with 1/M, p is uniform. The arguments are not checked.
    """
    free = weights
    while True:
        c = (1 - floor * (weights.size - free.size)) / free.sum()
        above = free >= floor / c
        left = np.count_nonzero(above)
        # If the floor is 1/M, rounding may put all entries below the floor: then `left` is 0.
        if left in (0, free.size):
            p: Floats = c * weights
            return np.maximum(p, floor, out=p)
        free = free[above]


def project_floored_simplex(log_weights: npt.ArrayLike, floor: float) -> Floats:
    """Return the projection p (M,) of weights, given by their logarithms (M,) up to a constant."""
    logs = np.asarray(log_weights, dtype=np.float64)
    return scale_above_floor(np.exp(logs - logs.max()), floor)


def scale_rows_above_floor(weights: Floats, floor: float) -> Floats:
    """Return the projection of each row of `weights` (E, M), as `scale_above_floor`; fast up to 10,000."""
    size, free = weights.shape[1], weights.size
    c = 1 / weights.sum(axis=1)[:, None]
    p: Floats = c * weights
    # Repeat until the set of entries at the floor is final in all rows.
    while (left := int(np.count_nonzero(above := p >= floor))) < free:
        free, counts = left, above.sum(axis=1)[:, None]
        sums = np.vecdot(weights, above)[:, None]
        # If the floor is 1/M, rounding may put all entries of a row below the floor: then its count is 0.
        np.divide(1 - floor * (size - counts), sums, out=c, where=counts > 0)
        np.multiply(c, weights, out=p)
    return p if free == p.size else np.maximum(p, floor, out=p)
