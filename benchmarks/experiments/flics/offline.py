"""FLICS over many known rounds, and the offline optimum that Theorem 2 compares it with.

Ribero, Vikalo, de Veciana, "Federated Learning at Scale: Addressing Client Intermittency and Resource
Constraints", section III-B.
"""

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Floats
from strategies.numerics.water_filling import water_fill


def fill_rounds(targets: npt.ArrayLike, available: npt.ArrayLike, budgets: npt.ArrayLike) -> Floats:
    """Return the rates r(t) of FLICS in given rounds, (T, G): each `water_fill` on top of the earlier ones.

    Parameters
    ----------
    targets : array_like, shape (G,)
        p >= 0.
    available : array_like, shape (T, G)
        a(t) >= 0, how many clients of each group are available.
    budgets : array_like, shape (T,)
        k(t) >= 0.

    Raises
    ------
    ValueError
        If an argument has the wrong shape or is out of range.
    """
    a = np.asarray(available, dtype=np.float64)
    rates, counts = np.zeros(a.shape), np.zeros(a.shape[1])
    for t, budget in enumerate(np.asarray(budgets, dtype=np.float64)):
        rates[t] = water_fill(targets, counts, float(budget), a[t])
        counts += rates[t]
    return rates


def offline_participation(targets: npt.ArrayLike, available: npt.ArrayLike, budgets: npt.ArrayLike) -> Floats:
    """Return the s of OffVar (eq. 8): the best mean rates if all rounds are known beforehand.

    The solution is exact and needs no solver, but it enumerates all sets of groups. An s is possible if
    ``sum_{j in A} s_j <= f(A) = (1/T) sum_t min(k(t), sum_{j in A} a_j(t))`` for all sets A. This is a
    polymatroid, on which sum_j p_j²/s_j is least where the levels s_j/p_j are lexicographically largest
    (Fujishige, "Lexicographically optimal base of a polymatroid", 1980). So the set with the lowest f(A)/p(A)
    has that level, and the levels of the other groups are found in the same way on top of it.

    Parameters
    ----------
    targets : array_like, shape (G,)
        p >= 0, G <= 16.
    available : array_like, shape (T, G)
        a(t) >= 0.
    budgets : array_like, shape (T,)
        k(t) >= 0.

    Returns
    -------
    ndarray, shape (G,)
        s; 0 where p is 0.

    Raises
    ------
    ValueError
        If there are more than 16 groups.
    """
    p, a, k = (np.asarray(each, dtype=np.float64) for each in (targets, available, budgets))
    best, wanted = np.zeros(p.size), np.flatnonzero(p)
    if wanted.size > 16:
        raise ValueError(f"targets has {wanted.size} groups with p > 0: must be at most 16")
    sets = np.arange(2**wanted.size)
    members = (sets[:, None] >> np.arange(wanted.size)) & 1
    weight = members @ p[wanted]
    most = np.zeros(sets.size)
    for rows in np.array_split(np.arange(len(a)), 1 + a.shape[0] * sets.size // 2**21):
        most += np.minimum(k[rows, None], a[np.ix_(rows, wanted)] @ members.T).sum(axis=0)
    most /= len(a)
    known = 0
    while known < sets[-1]:
        larger = sets[(sets & known == known) & (sets != known)]
        levels = (most[larger] - most[known]) / (weight[larger] - weight[known])
        lowest = larger[np.argmin(levels)]
        new = wanted[members[lowest & ~known].astype(np.bool_)]
        best[new] = p[new] * levels.min()
        known = int(lowest)
    return best
