"""The rates of FLICS over many rounds, and the offline optimum that Theorem 2 compares them with.

The rate of a group in a round is the expected number of its clients that take part.
"""

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Floats
from strategies.numerics.budget_allocation import water_fill


def fill_rounds(targets: npt.ArrayLike, available: npt.ArrayLike, budgets: npt.ArrayLike) -> Floats:
    """Return the rates r(t) of FLICS (T, G) for weights p (G,), available clients (T, G) and budgets (T,)."""
    a = np.asarray(available, dtype=np.float64)
    rates, counts = np.zeros(a.shape), np.zeros(a.shape[1])
    for t, budget in enumerate(np.asarray(budgets, dtype=np.float64)):
        rates[t] = water_fill(targets, counts, float(budget), a[t])
        counts += rates[t]
    return rates


def offline_participation(targets: npt.ArrayLike, available: npt.ArrayLike, budgets: npt.ArrayLike) -> Floats:
    """Return the solution s (G,) of the paper's problem OffVar (eq. 8): the best mean rates of the groups.

    These are the mean rates with the least sum_j p_j²/s_j, if all rounds are known beforehand; at most 16 of
    the weights p (G,) are not 0. The paper's OffVar also demands that every s_j is at least a constant r_min.
    Here neither OffVar nor FLICS has r_min.

    The solution is exact, but all sets of groups are enumerated. Mean rates s are possible if, for all sets A
    of groups, ``sum_{j in A} s_j <= f(A)`` with ``f(A) = (1/T) sum_t min(k(t), sum_{j in A} a_j(t))``. These
    s are a polymatroid, on which sum_j p_j²/s_j is least if the sorted levels s_j/p_j are lexicographically
    largest (Fujishige, "Lexicographically optimal base of a polymatroid", 1980). Let A be the set with the
    lowest f(A)/p(A): this ratio is the level of all groups in A. The others' levels follow in the same way,
    with A's fixed.
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
