"""Processes for the number of available clients in each group, and synthetic traces of availability."""

from collections.abc import Callable

import numpy as np

from simulation.availability.base import DAY
from simulation.availability.groups import cyclic_counts, diurnal_counts, poisson_counts, uniform_counts
from simulation.availability.trace_file import Recording
from strategies.numerics.arrays import Floats, Ints


def markov_counts(means: Floats, num_rounds: int, rng: np.random.Generator, stay: float = 0.9) -> Ints:
    """Return numbers of available clients (T, G) of groups that are awake or asleep.

    A group changes its state before each round with probability 1 - `stay`. Awake, it has a Poisson number of
    available clients with its mean; asleep, none.
    """
    awake = rng.random(means.size) < 0.5
    flips = rng.random((num_rounds, means.size)) >= stay
    return np.where((np.cumsum(flips, axis=0) + awake) % 2 == 1, rng.poisson(means, flips.shape), 0)


def trace_counts(means: Floats, num_rounds: int, rng: np.random.Generator) -> Ints:
    """Return numbers of available clients (T, G) from a synthetic trace of 200 clients in equal groups.

    On average, half of the clients are available in the group with the largest mean; the shares of the others
    are proportional to their means. A client counts if it is available when the round begins (in the paper
    and in `table_1`: in any part of the round).
    """
    per_group = max(1, 200 // means.size)
    groups = np.repeat(np.arange(means.size), per_group)
    rows = sessions(groups, 0.5 * means / means.max(), num_rounds, rng)
    recording = Recording(rows, whole_bins=False, origin=0.0, num_clients=groups.size)
    available = np.array([recording.available(round) for round in range(num_rounds)])
    return np.asarray(available.reshape(num_rounds, means.size, per_group).sum(axis=2))


PROCESSES: dict[str, Callable[[Floats, int, np.random.Generator], Ints]] = {
    "uniform": uniform_counts,
    "Poisson": poisson_counts,
    "cyclic": cyclic_counts,
    "Markov": markov_counts,
    "diurnal": diurnal_counts,
    "trace": trace_counts,
}
"""Name -> function (mean numbers (G,), T, generator) -> number of available clients of each group (T, G)."""


def sessions(
    groups: Ints, shares: Floats, num_rounds: int, rng: np.random.Generator
) -> list[tuple[int, float, float]]:
    """Draw a synthetic trace: sorted rows (client, start, end), one for each session, in rounds.

    `groups` (M,) has each client's group, and `shares` (G,) the approximate share of the time in which its
    clients are available. A session has a lognormal length (median 1.5, σ = 0.8). The mean pause between two
    sessions follows from the share, and is three times as long at night as at noon; each group has a time
    zone of its own.
    """
    zones = groups / shares.size
    mean_session = 1.5 * np.exp(0.8**2 / 2)
    mean_pause = mean_session * (1 / shares[groups] - 1)
    now = -rng.random(groups.size) * (mean_session + mean_pause)
    rows: list[tuple[int, float, float]] = []
    going = np.arange(groups.size)
    while going.size:
        night = 1 - 0.5 * np.sin(2 * np.pi * (now[going] / DAY + zones[going]))  # 0.5 at noon, 1.5 at night
        start = now[going] + rng.exponential(mean_pause[going] * night)
        end = start + 1.5 * rng.lognormal(0, 0.8, going.size)
        seen = (end > 0) & (start < num_rounds)
        rows += zip(going[seen].tolist(), start[seen].tolist(), end[seen].tolist(), strict=True)
        now[going] = end
        going = going[end < num_rounds]
    return sorted(rows)
