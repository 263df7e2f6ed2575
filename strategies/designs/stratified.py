"""Stratified draws: one in each k-th of the running sum of the scores.

Cochran, "Sampling Techniques" (1977), chapter 5. The variance is at most that of independent draws.
"""

from collections.abc import Callable

import numpy as np

from ..numerics.arrays import Floats, Ints
from ..numerics.sampling import Draw, first_seen
from .base import Features
from .running_sum import RunningSum


def strata(k: int, rng: np.random.Generator) -> Floats:
    """Return (k,) ascending numbers: one uniform number from each of k equal parts of [0, 1)."""
    return np.minimum((np.arange(k) + rng.random(k)) / k, np.nextafter(1, 0))


def counted(drawn: Ints, k: int, probability: Callable[[Ints], Floats]) -> Draw:
    """Return the draw of the clients in `drawn` (k,), W_m = N_m / (k p_m), where m was drawn N_m times.

    `probability` takes distinct clients (n,) and returns p (n,), so that E[N_m] = k p_m.
    """
    clients, counts = first_seen(drawn)
    p = probability(clients)
    return Draw(clients, counts, p, counts / (k * p))


def draw_stratified(p: Floats, k: int, rng: np.random.Generator) -> Draw:
    """Draw one client in each k-th of the running sum of p (M,), weights >= 0 that need not sum to 1."""
    sums = RunningSum(p)
    if not 0 < sums.total < np.inf:
        raise ValueError(f"p has sum {sums.total}: must be finite, >= 0 and not all 0")
    return counted(sums.find(strata(k, rng)), k, lambda clients: p[clients] / sums.end)


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k times; a client may be drawn repeatedly. `features` is not used.

    This is the only design whose joint probabilities depend on the order of the clients: two that follow each
    other are seldom drawn together.
    """
    return draw_stratified(scores, k, rng)
