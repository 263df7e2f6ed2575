"""Who is here in which round: one small interface, and the processes behind it.

Either each client comes and goes by itself, at its own rate, or `GroupCounts` says how many of each group are
here, as the FLICS paper does (Ribero, Vikalo, de Veciana, section IV-B). The rounds are numbered from 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Bools, Ints
from strategies.numerics.streams import generator

from . import counts as of_groups
from .traces import DAY, Recording

Floats32 = npt.NDArray[np.float32]  # four bytes a client are enough for a rate


class Availability(ABC):
    """Says who is here in a round.

    A function of (seed, round): rounds may be asked for in any order, and a resumed run sees the same. What a
    client does depends on its index, not on how many there are beside it, unless a process says otherwise.

    Parameters
    ----------
    num_clients : int
        M.
    seed : int (default: 0)
        Of all draws, >= 0.
    """

    def __init__(self, num_clients: int, seed: int = 0) -> None:
        if num_clients < 1:
            raise ValueError(f"num_clients = {num_clients}: must be >= 1")
        self.num_clients = num_clients
        self.seed = seed

    def here(self, round: int) -> Ints | None:
        """Return the indexes of the clients that are here in a round, ascending; None for everybody.

        Raises
        ------
        ValueError
            If ``round`` is below 1.
        """
        if round < 1:
            raise ValueError(f"round = {round}: must be >= 1")
        return self._here(round)

    @abstractmethod
    def _here(self, round: int) -> Ints | None: ...

    def _generator(self, round: int) -> np.random.Generator:
        return generator(self.seed, round, "availability")


class Always(Availability):
    """Everybody is always here."""

    def _here(self, round: int) -> None:
        return None


class Poisson(Availability):
    """Each client tosses a coin of its own in each round, so that about a Poisson number are here.

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`.
    rates : float or array_like, shape (M,) (default: 0.5)
        The probability with which each client is here, in [0, 1].
    """

    def __init__(self, num_clients: int, seed: int = 0, *, rates: npt.ArrayLike = 0.5) -> None:
        super().__init__(num_clients, seed)
        self.rates = _checked("rates", rates, num_clients)

    def _here(self, round: int) -> Ints:
        rng = self._generator(round)
        chances = self._chances(round, rng)
        return np.flatnonzero(rng.random(self.num_clients, dtype=np.float32) < chances)

    def _chances(self, round: int, rng: np.random.Generator) -> Floats32:
        """Return the probability of each client, or one for all; what is above 1 counts as 1."""
        return self.rates


class Uniform(Poisson):
    """A factor, uniform in [.5, 1.5], on all rates: about half to 1.5 times as many are here.

    Takes the parameters of `Poisson`. From a rate of 2/3 on, a client is here less often than its rate says.
    """

    def _chances(self, round: int, rng: np.random.Generator) -> Floats32:
        return self.rates * np.float32(rng.uniform(0.5, 1.5))


class Cyclic(Poisson):
    """By day, in rounds 1, 3, ..., each client has one rate, by night another.

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`.
    rates : float or array_like, shape (M,) (default: 0.5)
        By day. One number for all: that of the first half of the clients, and 0 for the others; two groups
        take turns then, as in appendix G.3 of the Power-of-Choice paper.
    night_rates : float or array_like, shape (M,), optional
        By night; default: ``rates`` in the opposite order.
    """

    def __init__(
        self,
        num_clients: int,
        seed: int = 0,
        *,
        rates: npt.ArrayLike = 0.5,
        night_rates: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(num_clients, seed, rates=rates)
        if night_rates is not None:
            self.night_rates = _checked("night_rates", night_rates, num_clients)
            return
        if self.rates.ndim == 0:
            first_half = np.arange(num_clients) < num_clients / 2
            self.rates = np.where(first_half, self.rates, np.float32(0))
        self.night_rates = self.rates[::-1]

    def _chances(self, round: int, rng: np.random.Generator) -> Floats32:
        return self.rates if round % 2 == 1 else self.night_rates


class Diurnal(Poisson):
    """Each client's rate goes up and down with a sine, by the time of day where it lives.

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`.
    rates : float or array_like, shape (M,) (default: 0.5)
        On average over a day; above 0.5 it is less, as nobody can be more than here.
    day : int (default: 24)
        Rounds a day, >= 2.
    zones : array_like of int, shape (M,), optional
        By how many rounds, 0 to day - 1, each client's day is ahead; default: drawn.
    """

    def __init__(
        self,
        num_clients: int,
        seed: int = 0,
        *,
        rates: npt.ArrayLike = 0.5,
        day: int = DAY,
        zones: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(num_clients, seed, rates=rates)
        if day < 2:
            raise ValueError(f"day = {day}: must be >= 2")
        if zones is None:
            zones = generator(seed, 0, "zones").integers(day, size=num_clients)
        given = np.asarray(zones)
        if (
            given.shape != (num_clients,)
            or given.dtype.kind not in "iu"
            or given.min() < 0
            or given.max() >= day
        ):
            raise ValueError(f"zones = {given}: must be {num_clients} whole numbers from 0 to {day - 1}")
        self.day = day
        self.zones = given.astype(np.min_scalar_type(day))

    def _chances(self, round: int, rng: np.random.Generator) -> Floats32:
        hours = round - 1 + np.arange(self.day)
        factors = (1 + np.sin(2 * np.pi * hours / self.day)).astype(np.float32)
        chances: Floats32 = self.rates * factors[self.zones]
        return chances


class Markov(Availability):
    """Each client is a chain of two states: who is here tends to stay, who is away too.

    In each round a client goes on as it was with probability ``memory``, else it tosses its coin anew. So it
    is here for 1/((1 - memory)(1 - rate)) rounds at a time, away for 1/((1 - memory) rate), and its state is
    correlated by memory^n with that of n rounds before.

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`.
    rates : float or array_like, shape (M,) (default: 0.5)
        In which share of the rounds each client is here, in [0, 1]; from round 1 on.
    memory : float (default: 0.8)
        In [0, 1).
    """

    def __init__(
        self, num_clients: int, seed: int = 0, *, rates: npt.ArrayLike = 0.5, memory: float = 0.8
    ) -> None:
        super().__init__(num_clients, seed)
        if not 0 <= memory < 1:
            raise ValueError(f"memory = {memory}: must be in [0, 1)")
        self.rates = _checked("rates", rates, num_clients)
        self.memory = memory
        self._known: tuple[int, Bools] = (0, np.zeros(num_clients, dtype=np.bool_))  # a round and its state

    def _here(self, round: int) -> Ints:
        return np.flatnonzero(self.state(round))

    def state(self, round: int) -> Bools:
        """Return (M,) who is here; not to be written to.

        Goes back from the round to the last toss of each client, or to the state that is known. That is one
        step in a run, and in a resumed one no more rounds than the longest without a toss.
        """
        known, state = self._known
        if round == known:
            return state
        here = np.zeros(self.num_clients, dtype=np.bool_)
        untossed = np.ones(self.num_clients, dtype=np.bool_)
        for past in range(round, 0, -1):
            if past == known:
                here |= untossed & state
                break
            drawn = self._generator(past).random(self.num_clients, dtype=np.float32)
            toss = np.float32(1 if past == 1 else 1 - self.memory)
            here |= untossed & (drawn < toss * self.rates)
            untossed &= drawn >= toss
            if not untossed.any():
                break
        self._known = round, here
        return here


class Once(Availability):
    """Each round brings fresh clients, who never return; once all have been here, nobody is.

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`; who comes when depends on M.
    rates : float (default: 0.01)
        The share of all clients that each round brings, in (0, 1]; at least one.
    """

    def __init__(self, num_clients: int, seed: int = 0, *, rates: float = 0.01) -> None:
        super().__init__(num_clients, seed)
        if not 0 < rates <= 1:
            raise ValueError(f"rates = {rates}: must be in (0, 1]")
        self.per_round = max(1, round(rates * num_clients))
        self._order = generator(seed, 0, "once").permutation(num_clients)

    def _here(self, round: int) -> Ints:
        return np.sort(self._order[(round - 1) * self.per_round : round * self.per_round])


class Trace(Availability):
    """Replays a recorded trace, a bin of time a round, and begins again at its end.

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`.
    recording : Recording
        Of D recorded clients.
    assign : {"random", "key", "same"} (default: "random")
        Which recorded client each client is: drawn, each recorded one about equally often ("real-random" in
        the FLICS paper); by ``key`` ("real-correlated"); or the one with its index, for D = M.
    key : array_like, shape (M,), optional
        Clients and recorded clients are sorted, by the key and by how often they are here, and cut into
        ``parts`` of about equal size; within a part it is drawn. With the share of a class as the key,
        clients with much of it are those that are here often; -key turns that round.
    parts : int (default: 3)
        >= 1, at most D and M; the paper's three. (It divides by the time that a client is active at all, to
        say how often it is here; this takes the whole record.)

    Examples
    --------
    >>> rows = [(0, 0.0, 5400.0), (1, 1800.0, 3600.0), (2, 7000.0, 9000.0)]  # or read_trace("phones.csv")
    >>> hours = Recording(rows, bin_length=3600.0)
    >>> [Trace(3, recording=hours, assign="same").here(round).tolist() for round in (1, 2, 3, 4)]
    [[0, 1], [0, 2], [2], [0, 1]]
    """

    def __init__(
        self,
        num_clients: int,
        seed: int = 0,
        *,
        recording: Recording,
        assign: Literal["random", "key", "same"] = "random",
        key: npt.ArrayLike | None = None,
        parts: int = 3,
    ) -> None:
        super().__init__(num_clients, seed)
        if recording.num_bins == 0:
            raise ValueError("recording: nobody is ever here in it")
        if (assign == "key") != (key is not None):
            raise ValueError(f"assign = {assign!r}: 'key' needs a key, and only 'key' does")
        rng = generator(seed, 0, "assign")
        recorded = np.arange(recording.num_clients)
        if assign == "same":
            if recording.num_clients != num_clients:
                raise ValueError(
                    f"assign = 'same': {recording.num_clients} recorded clients for {num_clients}"
                )
            source = recorded
        elif assign == "random":
            source = _spread(recorded, num_clients, rng)
        elif assign == "key":
            source = np.empty(num_clients, dtype=np.int64)
            if not 1 <= parts <= min(num_clients, recorded.size):
                raise ValueError(f"parts = {parts}: must be from 1 to {min(num_clients, recorded.size)}")
            values = np.asarray(key, dtype=np.float64)
            if values.shape != (num_clients,) or np.isnan(values).any():
                raise ValueError(f"key of shape {values.shape}: must be {num_clients} numbers")
            by_share = np.array_split(np.argsort(recording.shares(), kind="stable"), parts)
            by_key = np.array_split(np.argsort(values, kind="stable"), parts)
            for seldom, small in zip(by_share, by_key, strict=True):
                source[small] = _spread(seldom, small.size, rng)
        else:
            raise ValueError(f"assign = {assign!r}: must be 'random', 'key' or 'same'")
        self.recording = recording
        self.source: npt.NDArray[np.int32] = source.astype(np.int32)
        """(M,) which recorded client each client is."""

    def _here(self, round: int) -> Ints:
        recorded = self.recording.here((round - 1) % self.recording.num_bins)
        return np.flatnonzero(recorded[self.source])


_Counts = Callable[..., Ints]


class GroupCounts(Availability):
    """A process says how many of each group are here, and chance which.

    Parameters
    ----------
    process : {"uniform", "poisson", "cyclic", "markov", "diurnal"}
        See `simulation.counts`; "markov": of each group at once, awake in half of the rounds.
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
        if process not in _OF_GROUPS:
            raise ValueError(f"process = {process!r}: must be one of {', '.join(_OF_GROUPS)}")
        if not 0.5 <= stay < 1:
            raise ValueError(f"stay = {stay}: must be in [0.5, 1)")
        self.process = process
        self._members = of_groups.Members(of, self.means.size)
        # Who tosses a coin with probability 2(1 - stay) changes with probability 1 - stay.
        self._awake = Markov(self.means.size, seed, rates=0.5, memory=2 * stay - 1)
        self._orders: list[Ints] | None = None
        if not returning:
            rng = generator(seed, 0, "once")
            self._orders = [rng.permutation(self._members.of(group)) for group in range(self.means.size)]
        self._came = [np.zeros(self.means.size, dtype=np.int64)]  # (G,) in all, by the end of each round

    def counts(self, round: int) -> Ints:
        """Return (G,) how many of each group are here, if the group has so many."""
        rng = generator(self.seed, round, "counts")
        if self.process in ("cyclic", "diurnal"):
            counts: Ints = _OF_GROUPS[self.process](self.means, 1, rng, first=round - 1)[0]
        else:
            counts = _OF_GROUPS[self.process](self.means, 1, rng)[0]
        if self.process == "markov":
            counts[~self._awake.state(round)] = 0
        return counts

    def _here(self, round: int) -> Ints:
        if self._orders is None:
            return self._members.draw(self.counts(round), self._generator(round))
        while len(self._came) <= round:
            self._came.append(self._came[-1] + self.counts(len(self._came)))
        slices = zip(self._orders, self._came[round - 1], self._came[round], strict=True)
        return np.sort(np.concatenate([order[begin:end] for order, begin, end in slices]))


