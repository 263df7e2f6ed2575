"""Inclusion probabilities π = min(1, c s), whose sum is k, and draws that have exactly these.

For many clients, no array of their number is written: the sums of blocks of scores are enough.
"""

import math

import numpy as np

from ..numerics.arrays import Bools, Floats, Ints
from ..numerics.fixed_size_sampling import inclusion_probabilities, systematic
from ..numerics.rejection import accepted
from ..numerics.sampling import Draw
from .running_sum import WHOLE, RunningSum

LARGEST_SMALL = 0.25
"""Clients with a larger π are drawn one by one, see `_ManyClients`."""


class Inclusion:
    """π = min(1, c s) with sum k, of clients with scores s (n,) >= 0; all 1 if at most k are positive."""

    def __init__(self, scores: Floats, k: int) -> None:
        positive, total = int(np.count_nonzero(scores)), float(scores.sum())
        if k < 1 or not 0 < total < np.inf or scores.min() < 0:
            raise ValueError(f"k = {k}, scores have sum {total}: k >= 1 and scores >= 0, not all 0")
        self._scores, self._pi = scores, inclusion_probabilities(scores, min(k, positive))

    def resized(self, k: int) -> "Inclusion":
        """Return the inclusion probabilities of the same clients for another k."""
        return Inclusion(self._scores, k)

    def of(self, clients: Ints) -> Floats:
        """Return π (c,) of clients (c,)."""
        return self._pi[clients]

    def fixed_size(self, rng: np.random.Generator) -> Ints:
        """Return k distinct clients, in random order after those with π = 1."""
        return systematic(self._pi, rng)

    def coins(self, rng: np.random.Generator) -> Ints:
        """Return clients that are drawn independently of each other, ascending."""
        return np.flatnonzero(rng.random(self._pi.size) < self._pi)


def inclusion(scores: Floats, k: int) -> "Inclusion":
    """Return the inclusion probabilities for k clients in the form that suits their number."""
    return _ManyClients(scores, k) if scores.size > WHOLE else Inclusion(scores, k)


def distinct(clients: Ints, pi: Floats) -> Draw:
    """Return the draw of distinct clients (S,) with inclusion probabilities `pi` (S,); W = 1/π."""
    return Draw(clients, np.ones(clients.size, dtype=np.int64), pi, 1 / pi)


class _ManyClients(Inclusion):
    """The same without a pass over all clients but for the sums of their scores.

    The few clients with a large π are drawn one by one. All others are drawn in proportion to their scores
    with replacement, and thinned so that π is exact.
    """

    def __init__(self, scores: Floats, k: int, sums: RunningSum | None = None) -> None:
        sums = sums or RunningSum(scores)
        if k < 1 or not 0 < sums.total < np.inf or scores.min() < 0:
            raise ValueError(f"k = {k}, scores have sum {sums.total}: k >= 1 and scores >= 0, not all 0")
        exponent = math.frexp(sums.largest)[1]
        if abs(exponent) > 900:  # c or a product could overflow
            scores = np.ldexp(scores, -exponent)
            sums = RunningSum(scores)
        self._scores, self._sums = scores, sums
        self._factor, self._k = _factor(sums, scores, k)

    def resized(self, k: int) -> "Inclusion":
        return _ManyClients(self._scores, k, self._sums)

    def of(self, clients: Ints) -> Floats:
        with np.errstate(over="ignore"):
            return np.minimum(self._factor * self._scores[clients], 1.0)

    def fixed_size(self, rng: np.random.Generator) -> Ints:
        """Return k distinct clients.

        One systematic draw decides on each client with a large π, and on whether the number of all others is
        rounded up or down. The others are drawn as by Sampford, "On Sampling without Replacement with Unequal
        Probabilities of Selection" (1967), so with exact π, given their number. A coincidence starts this
        draw anew. There are at most about 4 coincidences in the mean, because no π is above 4/k.
        """
        limit = min(LARGEST_SMALL, 4 / self._k) / self._factor
        large, small = self._sums.above(limit), self._sums.below(limit)
        if not large.size:
            return self._sampford(small, self._k, limit, rng)
        mass = self._factor * small.total
        number = math.floor(mass)
        drawn = systematic(np.append(self.of(large), mass - number), rng)
        rounded_up = drawn == large.size
        number += int(np.count_nonzero(rounded_up))
        return np.concatenate([large[drawn[~rounded_up]], self._sampford(small, number, limit, rng)])

    def _sampford(self, small: RunningSum, number: int, limit: float, rng: np.random.Generator) -> Ints:
        if number == 0:
            return np.empty(0, dtype=np.int64)
        scale = number / small.total  # scale * score is the probability, given the number
        least = 1 - scale * limit  # the first draw is in proportion to q, and the others to q/(1 - q)

        def thinned(clients: Ints) -> Bools:
            return rng.random(clients.size) * (1 - scale * self._scores[clients]) < least

        stream = accepted(lambda n: small.find(rng.random(n)), thinned, least)
        while True:
            clients = np.concatenate([small.find(rng.random(1)), stream(number - 1)])
            if np.unique(clients).size == number:
                return clients

    def coins(self, rng: np.random.Generator) -> Ints:
        """Return clients that are drawn independently of each other.

        A coin of probability π < 1 is a Poisson process of rate -log(1 - π) that has an event. The processes
        of all clients are one process, whose events are drawn at the rate a π and thinned.
        """
        limit = 0.5 / self._factor
        large, small = self._sums.above(limit), self._sums.below(limit)
        most = 2 * math.log(2)  # -log(1 - π)/π at the largest π
        drawn = large[rng.random(large.size) < self.of(large)]
        if small.total:
            events = small.find(rng.random(rng.poisson(most * self._factor * small.total)))
            pi = self.of(events)
            events = events[rng.random(events.size) * most * pi < -np.log1p(-pi)]
            drawn = np.concatenate([drawn, np.unique(events)])
        return drawn


def _factor(sums: RunningSum, scores: Floats, k: int) -> tuple[float, int]:
    """Return (c, k), where k is at most the number of positive scores.

    See `inclusion_probabilities`; here only scores above a limit are sorted, which sinks until all scores
    that are capped are above it.
    """
    if k * sums.largest <= sums.total:
        return k / sums.total, k
    positive = int(np.count_nonzero(scores))
    if positive <= k:
        return float(np.finfo(np.float64).max), positive
    limit = sums.total / k
    while True:
        limit /= 4
        rest = sums.below(limit).total
        largest = -np.sort(-scores[sums.above(limit)])
        others = (rest + np.cumsum(largest[::-1])[::-1])[:k]  # entry j: the sum of all but the j largest
        left = k - np.arange(others.size)
        fits = np.append(left * largest[:k] <= others, (k - others.size) * limit <= rest)
        j = int(np.argmax(fits))
        if fits[j]:
            return (k - j) / (others[j] if j < others.size else rest), k
        limit = min(limit, rest / (k - others.size))
