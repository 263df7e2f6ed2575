"""When clients reply, which clients drop out, and the effect of a deadline; in simulated seconds."""

from math import inf

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Bools, Floats, Ints
from strategies.numerics.streams import generator
from strategies.rounds.waiting.wait_time import Wait


class ResponseTimes:
    """Each client's time for a round: ``median · work_m · slowness_m · jitter_m(round)``, or infinite.

    ``slowness`` is fixed for each client. ``jitter`` is drawn anew in each round. Both have the median 1. A
    time is a function of (seed, round, client). It does not depend on the number of clients or the selection.

    Parameters
    ----------
    num_clients : int
        M.
    seed : int (default: 0)
        Seed of all draws, >= 0.
    median : float (default: 10)
        Median of the clients' times, in seconds, if the work of each client is 1; > 0.
    sigma : float (default: 0.5)
        Standard deviation of the logarithm of ``slowness``, >= 0; 0: clients with equal work are equally
        fast.
    tail : float, optional
        If given, ``slowness`` has a Pareto distribution with the index ``tail`` > 0 instead: P(slowness > s)
        ~ s^-tail. If ``tail`` is at most 2, the variance is infinite. If ``tail`` is at most 1, the slowest
        few clients take longer than all others together.
    jitter : float (default: 0.1)
        Standard deviation of the logarithm of ``jitter``, >= 0.
    work : array_like, shape (M,), optional
        Amount of work of each client, >= 0 (default: 1). For example: samples × steps of the client, divided
        by the median of this product over the clients.
    dropout : float or array_like, shape (M,) (default: 0)
        Probability that a client does not reply in a round, in [0, 1]; drawn anew in each round.

    Raises
    ------
    ValueError
        If a setting is invalid; the message names the setting, its value and the valid range.

    Examples
    --------
    >>> times = ResponseTimes(100, seed=1, median=20, dropout=0.2)
    >>> seconds = times.seconds(round=3, clients=np.array([5, 17, 40, 99]))
    >>> seconds.round(1)
    array([13.5,  inf, 38.8,  inf])
    >>> arrivals(seconds, deadline=25.0)
    (array([ True, False, False, False]), 25.0)
    """

    def __init__(
        self,
        num_clients: int,
        seed: int = 0,
        *,
        median: float = 10.0,
        sigma: float = 0.5,
        tail: float | None = None,
        jitter: float = 0.1,
        work: npt.ArrayLike | None = None,
        dropout: npt.ArrayLike = 0.0,
    ) -> None:
        if num_clients < 1:
            raise ValueError(f"num_clients = {num_clients}: must be >= 1")
        for name, value in (("median", median), ("tail", 1.0 if tail is None else tail)):
            if not 0 < value < inf:
                raise ValueError(f"{name} = {value}: must be > 0")
        for name, value in (("sigma", sigma), ("jitter", jitter)):
            if not 0 <= value < inf:
                raise ValueError(f"{name} = {value}: must be >= 0")
        amounts = np.ones(()) if work is None else np.asarray(work, dtype=np.float64)
        if amounts.shape not in ((), (num_clients,)) or not ((amounts >= 0) & np.isfinite(amounts)).all():
            raise ValueError(f"work = {amounts}: must be a number >= 0 for each of {num_clients} clients")
        dropouts = np.asarray(dropout, dtype=np.float64)
        if dropouts.shape not in ((), (num_clients,)) or not ((dropouts >= 0) & (dropouts <= 1)).all():
            raise ValueError(f"dropout = {dropouts}: must be in [0, 1], one number or {num_clients}")
        self.num_clients = num_clients
        self.seed = seed
        self._jitter = jitter
        self._dropout = np.broadcast_to(dropouts, num_clients)
        clients = np.arange(num_clients)
        first, second, _ = self._starts(0)
        if tail is None:
            slowness = np.exp(sigma * _normals(first, second, clients))
        else:
            slowness = (2 * _uniforms(first, clients)) ** (-1 / tail)
        self.typical: Floats = median * amounts * slowness
        """(M,) seconds of each client without jitter."""

    def seconds(self, round: int, clients: npt.ArrayLike | None = None) -> Floats:
        """Return (S,) the seconds of ``clients`` (default: all) in a round >= 1; inf for who drops out."""
        if round < 1:
            raise ValueError(f"round = {round}: must be >= 1")
        indexes = np.arange(self.num_clients) if clients is None else np.asarray(clients, dtype=np.int64)
        if indexes.min(initial=0) < 0 or indexes.max(initial=0) >= self.num_clients:
            raise ValueError(f"clients = {indexes}: must be from 0 to {self.num_clients - 1}")
        first, second, third = self._starts(round)
        seconds = self.typical[indexes] * np.exp(self._jitter * _normals(first, second, indexes))
        seconds[_uniforms(third, indexes) <= self._dropout[indexes]] = inf
        return seconds

    def _starts(self, round: int) -> npt.NDArray[np.uint64]:
        return generator(self.seed, round, "response times").integers(2**64, size=3, dtype=np.uint64)


def _uniforms(start: np.uint64, clients: Ints) -> Floats:
    """Return (S,) independent numbers in (0, 1], each a function of start and client.

    The number of client m is output m + 1 of SplitMix64 (Steele, Lea, Flood 2014) seeded with ``start``. This
    generator computes any output without computing the earlier outputs.
    """
    z = start + (clients.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return ((z >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53


def _normals(start: np.uint64, other: np.uint64, clients: Ints) -> Floats:
    """Return (S,) independent standard normal numbers (Box and Muller), each a function of its client."""
    radius: Floats = np.sqrt(-2 * np.log(_uniforms(start, clients)))
    return radius * np.cos(2 * np.pi * _uniforms(other, clients))


def arrivals(
    seconds: Floats, deadline: float = inf, enough: int | None = None, wait: Wait | None = None
) -> tuple[Bools, float]:
    """Return (S,) which replies arrive in time, and how many seconds the round waits.

    The time is inf if a reply for which the round waits never comes, and there is no deadline.

    ``seconds`` (S,): When each client replies, inf for never. ``deadline``: the round ends after this many
    seconds at the latest. ``enough``: the round ends at the ``enough``-th reply, >= 1 (default: all); replies
    that arrive at that moment count too. ``wait``: Learns how long each client takes, and may end the round
    earlier, but not while the round lacks the quorum.
    """
    if seconds.size == 0:
        return np.zeros(0, dtype=np.bool_), 0.0
    last = seconds.size if enough is None else min(enough, seconds.size)
    if last < 1:
        raise ValueError(f"enough = {enough}: must be >= 1")
    end = float(min(np.partition(seconds, last - 1)[last - 1], deadline))
    if wait is not None:
        end = _waited(seconds, end, wait)
    return np.isfinite(seconds) & (seconds <= end), end


def _waited(seconds: Floats, end: float, wait: Wait) -> float:
    """Report each reply in turn to ``wait``; return how many seconds the round waits, at most ``end``."""
    now, count = 0.0, 0

    def waits_until() -> float:
        return end if wait.is_short(count) else min(end, max(now, wait.end()))

    for position in np.argsort(seconds, kind="stable").tolist():
        if seconds[position] > waits_until():
            break
        now, count = float(seconds[position]), count + 1
        wait.answered(position, now)
    waited = waits_until()
    wait.close(waited)
    return waited
