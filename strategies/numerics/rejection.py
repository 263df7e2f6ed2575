"""Draws clients from a stream of independent draws, without computing the probabilities of all clients.

A stream is a function of n that returns the next n independent draws. If all draws that violate a condition
are dropped, the remaining draws have the distribution given this condition. `sampling` has functions for
draws with and without replacement from a given array p.
"""

from collections.abc import Callable

import numpy as np

from .arrays import Bools, Floats, Ints
from .sampling import Draw, draw_without_replacement, first_seen

SMALLEST_SHARE = 0.1
"""Rejection is used only while a draw is accepted with at least this probability. Below it, rejection is
slow, and the probability is inexact, since it is computed as 1 minus the probability of the rejected
draws."""

LARGEST_BATCH = 1 << 17
"""The most draws that `accepted` takes from its stream at once."""


def uniform_stream(pool: int | Ints, rng: np.random.Generator) -> Callable[[int], Ints]:
    """Return a stream of uniform draws from 0..pool-1 if `pool` is an int, or from the entries of `pool`."""
    if isinstance(pool, int):
        return lambda n: rng.integers(pool, size=n)
    return lambda n: pool[rng.integers(pool.size, size=n)]


def accepted(
    stream: Callable[[int], Ints], accept: Callable[[Ints], Bools], share: float
) -> Callable[[int], Ints]:
    """Return a stream of the draws that are accepted.

    `accept` takes clients (n,) and returns bool (n,). It must accept at least one client of the stream; if it
    accepts none, a call of the new stream never returns. `share` > 0 is the probability that a draw is
    accepted; a wrong value changes only the time that draws take.
    """

    def draw(n: int) -> Ints:
        kept = np.empty(0, dtype=np.int64)
        while kept.size < n:
            new = stream(min(int(1.1 * (n - kept.size) / share) + 8, LARGEST_BATCH))
            kept = np.concatenate([kept, new[accept(new)]])
        return kept[:n]

    return draw


def independent_draws(stream: Callable[[int], Ints], probability: Callable[[Ints], Floats], k: int) -> Draw:
    """Draw k times with replacement; `probability` takes distinct clients (n,), returns their p (n,)."""
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

    Repeated clients in the stream are dropped. If the clients drawn so far have most of the probability, new
    clients rarely appear in the stream; the remaining clients are then drawn from the array of all
    probabilities, which ``whole`` returns.

    k is at most the number of clients with p > 0. `whole` returns the normalised p of all clients in a new
    array (M,). It is called only if the clients not drawn yet have a total probability below
    `SMALLEST_SHARE`; then `rng` is used.
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
        # Whether a draw is used may depend only on the draws before it; otherwise the draws would be biased.
        taken = rest - np.cumsum(np.concatenate([[0.0], q]))[:-1] >= SMALLEST_SHARE
        drawn, p = np.concatenate([drawn, new[taken]]), np.concatenate([p, q[taken]])
        rest = 1 - float(p.sum())
    before = rest + np.cumsum(p[::-1])[::-1]
    importance = (before / p + np.arange(k - 1, -1, -1)) / k
    return Draw(drawn, np.ones(k, dtype=np.int64), p, importance)
