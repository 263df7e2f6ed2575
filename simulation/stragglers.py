"""How long clients take to answer, who never does, and what a deadline makes of it; in simulated seconds."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Bools, Floats, Ints
from strategies.numerics.streams import generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.app import Message

TRAIN = "train"


class ResponseTimes:
    """Each client's time for a round: ``median · work_m · slowness_m · jitter_m(round)``, or never.

    ``slowness`` is the client's for good, ``jitter`` is drawn anew each round; both have the median 1. All is
    a function of (seed, round, client), whoever else is asked, and however many clients there are.

    Parameters
    ----------
    num_clients : int
        M.
    seed : int (default: 0)
        Of all draws, >= 0.
    median : float (default: 10)
        Seconds that a client in the middle takes for work 1, > 0.
    sigma : float (default: 0.5)
        Standard deviation of the logarithm of ``slowness``, >= 0; 0: all are equally fast.
    tail : float, optional
        Slowness has a Pareto distribution with this index instead, > 0: P(slowness > s) ~ s^-tail. Below 2 a
        few clients are slower than all others together.
    jitter : float (default: 0.1)
        Standard deviation of the logarithm of ``jitter``, >= 0.
    work : array_like, shape (M,), optional
        What a client has to do, >= 0, such as samples times steps over their median; default: 1 each.
    dropout : float or array_like, shape (M,) (default: 0)
        With which probability a client that is asked never answers, in [0, 1]; drawn for each round.

    Raises
    ------
    ValueError
        If a setting is wrong; the message names it, its value and what is allowed.

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
        chances = np.asarray(dropout, dtype=np.float64)
        if chances.shape not in ((), (num_clients,)) or not ((chances >= 0) & (chances <= 1)).all():
            raise ValueError(f"dropout = {chances}: must be in [0, 1], one number or {num_clients}")
        self.num_clients = num_clients
        self.seed = seed
        self._jitter = jitter
        self._dropout = np.broadcast_to(chances, num_clients)
        everybody = np.arange(num_clients)
        first, second, _ = self._starts(0)
        if tail is None:
            slowness = np.exp(sigma * _normals(first, second, everybody))
        else:
            slowness = (2 * _uniforms(first, everybody)) ** (-1 / tail)
        self.typical: Floats = median * amounts * slowness
        """(M,) seconds that each client takes without jitter."""

    def seconds(self, round: int, clients: npt.ArrayLike | None = None) -> Floats:
        """Return (S,) how long each of these clients takes in a round (default: all), inf if it drops out.

        Parameters
        ----------
        round : int
            >= 1.
        clients : array_like of int, shape (S,), optional
            Indexes, 0 to M - 1.

        Raises
        ------
        ValueError
            If ``round`` is below 1, or there is no such client.
        """
        if round < 1:
            raise ValueError(f"round = {round}: must be >= 1")
        who = np.arange(self.num_clients) if clients is None else np.asarray(clients, dtype=np.int64)
        if who.min(initial=0) < 0 or who.max(initial=0) >= self.num_clients:
            raise ValueError(f"clients = {who}: must be from 0 to {self.num_clients - 1}")
        first, second, third = self._starts(round)
        seconds = self.typical[who] * np.exp(self._jitter * _normals(first, second, who))
        seconds[_uniforms(third, who) <= self._dropout[who]] = inf
        return seconds

    def _starts(self, round: int) -> npt.NDArray[np.uint64]:
        return generator(self.seed, round, "response times").integers(2**64, size=3, dtype=np.uint64)


def _uniforms(start: np.uint64, clients: Ints) -> Floats:
    """Return (S,) independent numbers in (0, 1], each a function of start and client.

    That of client m is output m + 1 of SplitMix64 (Steele, Lea, Flood 2014) begun at ``start``, which can be
    had without those before.
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


def arrivals(seconds: Floats, deadline: float = inf, enough: int | None = None) -> tuple[Bools, float]:
    """Return who answers in time, and how long the round waits.

    Parameters
    ----------
    seconds : ndarray, shape (S,)
        When each client answers, inf for never.
    deadline : float
        Seconds after which nobody is waited for.
    enough : int, optional
        Wait no longer once so many have answered (default: all); ties count too.

    Returns
    -------
    ndarray of bool, shape (S,)
        Whose answer counts.
    float
        Seconds until the last that is waited for answers, at most the deadline; infinite if one never does.
    """
    if seconds.size == 0:
        return np.zeros(0, dtype=np.bool_), 0.0
    last = seconds.size if enough is None else min(enough, seconds.size)
    if last < 1:
        raise ValueError(f"enough = {enough}: must be >= 1")
    end = float(min(np.partition(seconds, last - 1)[last - 1], deadline))
    return np.isfinite(seconds) & (seconds <= end), end


def latency_of(times: ResponseTimes, client_of: Callable[[int], int]) -> Callable[[Message], float]:
    """Return the latency of an in-process grid on which training takes its time, and all else none.

    Parameters
    ----------
    times : ResponseTimes
        Of as many clients as the grid has.
    client_of : callable
        Node id -> client index: the grid's own.

    Raises
    ------
    ValueError
        When a TRAIN message does not say its round.
    """

    def latency(message: Message) -> float:
        if message.metadata.message_type != TRAIN:
            return 0.0
        client = client_of(message.metadata.dst_node_id)
        return float(times.seconds(server_round(message), np.array([client]))[0])

    return latency


def server_round(message: Message) -> int:
    """Return the round that a message belongs to, as Flower's strategies write it into its config.

    Raises
    ------
    ValueError
        If it does not say.
    """
    for config in message.content.config_records.values():
        number = config.get("server-round")
        if isinstance(number, int):
            return number
    raise ValueError(
        "server-round: must be in a config of the message, since response times are drawn by round"
    )