_OF_GROUPS: dict[str, _Counts] = {
    "uniform": of_groups.uniform,
    "poisson": of_groups.poisson,
    "cyclic": of_groups.cyclic,
    "markov": of_groups.poisson,  # of those that are awake
    "diurnal": of_groups.diurnal,
}
_OF_CLIENTS: dict[str, type[Availability]] = {
    "always": Always,
    "uniform": Uniform,
    "poisson": Poisson,
    "cyclic": Cyclic,
    "markov": Markov,
    "diurnal": Diurnal,
    "trace": Trace,
    "once": Once,
}


def available() -> tuple[str, ...]:
    """Return the names that `create` takes."""
    return tuple(_OF_CLIENTS)


def create(
    name: str,
    num_clients: int,
    *,
    seed: int = 0,
    rates: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    means: npt.ArrayLike | None = None,
    **settings: Any,
) -> Availability:
    """Return an availability process by its name.

    Parameters
    ----------
    name : str
        One of `available`.
    num_clients : int
        M.
    seed : int (default: 0)
        Of all draws, >= 0.
    rates : float or array_like, shape (M,), optional
        How often each client is here, in [0, 1].
    groups, means : array_like, shapes (M,) and (G,), optional
        In the place of rates, for all but "always" and "trace": the group of each client, and how many of
        each are here on average; see `GroupCounts`.
    **settings
        The process's own, such as ``memory`` or ``recording``.

    Raises
    ------
    ValueError
        If a setting is wrong; the message names it, its value and what is allowed.

    Examples
    --------
    >>> create("markov", 8, seed=1, rates=0.25, memory=0.9).here(round=3)
    array([5, 6])
    >>> create("poisson", 8, groups=[0] * 6 + [1] * 2, means=[3, 1]).here(round=3)
    array([1, 2, 3, 5, 6])
    """
    if name not in _OF_CLIENTS:
        raise ValueError(f"name = {name!r}: must be one of {', '.join(available())}")
    if groups is None:
        if means is not None:
            raise ValueError("groups = None: must be given with means")
        if rates is not None:
            settings["rates"] = rates
        return _OF_CLIENTS[name](num_clients, seed, **settings)
    if means is None or rates is not None:
        raise ValueError("groups: must come with means, and without rates")
    if np.shape(groups) != (num_clients,):
        raise ValueError(f"groups of shape {np.shape(groups)}: must be ({num_clients},)")
    if name == "once":
        name, settings["returning"] = "poisson", False
    if name not in _OF_GROUPS:
        raise ValueError(f"name = {name!r}: takes no groups")
    return GroupCounts(name, groups, means, seed, **settings)


def _checked(field: str, rates: npt.ArrayLike, num_clients: int) -> Floats32:
    """Return rates as an array of no or one dimension."""
    values = np.asarray(rates, dtype=np.float32)
    if values.shape not in ((), (num_clients,)) or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(
            f"{field} = {values}: must be in [0, 1], one number or one for each of {num_clients}"
        )
    return values


def _spread(recorded: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Return (count,) recorded clients at random, each as often as the others, give or take one."""
    shuffled = rng.permutation(recorded)
    return rng.permutation(shuffled[np.arange(count) % shuffled.size])
