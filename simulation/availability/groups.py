"""Draws how many clients of each group are available (FLICS paper: Ribero, Vikalo, de Veciana, IV-B)."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Floats, Ints
from strategies.numerics.streams import generator

from .base import DAY, Availability
from .markov import Markov


def uniform_counts(means: Floats, num_rounds: int, rng: np.random.Generator) -> Ints:
    """Return (T, G) independent counts, uniform over the whole numbers from 0.5 to 1.5 times the means (G,).

    If a mean is between 0 and 2/3, this range holds no whole number. The count is then 1 with a probability
    equal to the mean, and 0 otherwise.
    """
    low, high = np.ceil(means / 2), np.floor(1.5 * means)
    counts: Ints = rng.integers(low, np.maximum(low, high), (num_rounds, means.size), endpoint=True)
    seldom = low > high
    counts[:, seldom] = rng.random((num_rounds, np.count_nonzero(seldom))) < means[seldom]
    return counts


def poisson_counts(means: Floats, num_rounds: int, rng: np.random.Generator) -> Ints:
    """Return (T, G) independent Poisson counts with means (G,)."""
    return rng.poisson(means, (num_rounds, means.size))


def cyclic_counts(means: Floats, num_rounds: int, rng: np.random.Generator, first: int = 0) -> Ints:
    """Return (T, G) Poisson counts whose means are ``means`` (G,) by day, and in reverse order by night.

    It is day in rounds 1, 3, ..., and night in rounds 2, 4, .... (In the paper, day is in even rounds. The
    paper's process is this one with the groups numbered in reverse order.) The first of the T rounds is round
    ``first`` + 1.
    """
    night = (first + np.arange(num_rounds)) % 2 == 1
    counts: Ints = rng.poisson(np.where(night[:, None], means[::-1], means))
    return counts


def diurnal_counts(means: Floats, num_rounds: int, rng: np.random.Generator, first: int = 0) -> Ints:
    """Return (T, G) Poisson counts whose means follow a sine with a period of `DAY` rounds.

    Each group has a time zone of its own. The first of the T rounds is round ``first`` + 1.
    """
    hours = (first + np.arange(num_rounds)[:, None]) / DAY + np.arange(means.size) / means.size
    counts: Ints = rng.poisson(means * (1 + np.sin(2 * np.pi * hours)))
    return counts


COUNTS: dict[str, Callable[..., Ints]] = {
    "uniform": uniform_counts,
    "poisson": poisson_counts,
    "cyclic": cyclic_counts,
    "markov": poisson_counts,  # counts of the groups that are awake
    "diurnal": diurnal_counts,
}
"""(means (G,), T, generator) -> (T, G) number of available clients of each group."""


class Members:
    """The clients of each of G groups, which may be empty; ``groups`` (M,) are the groups of the clients."""

    def __init__(self, groups: Ints, num_groups: int) -> None:
        self._order = np.argsort(groups, kind="stable")
        self._ends = np.cumsum(np.bincount(groups, minlength=num_groups))

    def of(self, group: int) -> Ints:
        """Return the indexes of the clients of a group, ascending."""
        return self._order[self._ends[group - 1] if group else 0 : self._ends[group]]

    def draw(self, counts: Ints, rng: np.random.Generator) -> Ints:
        """Draw ``counts`` (G,) clients of each group, at most the whole group; return the sorted indexes."""
        keys = rng.random(self._order.size)
        drawn = []
        for group, count in enumerate(counts.tolist()):
            members = self.of(group)
            if 0 < count < members.size:
                members = members[np.argpartition(keys[members], count)[:count]]
            if count:
                drawn.append(members)
        return np.sort(np.concatenate(drawn)) if drawn else np.empty(0, dtype=np.int64)


class _Awake(Markov):
    """Draws which groups are awake, from a random stream of its own."""

    purpose = "awake"


class GroupCounts(Availability):
    """Draws how many clients of each group are available, then draws these clients at random.

    Parameters
    ----------
    process : {"uniform", "poisson", "cyclic", "markov", "diurnal"}
        Distribution of the counts, see `uniform_counts`, `poisson_counts`, `cyclic_counts` and
        `diurnal_counts`. "markov": a group is awake in half of the rounds; it has Poisson counts while it is
        awake, and the count 0 otherwise.
    groups : array_like of int, shape (M,)
        The group of each client, 0 to G - 1. Thousands of groups would be slow.
    means : array_like, shape (G,)
        Mean number of available clients of each group, >= 0. For "cyclic": the mean by day, in rounds 1, 3,
        .... For "markov": the mean while the group is awake. A count is limited to the size of its group.
    seed : int (default: 0)
        Seed of all draws, >= 0.
    stay : float (default: 0.9)
        For "markov": probability that a group keeps its state from one round to the next, in [0.5, 1).
    returning : bool (default: True)
        Whether a client can be available again. False: each client is available in one round only, as in very
        large federations. After its last client, a group has no available clients.
    """

    def __init__(
        self,
        process: str,
        groups: npt.ArrayLike,
        means: npt.ArrayLike,
        seed: int = 0,
        *,
        stay: float = 0.9,
        returning: bool = True,
    ) -> None:
        given = np.asarray(groups)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise ValueError(
                f"groups of shape {given.shape} and type {given.dtype}: must be one whole number per client"
            )
        super().__init__(given.size, seed)
        self.means = np.asarray(means, dtype=np.float64)
        if self.means.ndim != 1 or not ((self.means >= 0) & np.isfinite(self.means)).all():
            raise ValueError(f"means = {self.means}: must be a number >= 0 for each group")
        if given.min() < 0 or given.max() >= self.means.size:
            raise ValueError(
                f"groups from {given.min()} to {given.max()}: must be from 0 to {self.means.size - 1}, "
                "one for each of the means"
            )
        if process not in COUNTS:
            raise ValueError(f"process = {process!r}: must be one of {', '.join(COUNTS)}")
        if not 0.5 <= stay < 1:
            raise ValueError(f"stay = {stay}: must be in [0.5, 1)")
        self.process = process
        self._members = Members(given, self.means.size)
        # A group draws its state anew with probability 2(1 - stay). Half of these draws change the state.
        self._awake = _Awake(self.means.size, seed, rates=0.5, memory=2 * stay - 1)
        self._orders: list[Ints] | None = None
        if not returning:
            rng = generator(seed, 0, "once")
            self._orders = [rng.permutation(self._members.of(group)) for group in range(self.means.size)]
        # For each round from 0 on: (G,) the sums of the counts up to this round.
        self._totals = [np.zeros(self.means.size, dtype=np.int64)]

    def counts(self, round: int) -> Ints:
        """Return (G,) the drawn number of available clients of each group; it may exceed the group's size."""
        rng = generator(self.seed, round, "counts")
        clock = {"first": round - 1} if self.process in ("cyclic", "diurnal") else {}
        drawn: Ints = COUNTS[self.process](self.means, 1, rng, **clock)[0]
        if self.process == "markov":
            drawn[~self._awake.states(round)] = 0
        return drawn

    def _available(self, round: int) -> Ints:
        if self._orders is None:
            return self._members.draw(self.counts(round), self._generator(round))
        while len(self._totals) <= round:
            self._totals.append(self._totals[-1] + self.counts(len(self._totals)))
        slices = zip(self._orders, self._totals[round - 1], self._totals[round], strict=True)
        return np.sort(np.concatenate([order[begin:end] for order, begin, end in slices]))
