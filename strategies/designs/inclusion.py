"""Inclusion probabilities in proportion to scores, capped at 1."""

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Floats, Ints
from ..numerics.sampling import Draw


def inclusion_probabilities(scores: npt.ArrayLike, k: int) -> Floats:
    """Return ``π_m = min(1, c s_m)``, where c is such that the sum of π is k.

    π_m is capped if c s_m > 1. Only the k largest scores can be capped. If the j largest scores are capped, c
    is (k - j) divided by the sum of all other scores. The solution has the smallest j for which the next
    largest score times c is at most 1. Sums start with the smallest scores, so no digits cancel. The
    computation takes O(M + k log k).

    `scores` (M,) is s >= 0 with a finite sum, in any unit. k, the expected number of clients, is at most the
    number of positive scores. With `systematic` the number of drawn clients is always k. The result (M,) is 1
    if capped, and 0 if the score is 0.
    """
    s: Floats = np.asarray(scores, dtype=np.float64)
    if s.ndim != 1:
        raise ValueError(f"scores has shape {s.shape}: must be (M,)")
    total = float(s.sum())
    if not (0 <= total < np.inf and s.min(initial=0.0) >= 0):
        raise ValueError(f"scores has sum {total}: must be finite, and no score negative")
    positive = np.count_nonzero(s)
    if not 0 <= k <= positive:
        raise ValueError(f"k = {k}: must be between 0 and {positive} (the clients with a positive score)")
    if k == 0:
        return np.zeros(s.size)
    if k * s.max() <= total:  # no score is capped
        even: Floats = s * (k / total)
        return np.minimum(even, 1.0, out=even)
    top = np.argpartition(s, s.size - k)[s.size - k :]
    largest = -np.sort(-s[top])
    small = s.copy()
    small[top] = 0
    others = small.sum() + np.cumsum(largest[::-1])[::-1]  # entry j: the sum of all scores but the j largest
    with np.errstate(over="ignore"):  # only capped scores may overflow, and min(1, ...) corrects them
        j = int(np.argmax((k - np.arange(k)) * largest <= others))
        pi: Floats = np.minimum((k - j) * s / others[j], 1.0)
    return pi


def attainable(scores: Floats, k: int) -> int:
    """Return k, or the number of positive scores if it is smaller; a ValueError if no score is positive."""
    size = min(k, int(np.count_nonzero(scores)))
    if size < 1:
        raise ValueError(f"k = {k}: must be at least 1, and one score at least must be positive")
    return size


def distinct(clients: Ints, pi: Floats) -> Draw:
    """Return the draw of distinct clients (S,) with inclusion probabilities `pi` (S,), W = 1/π."""
    return Draw(clients, np.ones(clients.size, dtype=np.int64), pi, 1 / pi)
