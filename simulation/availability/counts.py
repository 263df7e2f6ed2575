"""How many of each group of clients are here: the processes of the FLICS paper (section IV-B), and more.

Each is a function of the groups' means, a number of rounds and a generator; `clients_here` draws which.
"""

from collections.abc import Callable

import numpy as np

from strategies.numerics.arrays import Floats, Ints

from .traces import DAY, replay, sessions


def uniform(means: Floats, num_rounds: int, rng: np.random.Generator) -> Ints:
    """Return (T, G) counts, independent, each a whole number from half of its mean to 1.5 times it.

    With a mean below 2/3 there is none in between: it is 1 with that probability, else 0.
    """
    low, high = np.ceil(means / 2), np.floor(1.5 * means)
    counts: Ints = rng.integers(low, np.maximum(low, high), (num_rounds, means.size), endpoint=True)
    seldom = low > high
    counts[:, seldom] = rng.random((num_rounds, np.count_nonzero(seldom))) < means[seldom]
    return counts


def poisson(means: Floats, num_rounds: int, rng: np.random.Generator) -> Ints:
    """Return (T, G) counts, independent, Poisson with these means (G,)."""
    return rng.poisson(means, (num_rounds, means.size))


def cyclic(means: Floats, num_rounds: int, rng: np.random.Generator, first: int = 0) -> Ints:
    """Return (T, G) Poisson counts; in every other round, the night, the groups have each other's means.

    The first round is number ``first``; those with even numbers are days.
    """
    night = (first + np.arange(num_rounds)) % 2 == 1
    counts: Ints = rng.poisson(np.where(night[:, None], means[::-1], means))
    return counts


def markov(means: Floats, num_rounds: int, rng: np.random.Generator, stay: float = 0.9) -> Ints:
    """Return (T, G) Poisson counts of groups that wake and fall asleep, each with probability 1 - stay."""
    awake = rng.random(means.size) < 0.5
    flips = rng.random((num_rounds, means.size)) >= stay
    return np.where((np.cumsum(flips, axis=0) + awake) % 2 == 1, rng.poisson(means, flips.shape), 0)


def diurnal(means: Floats, num_rounds: int, rng: np.random.Generator, first: int = 0) -> Ints:
    """Return (T, G) Poisson counts with a sine of `DAY` rounds; the groups live in G time zones.

    The first round is number ``first``.
    """
    hours = (first + np.arange(num_rounds)[:, None]) / DAY + np.arange(means.size) / means.size
    counts: Ints = rng.poisson(means * (1 + np.sin(2 * np.pi * hours)))
    return counts


def trace(means: Floats, num_rounds: int, rng: np.random.Generator) -> Ints:
    """Return (T, G) counts from a made-up record of 200 clients, of the commonest group half are here."""
    per_group = max(1, 200 // means.size)
    groups = np.repeat(np.arange(means.size), per_group)
    rows = sessions(groups, 0.5 * means / means.max(), num_rounds, rng)
    here = replay(rows, groups.size, num_rounds)
    return np.asarray(here.reshape(num_rounds, means.size, per_group).sum(axis=2))


PROCESSES: dict[str, Callable[[Floats, int, np.random.Generator], Ints]] = {
    "uniform": uniform,
    "Poisson": poisson,
    "cyclic": cyclic,
    "Markov": markov,
    "diurnal": diurnal,
    "trace": trace,
}
"""(means (G,), T, generator) -> (T, G) how many of each group are here."""


class Members:
    """The clients of each group, ready to be drawn from.

    Parameters
    ----------
    groups : ndarray of int, shape (M,)
        The group of each client, 0 to G - 1.
    num_groups : int
        G; a group may be empty.
    """

    def __init__(self, groups: Ints, num_groups: int) -> None:
        self._order = np.argsort(groups, kind="stable")
        self._ends = np.cumsum(np.bincount(groups, minlength=num_groups))

    def of(self, group: int) -> Ints:
        """Return the clients of a group, ascending."""
        return self._order[self._ends[group - 1] if group else 0 : self._ends[group]]

    def draw(self, counts: Ints, rng: np.random.Generator) -> Ints:
        """Return so many of each group (G,), drawn at random, or all that it has; ascending."""
        chance = rng.random(self._order.size)
        drawn = []
        for group, count in enumerate(counts.tolist()):
            members = self.of(group)
            if 0 < count < members.size:
                members = members[np.argpartition(chance[members], count)[:count]]
            if count:
                drawn.append(members)
        return np.sort(np.concatenate(drawn)) if drawn else np.empty(0, dtype=np.int64)


def clients_here(counts: Ints, groups: Ints, rng: np.random.Generator) -> Ints:
    """Return a round's clients, ascending: so many of each group, drawn at random, or all that it has.

    Parameters
    ----------
    counts : ndarray of int, shape (G,)
        How many of each group are here.
    groups : ndarray of int, shape (M,)
        The group of each client.
    rng : np.random.Generator
        Source of randomness.
    """
    return Members(groups, counts.size).draw(counts, rng)
