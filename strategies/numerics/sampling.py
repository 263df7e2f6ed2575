"""Draws of clients from a distribution, with the importance weights that make the aggregate unbiased.

Each draw returns a `Draw` with importance weights W. W_m = 0 if m is not drawn, and E[W_m] = 1 for each m
with p_m > 0. So if all p_m > 0, sum_m W_m x_m is an unbiased estimate of sum_m x_m for any fixed x.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import Floats, Ints


class Draw(NamedTuple):
    """The distinct clients that were drawn, in the order in which they were drawn."""

    clients: Ints  # (S,) distinct indexes into p, the array of probabilities
    counts: Ints  # (S,) how often each client was drawn, >= 1
    # (S,) normalised p; if `fixed_size_sampling` made the draw, the inclusion probability
    probabilities: Floats
    importance: Floats  # (S,) the importance weight W of each client, > 0


def draw_with_replacement(p: npt.ArrayLike, k: int, rng: np.random.Generator) -> Draw:
    """Draw k times independently from p; W_m = N_m / (k p_m), where m was drawn N_m times.

    `p` (M,) holds weights >= 0, not all 0, which need not sum to 1. A client with p_m = 0 is never drawn. k
    uniform numbers are drawn from `rng`.
    """
    weights, total = _checked(p)
    if k < 0:
        raise ValueError(f"k = {k}: must be >= 0")
    ends = weights.cumsum()
    # random() is less than 1, and even its largest value times the last end is rounded to less than this end.
    # So with side="right" each index is below M and has p > 0.
    drawn = ends.searchsorted(rng.random(k) * ends[-1], side="right")
    clients, counts = first_seen(drawn)
    probabilities = weights[clients] / total
    return Draw(clients, counts, probabilities, counts / (k * probabilities))


def first_seen(drawn: Ints) -> tuple[Ints, Ints]:
    """Return the distinct clients in `drawn`, in order of first appearance, and how often each appears."""
    tally = Counter(drawn.tolist())
    return (np.fromiter(tally, np.int64, len(tally)), np.fromiter(tally.values(), np.int64, len(tally)))


def draw_without_replacement(p: npt.ArrayLike, k: int, rng: np.random.Generator) -> Draw:
    """Draw k distinct clients one after another (OSMD, Algorithm 6).

    Each draw is from p, restricted to the clients that were not drawn before and renormalised. If client m is
    drawn j-th, ``W_m = (1/p_(j),m + k - j)/k`` with ``p_(j),m = p_m / (1 - sum of p of the clients drawn
    before m)``.

    `p` (M,) holds weights >= 0, which need not sum to 1. k is at most the number of positive weights.
    """
    weights, total = _checked(p)
    first, arrival = first_arrivals(weights, k, rng)
    clients = first[np.argsort(arrival)]
    drawn, rest = weights[clients], weights.copy()
    rest[clients] = 0
    # Sums start from the end, because digits of 1 - (sum of p drawn before) cancel if little is left.
    left = rest.sum() + np.cumsum(drawn[::-1])[::-1]
    importance = (left / drawn + np.arange(k - 1, -1, -1)) / max(1, k)
    return Draw(clients, np.ones(k, dtype=np.int64), drawn / total, importance)


def largest(values: Floats, k: int, rng: np.random.Generator) -> Ints:
    """Return the positions of the k >= 0 largest `values` (n,); all if n <= k. Ties are decided at random."""
    if values.size <= k or k == 0:
        return np.arange(min(k, values.size))
    threshold = np.partition(values, values.size - k)[values.size - k]
    above = np.flatnonzero(values > threshold)
    tied = rng.choice(np.flatnonzero(values == threshold), k - above.size, replace=False)
    return np.concatenate([above, tied])


def first_arrivals(weights: Floats, k: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Draw k distinct clients, one after another in proportion to weights, and return the order of the draws.

    Each client m gets the arrival time E_m/w_m, where the E_m are independent and standard exponential. The
    order of arrival has the distribution of successive draws, so the k first clients are drawn.

    `weights` (M,) is w >= 0, in any unit, with a finite sum. k is at most the number of positive weights. M
    exponential numbers are drawn from `rng`. Return (k,) the drawn clients, in no particular order, and (k,)
    their arrival times, which ascend in the order of the draws.
    """
    positive = np.count_nonzero(weights)
    if not 0 <= k <= positive:
        raise ValueError(f"k = {k}: must be between 0 and {positive} (the clients with p > 0)")
    arrival = rng.standard_exponential(weights.size)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        arrival /= weights
        # About 2k + 20 arrivals are expected before this time; fewer if a client has a large share of the
        # weights.
        early = arrival < (2 * k + 20) / weights.sum()
    first = np.flatnonzero(early if np.count_nonzero(early) >= k else weights)
    arrival = arrival[first]
    if first.size > k:
        order = np.argpartition(arrival, k)[:k]
        first, arrival = first[order], arrival[order]
    return first, arrival


def _checked(p: npt.ArrayLike) -> tuple[Floats, float]:
    """Return p as an array, and its sum; a ValueError if it is not an array of weights."""
    weights: Floats = np.asarray(p, dtype=np.float64)
    if weights.ndim != 1:
        raise ValueError(f"p has shape {weights.shape}: must be (M,)")
    total = float(weights.sum())
    if not 0 < total < np.inf or np.count_nonzero(weights < 0):
        raise ValueError(f"p has sum {total}: must be finite, >= 0 and not all 0")
    return weights, total
