"""How long a round of K draws is expected to take, and the p for which variance times time is least."""

from itertools import repeat

import numpy as np

from ...numerics.arrays import Floats

STEPS = 40
# The search of `best_masses` ends when a step lowers log(V T) by less than this number, or when the step size
# is below this number.
ENOUGH = 1e-4


def expected_maximum(seconds: Floats, masses: Floats, draws: int) -> float:
    """Return the expected maximum of K independent draws from a discrete distribution of durations.

    The maximum is at most d_i if every draw is at most d_i, so with F_i = masses_1 + ... + masses_i ::

        E[max] = sum_i d_i (F_i^K - F_{i-1}^K)

    `seconds` (n,) holds the durations d, ascending, `masses` (n,) their probabilities, which sum to 1, and
    `draws` is K >= 1.
    """
    below = np.minimum(np.cumsum(masses), 1.0) ** draws
    below[-1] = 1.0
    return float(seconds @ np.diff(below, prepend=0.0))


def slopes(seconds: Floats, masses: Floats, draws: int) -> Floats:
    """Return (n,) the derivatives of `expected_maximum` by the masses, up to a common constant.

    E[max] = d_n - sum_{i<n} (d_{i+1} - d_i) F_i^K, so the derivative by mass j is
    -K sum_{j<=i<n} (d_{i+1} - d_i) F_i^(K-1).
    """
    below = np.minimum(np.cumsum(masses), 1.0)[:-1]
    terms = np.diff(seconds) * draws * below ** (draws - 1)
    result: Floats = np.concatenate([-np.cumsum(terms[::-1])[::-1], [0.0]])
    return result


def best_masses(
    shares: Floats, spread: Floats, seconds: Floats, draws: int, least: float, most: float
) -> Floats:
    """Return P (G,), the total probability of each group of clients, with the least variance times time.

    The clients of a group have about equal durations. q is the best distribution for unbiased sampling if
    time costs nothing: it is in proportion to λ_m ||g_m||. p is the distribution from which clients are
    drawn. Q_b and P_b are the sums of q and of p over group b. Within a group, p is in proportion to q:
    p_m = q_m P_b / Q_b. The aggregate is sum_m N_m/(K p_m) λ_m g_m, where N_m is how often client m is drawn.
    Its second moment is V(P) times (sum λ ||g||)²/K, plus terms that do not depend on p::

        V(P) = sum_m q_m² / p_m = sum_b Q_b² / P_b

    Where sampling noise dominates, the number of rounds that SGD needs is proportional to V. The expected
    time T(P) of a round is the expected maximum of the durations of K draws. The result minimises
    V(P) T(P) under least Q_b <= P_b <= most Q_b, by exponentiated gradient steps that are only taken if they
    lower V T. V T is not convex, so there are two starts: P = Q, and P in proportion to Q divided by the
    group's mean duration. V T of the result is at most that of P = Q.

    `shares` (G,) is Q > 0, of sum 1. Row b of `spread` (G, n) has the probability of each duration in
    `seconds` (n,), > 0 and ascending, for the clients of group b. `draws` is K >= 1. `least` <= 1 <= `most`
    are the bounds of P_b / Q_b, > 0.
    """
    low, high = least * shares, most * shares

    def cost(masses: Floats) -> float:
        return float(
            np.log((shares**2 / masses).sum()) + np.log(expected_maximum(seconds, masses @ spread, draws))
        )

    best, least_cost = shares, cost(shares)
    for start in (shares, _projected(shares / (spread @ seconds), low, high)):
        masses, now, rate = start, cost(start), 1.0
        for _ in repeat(None, STEPS):
            over = masses @ spread
            gradient = spread @ slopes(seconds, over, draws) / expected_maximum(seconds, over, draws)
            gradient = gradient - (shares / masses) ** 2 / (shares**2 / masses).sum()
            gradient -= gradient @ masses
            new = _projected(masses * np.exp(np.clip(-rate * gradient, -2, 2)), low, high)
            after = cost(new)
            gained = now - after
            if gained > 0:
                masses, now, rate = new, after, rate * 1.5
            else:
                rate /= 3
            if 0 < gained < ENOUGH or rate < ENOUGH:
                break
        if now < least_cost:
            best, least_cost = masses, now
    return best


def _projected(masses: Floats, low: Floats, high: Floats) -> Floats:
    """Return clip(c · masses, low, high) with the c for which the sum, piecewise linear in c, is 1."""
    points = np.sort(np.concatenate([low / masses, high / masses]))
    sums = np.minimum(np.maximum(points[:, None] * masses, low), high).sum(axis=1)
    at = int(np.clip(np.searchsorted(sums, 1.0), 1, points.size - 1))
    rise = sums[at] - sums[at - 1]
    share = (1 - sums[at - 1]) / rise if rise > 0 else 0.0
    factor = points[at - 1] + min(max(share, 0.0), 1.0) * (points[at] - points[at - 1])
    clipped = np.clip(factor * masses, low, high)
    result: Floats = clipped / clipped.sum()
    return result
