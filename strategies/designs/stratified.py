"""Stratified draws: one in each k-th of the running sum of the scores.

Cochran, "Sampling Techniques" (1977), chapter 5. The variance is at most that of independent draws.
"""

import numpy as np

from ..numerics.arrays import Floats
from ..numerics.sampling import Draw, first_seen
from .base import Features
from .running_sum import RunningSum


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k times; a client may be drawn repeatedly. `features` is not used.

    Client m is drawn N_m times and has p_m = its score / the sum of the scores, and W_m = N_m / (k p_m). This
    is the only design whose joint probabilities depend on the order of the clients: two that follow each
    other are seldom drawn together.
    """
    sums = RunningSum(scores)
    if not 0 < sums.total < np.inf:
        raise ValueError(f"scores have sum {sums.total}: must be finite, >= 0 and not all 0")
    one_in_each = np.minimum((np.arange(k) + rng.random(k)) / k, np.nextafter(1, 0))
    clients, counts = first_seen(sums.find(one_in_each))
    p = scores[clients] / sums.end
    return Draw(clients, counts, p, counts / (k * p))
