"""Drawing clients from a stream of independent draws, without the probabilities of all clients.

A stream is a function of n that returns n more independent draws. Dropping the draws that violate a condition
leaves draws from the distribution given that condition. `sampling` makes the same draws from the whole p.
"""

from collections.abc import Callable

import numpy as np

from .arrays import Bools, Floats, Ints
from .sampling import Draw, draw_without_replacement, first_seen

SMALLEST_SHARE = 0.1
"""Least share of the mass that must be left: below it rejection is slow, and 1 - (the rest) inexact."""

LARGEST_BATCH = 1 << 17


def uniform_stream(pool: int | Ints, rng: np.random.Generator) -> Callable[[int], Ints]:
    """Return a stream of uniform draws from 0..pool-1, or from the entries of an array."""
    if isinstance(pool, int):
        return lambda n: rng.integers(pool, size=n)
    return lambda n: pool[rng.integers(pool.size, size=n)]


def accepted(
    stream: Callable[[int], Ints], accept: Callable[[Ints], Bools], share: float
) -> Callable[[int], Ints]:
    """Return the stream of the accepted draws.

    Parameters
    ----------
    stream : callable
        The draws to choose from.
    accept : callable
        Takes clients (n,), returns bool (n,); it must accept some client of the stream.
    share : float
        The probability that a draw is accepted, > 0; a wrong value costs time only.

    Returns
    -------
    callable
        The stream.
    """

    def draw(n: int) -> Ints:
        kept = np.empty(0, dtype=np.int64)
        while kept.size < n:
            new = stream(min(int(1.1 * (n - kept.size) / share) + 8, LARGEST_BATCH))
            kept = np.concatenate([kept, new[accept(new)]])
        return kept[:n]

    return draw


def independent_draws(stream: Callable[[int], Ints], probability: Callable[[Ints], Floats], k: int) -> Draw:
    """Draw k times with replacement; W_m = N_m / (k p_m), see `sampling.draw_with_replacement`.

    Parameters
    ----------
    stream : callable
        Independent draws from p.
    probability : callable
        Takes distinct clients (n,), returns their p (n,), normalised.
    k : int
        Number of draws, >= 1.

    Returns
    -------
    Draw
        At most k distinct clients; counts sum to k.
    """
    clients, counts = first_seen(stream(k))
    p = probability(clients)
    return Draw(clients, counts, p, counts / (k * p))


def successive_draws(
    stream: Callable[[int], Ints],
    probability: Callable[[Ints], Floats],
    k: int,
    whole: Callable[[], Floats],
    rng: np.random.Generator,
) -> Draw:
    """Draw k distinct clients one after another (OSMD, Algorithm 6), see `sampling.draw_without_replacement`.

    The distinct clients of independent draws, in the order of their first appearance, are such successive
    draws. Once little mass is left new clients rarely appear: the rest is then drawn from the whole p.

    Parameters
    ----------
    stream, probability
        See `independent_draws`.
    k : int
        Number of draws, >= 1, at most the number of clients with p > 0.
    whole : callable
        Returns a fresh array (M,), p normalised; called only if little mass is left.
    rng : np.random.Generator
        Source of randomness for that case.

    Returns
    -------
    Draw
        Exactly k clients with counts 1.
    """
    drawn, p = np.empty(0, dtype=np.int64), np.empty(0)
    rest = 1.0
    while drawn.size < k:
        if rest < SMALLEST_SHARE:
            left = whole()
            left[drawn] = 0
            tail = draw_without_replacement(left, k - drawn.size, rng).clients
            drawn, p = np.concatenate([drawn, tail]), np.concatenate([p, left[tail]])
            left[tail] = 0
            rest = float(left.sum())
            break
        new, _ = first_seen(stream(int(1.2 * (k - drawn.size) / rest) + 8))
        new = new[~np.isin(new, drawn)][: k - drawn.size]
        q = probability(new)
        # Whether a draw is taken may depend on those before it alone, or the draws are biased.
        taken = rest - np.cumsum(np.concatenate([[0.0], q]))[:-1] >= SMALLEST_SHARE
        drawn, p = np.concatenate([drawn, new[taken]]), np.concatenate([p, q[taken]])
        rest = 1 - float(p.sum())
    before = rest + np.cumsum(p[::-1])[::-1]
    importance = (before / p + np.arange(k - 1, -1, -1)) / k
    return Draw(drawn, np.ones(k, dtype=np.int64), p, importance)
