"""Drawing clients from a distribution, with the importance weights that keep an estimate unbiased.

Each draw returns a `Draw` whose importance weights W have E[W_m] = 1 for each m with p_m > 0 (W_m = 0
when m is not drawn). So sum_m W_m x_m is an unbiased estimate of sum_m x_m for any fixed x.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import Floats, Ints


class Draw(NamedTuple):
    """The distinct clients drawn, in draw order.

    Attributes
    ----------
    clients : ndarray of int, shape (S,)
        Indexes into p, distinct.
    counts : ndarray of int, shape (S,)
        How often each was drawn, >= 1.
    probabilities : ndarray, shape (S,)
        The normalised p of each; in a design of fixed size its inclusion probability.
    importance : ndarray, shape (S,)
        W of each.
    """

    clients: Ints
    counts: Ints
    probabilities: Floats
    importance: Floats


def draw_with_replacement(p: npt.ArrayLike, k: int, rng: np.random.Generator) -> Draw:
    """Draw k times independently from p; W_m = N_m / (k p_m), N_m being how often m was drawn.

    Parameters
    ----------
    p : array_like, shape (M,)
        Weights >= 0, not all 0; normalised here.
    k : int
        Number of draws, >= 0.
    rng : np.random.Generator
        Source of randomness; k uniform numbers are taken.

    Returns
    -------
    Draw
        At most k distinct clients; counts sum to k. A client with p_m = 0 is never drawn.

    Raises
    ------
    ValueError
        If `p` is no distribution or `k` is negative.
    """
    weights, total = _checked(p)
    if k < 0:
        raise ValueError(f"k = {k}: must be >= 0")
    ends = weights.cumsum()
    # random() < 1, and its largest value times the last end rounds to less than that end: with side="right"
    # each index is below M and has p > 0.
    drawn = ends.searchsorted(rng.random(k) * ends[-1], side="right")
    clients, counts = first_seen(drawn)
    probabilities = weights[clients] / total
    return Draw(clients, counts, probabilities, counts / (k * probabilities))


def first_seen(drawn: Ints) -> tuple[Ints, Ints]:
    """Return the distinct clients of some draws, in order of first appearance, and how often each appears."""
    tally = Counter(drawn.tolist())
    return (
        np.fromiter(tally, np.int64, len(tally)),
        np.fromiter(tally.values(), np.int64, len(tally)),
    )


def draw_without_replacement(p: npt.ArrayLike, k: int, rng: np.random.Generator) -> Draw:
    """Draw k distinct clients one after another, each from p over the rest (OSMD, Algorithm 6).

    The client m drawn j-th has ``W_m = (1/p_(j),m + k - j)/k``, ``p_(j),m = p_m / (1 - mass drawn before)``.

    Parameters
    ----------
    p : array_like, shape (M,)
        Weights >= 0; normalised here.
    k : int
        Number of draws, from 0 to the number of positive weights.
    rng : np.random.Generator
        Source of randomness.

    Returns
    -------
    Draw
        Exactly k clients with counts 1.

    Raises
    ------
    ValueError
        If `p` is no distribution or `k` is out of range.
    """
    weights, total = _checked(p)
    first, arrival = first_arrivals(weights, k, rng)
    clients = first[np.argsort(arrival)]
    drawn, rest = weights[clients], weights.copy()
    rest[clients] = 0
    # Summed from the end, since 1 - (mass drawn before) cancels when little is left.
    left = rest.sum() + np.cumsum(drawn[::-1])[::-1]
    importance = (left / drawn + np.arange(k - 1, -1, -1)) / max(1, k)
    return Draw(clients, np.ones(k, dtype=np.int64), drawn / total, importance)


def largest(values: Floats, k: int, rng: np.random.Generator) -> Ints:
    """Return the positions of the k >= 0 largest of values (n,), all if n <= k; ties at random."""
    if values.size <= k or k == 0:
        return np.arange(min(k, values.size))
    threshold = np.partition(values, values.size - k)[values.size - k]
    above = np.flatnonzero(values > threshold)
    tied = rng.choice(np.flatnonzero(values == threshold), k - above.size, replace=False)
    return np.concatenate([above, tied])


def first_arrivals(weights: Floats, k: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Draw k distinct clients, one after another in proportion to weights; return their order, too.

    The k smallest of E_m/w_m in order, E_m standard exponential, are such successive draws.

    Parameters
    ----------
    weights : ndarray, shape (M,)
        w >= 0, in any unit, with a finite sum.
    k : int
        Number of clients, from 0 to the number of positive weights.
    rng : np.random.Generator
        Source of randomness; M exponential numbers are taken.

    Returns
    -------
    clients : ndarray of int, shape (k,)
        In no particular order.
    arrival : ndarray, shape (k,)
        E_m/w_m; sorting by it gives the order of the draws.

    Raises
    ------
    ValueError
        If `k` is out of range.
    """
    positive = np.count_nonzero(weights)
    if not 0 <= k <= positive:
        raise ValueError(f"k = {k}: must be between 0 and {positive} (the clients with p > 0)")
    arrival = rng.standard_exponential(weights.size)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        arrival /= weights
        # At most 2k + 20 are expected before this time, and about as many where no client is heavy.
        early = arrival < (2 * k + 20) / weights.sum()
    first = np.flatnonzero(early if np.count_nonzero(early) >= k else weights)
    arrival = arrival[first]
    if first.size > k:
        order = np.argpartition(arrival, k)[:k]
        first, arrival = first[order], arrival[order]
    return first, arrival


def _checked(p: npt.ArrayLike) -> tuple[Floats, float]:
    """Return p as an array, and its sum."""
    weights: Floats = np.asarray(p, dtype=np.float64)
    if weights.ndim != 1:
        raise ValueError(f"p has shape {weights.shape}: must be (M,)")
    total = float(weights.sum())
    if not 0 < total < np.inf or np.count_nonzero(weights < 0):
        raise ValueError(f"p has sum {total}: must be finite, >= 0 and not all 0")
    return weights, total
