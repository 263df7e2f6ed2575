"""Drawing clients from a distribution, with the importance weights that keep an estimate unbiased.

Every function returns a `Draw` whose importance weights W have E[W_m] = 1 for each m with p_m > 0 (W_m = 0
when m is not drawn). So sum_m W_m x_m is an unbiased estimate of sum_m x_m for any fixed x.
"""

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
        The normalised p of each; for `draw_simple_random` its inclusion probability.
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
    p = _normalised(p)
    if k < 0:
        raise ValueError(f"k = {k}: must be >= 0")
    cumulative = np.cumsum(p)
    # The last entry is exactly 1 and random() < 1, so with side="right" an index is below M and has p > 0.
    cumulative /= cumulative[-1]
    drawn = np.searchsorted(cumulative, rng.random(k), side="right")
    _, first, counts = np.unique(drawn, return_index=True, return_counts=True)
    order = np.argsort(first)
    clients, counts = drawn[first[order]], counts[order]
    return Draw(clients, counts, p[clients], counts / (k * p[clients]))


def draw_without_replacement(p: npt.ArrayLike, k: int, rng: np.random.Generator) -> Draw:
    """Draw k distinct clients one after another, each from p over those not yet drawn (OSMD, Algorithm 6).

    The client m drawn j-th has ``W_m = (1/p_(j),m + k - j)/k``, ``p_(j),m = p_m / (1 - mass drawn before)``.
    The k smallest of E_m/p_m in order, E_m standard exponential, are such successive draws.

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
    p = _normalised(p)
    positive = np.flatnonzero(p)
    if not 0 <= k <= positive.size:
        raise ValueError(f"k = {k}: must be between 0 and {positive.size} (the clients with p > 0)")
    arrival = rng.standard_exponential(positive.size) / p[positive]
    order = np.argpartition(arrival, min(k, arrival.size - 1))  # the k smallest first, a sort of all is slow
    first, rest = order[:k], positive[order[k:]]
    clients = positive[first[np.argsort(arrival[first])]]
    drawn = p[clients]
    # Summed from the end: 1 - mass drawn before cancels when little is left.
    left = p[rest].sum() + np.cumsum(drawn[::-1])[::-1]
    importance = (left / drawn + np.arange(k - 1, -1, -1)) / k
    return Draw(clients, np.ones(k, dtype=np.int64), drawn, importance)


def draw_simple_random(num_clients: int, k: int, rng: np.random.Generator) -> Draw:
    """Draw k of n clients so that every subset is equally likely: inclusion probability k/n, W = n/k.

    Parameters
    ----------
    num_clients : int
        n, >= k.
    k : int
        Number of clients, >= 1.
    rng : np.random.Generator
        Source of randomness.

    Returns
    -------
    Draw
        Exactly k clients with counts 1; `probabilities` are the inclusion probabilities k/n.

    Raises
    ------
    ValueError
        If `k` is out of range.
    """
    if not 1 <= k <= num_clients:
        raise ValueError(f"k = {k}: must be between 1 and {num_clients} (the number of clients)")
    clients = rng.choice(num_clients, size=k, replace=False)
    inclusion = k / num_clients
    return Draw(clients, np.ones(k, dtype=np.int64), np.full(k, inclusion), np.full(k, 1 / inclusion))


def _normalised(p: npt.ArrayLike) -> Floats:
    weights: Floats = np.asarray(p, dtype=np.float64)
    if weights.ndim != 1:
        raise ValueError(f"p has shape {weights.shape}: must be (M,)")
    total = float(weights.sum())
    if not (0 < total < np.inf and weights.min() >= 0):
        raise ValueError(f"p has sum {total}: must be finite, >= 0 and not all 0")
    return weights / total
