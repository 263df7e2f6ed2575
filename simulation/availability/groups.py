"""So many of each group, as the FLICS paper has it (Ribero, Vikalo, de Veciana, section IV-B)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Ints
from strategies.numerics.streams import generator

from . import counts
from .base import Availability
from .markov import Markov

PROCESSES: dict[str, Callable[..., Ints]] = {
    "uniform": counts.uniform,
    "poisson": counts.poisson,
    "cyclic": counts.cyclic,
    "markov": counts.poisson,  # of those that are awake
    "diurnal": counts.diurnal,
}


class _Awake(Markov):
    """Which groups are awake, drawn apart from who is here of them."""

    purpose = "awake"


class GroupCounts(Availability):
    """A process says how many of each group are here, and chance which.

    Parameters
    ----------
    process : {"uniform", "poisson", "cyclic", "markov", "diurnal"}
        See `simulation.availability.counts`; "markov": of each group at once, awake in half of the rounds.
    groups : array_like of int, shape (M,)
        The group of each client, 0 to G - 1. There may be hundreds of groups, rather than one a client.
    means : array_like, shape (G,)
        How many of each group are here on average, >= 0 (cyclic: by day, in rounds 1, 3, ...; Markov: while
        awake). A group never has more than all its clients.
    seed : int (default: 0)
        Of all draws, >= 0.
    stay : float (default: 0.9)
        With which probability, in [0.5, 1), a group of the Markov process goes on as it was.
    returning : bool (default: True)
        False: who has been here never comes back, as at scale; a group runs dry.
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
        of = np.asarray(groups)
        if of.ndim != 1 or of.dtype.kind not in "iu":
            raise ValueError(
                f"groups of shape {of.shape} and type {of.dtype}: must be a whole number a client"
            )
        super().__init__(of.size, seed)
        self.means = np.asarray(means, dtype=np.float64)
        if self.means.ndim != 1 or not ((self.means >= 0) & np.isfinite(self.means)).all():
            raise ValueError(f"means = {self.means}: must be a number >= 0 for each group")
        if of.min() < 0 or of.max() >= self.means.size:
            raise ValueError(
                f"groups from {of.min()} to {of.max()}: must be from 0 to {self.means.size - 1}, as means are"
            )
        if process not in PROCESSES:
            raise ValueError(f"process = {process!r}: must be one of {', '.join(PROCESSES)}")
        if not 0.5 <= stay < 1:
            raise ValueError(f"stay = {stay}: must be in [0.5, 1)")
        self.process = process
        self._members = counts.Members(of, self.means.size)
        # Who tosses a coin with probability 2(1 - stay) changes with probability 1 - stay.
        self._awake = _Awake(self.means.size, seed, rates=0.5, memory=2 * stay - 1)
        self._orders: list[Ints] | None = None
        if not returning:
            rng = generator(seed, 0, "once")
            self._orders = [rng.permutation(self._members.of(group)) for group in range(self.means.size)]
        self._came = [np.zeros(self.means.size, dtype=np.int64)]  # (G,) in all, by the end of each round

    def counts(self, round: int) -> Ints:
        """Return (G,) how many of each group are here, if the group has so many."""
        rng = generator(self.seed, round, "counts")
        clock = {"first": round - 1} if self.process in ("cyclic", "diurnal") else {}
        drawn: Ints = PROCESSES[self.process](self.means, 1, rng, **clock)[0]
        if self.process == "markov":
            drawn[~self._awake.state(round)] = 0
        return drawn

    def _here(self, round: int) -> Ints:
        if self._orders is None:
            return self._members.draw(self.counts(round), self._generator(round))
        while len(self._came) <= round:
            self._came.append(self._came[-1] + self.counts(len(self._came)))
        slices = zip(self._orders, self._came[round - 1], self._came[round], strict=True)
        return np.sort(np.concatenate([order[begin:end] for order, begin, end in slices]))
