"""Estimates from a run's log how long its clients take to reply, and how long its rounds wait for them."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..numerics.arrays import Floats, Ints

SHORTEST = 1e-3  # seconds; shorter durations count as this


class Waiting(NamedTuple):
    """Durations of a run."""

    replies: int  #: the number of durations
    #: The share of a round's wait that remains after a client's reply, the mean over the rounds and their
    #: clients; 0 if all clients are equally fast.
    idle: float
    missing: float  #: the share of the selected clients without a duration
    between: float  #: standard deviation of log seconds between the clients
    within: float  #: the same, of one client over the rounds


def waiting(rounds: Iterable[tuple[Ints, Floats]]) -> Waiting | None:
    """Return what the durations of a run say; None if no client has two durations.

    The variance within clients is the mean square within clients of a one-way analysis of variance. The
    variance between clients is estimated by the same analysis, for unequal numbers of durations (Searle,
    Casella, McCulloch 1992, Variance Components, section 3.6).

    `rounds` holds the selected clients (S,) of each round, and the seconds (S,) until each reply; a value
    that is negative or not finite counts as missing.
    """
    clients, logs, idle = [], [], []
    selected = 0
    for chosen, seconds in rounds:
        known = np.isfinite(seconds) & (seconds >= 0)
        selected += known.size
        if known.any():
            there = np.maximum(seconds[known], SHORTEST)
            clients.append(chosen[known])
            logs.append(np.log(there))
            idle.append(1 - float(there.mean() / there.max()))
    if not clients:
        return None
    who, z = np.concatenate(clients), np.concatenate(logs)
    _, group = np.unique(who, return_inverse=True)
    counts = np.bincount(group)
    means = np.bincount(group, z) / counts
    freedom = z.size - counts.size
    if not freedom:
        return None
    within = float(((z - means[group]) ** 2).sum()) / freedom
    between = 0.0
    if counts.size > 1:
        mean_square = float((counts * (means - z.mean()) ** 2).sum()) / (counts.size - 1)
        usual = (z.size - float((counts**2).sum()) / z.size) / (counts.size - 1)
        between = max(0.0, (mean_square - within) / usual)
    return Waiting(z.size, float(np.mean(idle)), 1 - z.size / selected, between**0.5, within**0.5)
