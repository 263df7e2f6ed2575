"""Learns how long each client takes to reply, by a Kalman filter of its log durations.

z is the log of a duration in seconds. A client's z is normally distributed around a mean that drifts. Each
client has a Kalman filter, which estimates this mean. The noise is the variance of z around this mean. It is
the same for all clients.
"""

from typing import NamedTuple

import numpy as np

from ...numerics.arrays import Array, Bools, Floats

SHORTEST, LONGEST = 1e-3, 1e7  # seconds; durations are clipped to this range
DRIFT = 0.01  # the variance that a client's mean gains between two replies
PRIOR_VARIANCE = 1.0  # the uncertainty of a client's mean z before its first known duration
DOUBT = 3.0  # standard deviations; a larger error is clipped, and makes the client's next reply count more
NOISE_RATE, LEAST_NOISE, LARGEST_NOISE = 0.02, 1e-4, 4.0
START_NOISE = 0.1
POPULATION_MEMORY = 200.0  # replies


class Learned(NamedTuple):
    """The knowledge after a round."""

    means: Floats  # (n,) the mean of z of each client
    variances: Floats  # (n,) the uncertainty of these means
    noise: float  # the variance of z around a client's mean, the same for all clients
    population: Floats  # (2,) the mean of z of all replies, and their number, at most `POPULATION_MEMORY`


def learn(
    means: Floats, variances: Floats, noise: float, population: Floats, seconds: Floats, responded: Bools
) -> Learned:
    """Return the knowledge after a round.

    A client that did not reply took at least as long as the last reply of the round. For such a client, the
    filter uses the expected z, given that z is above that of the last reply. A large error is clipped, since
    the reply may be an outlier. The clipped part widens the client's variance, so the next reply counts more:
    the filter learns in two replies that durations are a hundred times longer.

    `means` and `variances` (n,) are the knowledge about the selected clients, NaN = nothing is known; `noise`
    and `population` are those of `Learned`. `seconds` (n,) are durations: a value that is not finite is
    missing, and 0 counts as a millisecond. `responded` (n,) says which clients replied. Nothing changes in a
    round without a known duration, nor for a client that replied without a known duration.
    """
    timed = responded & np.isfinite(seconds)
    if not timed.any():
        return Learned(means, variances, noise, population)
    z = np.log(np.clip(np.where(timed, seconds, 1.0), SHORTEST, LONGEST))
    count = min(float(population[1]) + int(timed.sum()), POPULATION_MEMORY)
    share = min(1.0, int(timed.sum()) / count)
    population = np.array([population[0] + share * (z[timed].mean() - population[0]), count])

    unknown = np.isnan(means)
    prior = np.where(unknown, population[0], means)
    width = np.where(unknown, PRIOR_VARIANCE, variances + DRIFT)
    total = width + noise
    deviation = np.sqrt(total)
    last = float(z[timed].max())
    seen = np.where(timed, z, prior + deviation * _mean_above((last - prior) / deviation))
    error = seen - prior
    excess = np.maximum(np.abs(error) - DOUBT * deviation, 0.0)
    gain = width / total
    new_means = prior + gain * np.clip(error, -DOUBT * deviation, DOUBT * deviation)
    new_variances = (1 - gain) * width + excess**2
    changed = timed | ~responded
    old = timed & ~unknown
    if old.any():
        squares = np.clip(error[old] ** 2 - width[old], 0, 9 * noise)
        noise += float((1 - (1 - NOISE_RATE) ** int(old.sum())) * (squares.mean() - noise))
        noise = min(max(noise, LEAST_NOISE), LARGEST_NOISE)
    return Learned(
        np.where(changed, new_means, means), np.where(changed, new_variances, variances), noise, population
    )


def _mean_above(bound: Floats) -> Floats:
    """Return E[x | x > bound] (n,) of a standard normal x."""
    from_table: Array = np.interp(bound, _BOUNDS, _MEANS)
    return np.where(bound > _BOUNDS[-1], bound + 1 / np.maximum(bound, 1.0), from_table)


def _tables() -> tuple[Floats, Floats]:
    bounds = np.linspace(-6, 6, 241)
    x = np.linspace(-8, 12, 20_001)
    density = np.exp(-(x**2) / 2)
    above = np.cumsum(density[::-1])[::-1]
    moments = np.cumsum((x * density)[::-1])[::-1]
    at = np.searchsorted(x, bounds)
    return bounds, moments[at] / above[at]


_BOUNDS, _MEANS = _tables()
