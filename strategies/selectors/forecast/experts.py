"""The 32 experts of `forecast`: their forecasts, their weights, and the prior from sizes.

Pure functions on arrays. y is r = λ ||g|| of a client's update in units of a level common to all; x is the
log of the client's size over the median size. The equations are in `forecast.ForecastSelector`.
"""

import math
from typing import NamedTuple

import numpy as np

from ...numerics.arrays import Floats, Ints

MEMORIES = np.array([1.0, 3.0, 12.0, np.inf])  # c, in visits
STRENGTHS = np.array([0.02, 0.3, 3.0, 30.0])  # κ, in visits
EXPERTS = 2 * MEMORIES.size * STRENGTHS.size
START_OF_WEAKEST = 0.7  # total weight of κ = .02 at the start
FORGET, SHARE = 0.998, 0.002
MAX_QUOTIENT, MAX_ERROR = 20.0, 100.0
CALIBRATION_RATE = DISPERSION_RATE = NOISE_RATE = SPREAD_RATE = 0.05
LEVEL_MEMORY, LEVEL_RATE = 0.9, 0.15
RESTART, RESTART_DEVIATIONS = 1.5, 5 * 1.4826
RIDGE, STEEPEST = 4.0, 3.0
WIDTH, REACH = 0.02, 800  # of a class of log sizes; classes on each side of the median
X = WIDTH * np.arange(-REACH, REACH + 1, dtype=np.float64)  # (C,) log size over the median
SMALLEST_Y, LARGEST_Y = 1e-4, 1e12
TERMS = 5


class Prior(NamedTuple):
    """The forecast of an unseen client from its size."""

    log_mean: float  # log L
    log_geometric: float  # log L of geometric means
    slope: float  # b
    unlikeness: float  # u: RMS over mean of s/π over the seen clients
    mass: Floats  # (C,) π


def initial_log_weights() -> Floats:
    """Return log w (32,) at the start."""
    weights = np.full((2, MEMORIES.size, STRENGTHS.size), (1 - START_OF_WEAKEST) / 24)
    weights[:, :, 0] = START_OF_WEAKEST / 8
    logs: Floats = np.log(weights.ravel())
    return logs


def relative(r: Floats, unit: float, level: float) -> Floats:
    """Return y = r e^(-g), at most 1e12; `unit` is 0 if all r are 0."""
    with np.errstate(over="ignore"):
        y: Floats = np.minimum(r / (unit or 1.0) * math.exp(-level), LARGEST_Y)
    return y


def terms(visits: Ints, means: Floats, log_means: Floats) -> Floats:
    """Return the terms (n, 5) that the prior sums: 1, s, s², log s, l of the longest memory; 0 if unseen."""
    s = means[:, -1]
    seen = visits > 0
    return np.stack(
        [seen, s, s**2, np.where(seen, np.log(np.maximum(s, SMALLEST_Y)), 0.0), log_means[:, -1]], axis=1
    )


def prior_of(sums: Floats) -> Prior:
    """Return the prior from the sums (C, 5) of `terms` by class."""
    count, total, squares, logs, log_means = sums.T
    n = count.sum()
    if n == 0:
        return Prior(0.0, 0.0, 1.0, 1.0, np.exp(X))
    centred = X - count @ X / n
    b = float((centred @ logs + RIDGE) / (count @ centred**2 + RIDGE))
    b = min(max(b, -STEEPEST), STEEPEST)
    flat = np.exp(-b * X)
    mean = float(total @ flat / n)
    log_geometric = float((log_means.sum() - b * (count @ X)) / n)
    if mean <= 0:  # all norms are 0
        return Prior(0.0, log_geometric, b, 1.0, np.exp(b * X))
    unlikeness = math.sqrt(max(1.0, float(squares @ flat**2 / n) / mean**2))
    return Prior(math.log(mean), log_geometric, b, unlikeness, mean * np.exp(b * X))


def forecasts(
    visits: Ints, means: Floats, log_means: Floats, x: Floats, prior: Prior, shifts: Floats
) -> Floats:
    """Return θ of each expert (32, n): arithmetic, then geometric means; memories, then strengths."""
    tilt = prior.slope * x
    # The share of the prior, κ/(κ + n̄). Clients are the last axis, or NumPy's inner loops would be short.
    share = STRENGTHS[:, None] / (STRENGTHS[:, None] + np.minimum(visits, MEMORIES[:, None])[:, None])
    thetas = np.empty((2, MEMORIES.size, STRENGTHS.size, x.size))
    for out, known, guess in (
        (thetas[0], means.T, np.exp(prior.log_mean + tilt)),
        (thetas[1], log_means.T, prior.log_geometric + tilt),
    ):
        np.multiply(share, (guess - known)[:, None], out=out)
        out += known[:, None]
    thetas[1] += shifts.reshape(MEMORIES.size, STRENGTHS.size, 1)
    np.exp(thetas[1], out=thetas[1])
    return thetas.reshape(EXPERTS, x.size)


def averaged(visits: Ints, means: Floats, log_means: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the means (n, 4) of y and of log y with one more visit."""
    gain = 1 / np.minimum(visits[:, None] + 1, MEMORIES)
    logs = np.log(np.maximum(y, SMALLEST_Y))
    return means + gain * (y[:, None] - means), log_means + gain * (logs[:, None] - log_means)


def reweighted(
    log_weights: Floats, thetas: Floats, y: Floats, counts: Ints, smooth: float, dispersion: float
) -> Floats:
    """Return the experts' weights (32,) after a round; they sum to 1.

    Parameters
    ----------
    log_weights : ndarray, shape (32,)
        Before the round.
    thetas, y, counts : ndarray, shapes (32, n), (n,), (n,)
        Of the drawn clients: the forecasts, the observed values, and how often each was drawn.
    smooth : float
        Added to each y and θ.
    dispersion : float
        φ.
    """
    quotient = np.minimum((y + smooth) / (thetas + smooth), MAX_QUOTIENT)
    loss = (quotient + np.log(thetas + smooth)) @ counts
    logs = FORGET * log_weights - np.clip(1 / dispersion, 0.02, 5) * loss
    weights: Floats = np.exp(logs - logs.max())
    weights *= (1 - SHARE) / weights.sum()
    return weights + SHARE / EXPERTS


def calibrated(shifts: Floats, thetas: Floats, y: Floats, counts: Ints) -> Floats:
    """Return h (16,) of the geometric experts after a round."""
    off = np.minimum(y / thetas[EXPERTS // 2 :], MAX_QUOTIENT) @ counts / counts.sum() - 1
    moved: Floats = np.clip(shifts + CALIBRATION_RATE * off, -20, 20)
    return moved


def squared_error(ratio: Floats, counts: Ints) -> float:
    """Return the mean of (y/θ - 1)² over a round's draws, each at most 100."""
    return float(counts @ np.minimum((ratio - 1) ** 2, MAX_ERROR) / counts.sum())


def jump(y: Floats, theta: Floats, spread: float) -> tuple[float, float]:
    """Return by how much log y of all known clients jumped up (0: no jump), and the new spread."""
    if not y.size:
        return 0.0, spread
    ratio = np.log(np.maximum(y, 1e-300) / theta)
    median, found = float(np.median(ratio)), 0.0
    if y.size >= 3 and median > max(RESTART, RESTART_DEVIATIONS * spread / math.sqrt(y.size)):
        found = median
    typical = float(np.median(np.minimum(np.abs(ratio - found), 5)))
    return found, spread + SPREAD_RATE * (typical - spread)


def trend(evidence: Floats, ratio: Floats, counts: Ints) -> tuple[Floats, float]:
    """Return the new evidence (3,) on the mean of y/θ, and the step of the level."""
    if not ratio.size:
        return evidence, 0.0
    ratio = np.minimum(ratio, MAX_QUOTIENT)
    evidence = LEVEL_MEMORY * evidence + np.array([counts.sum(), counts @ ratio, counts @ ratio**2])
    mean = evidence[1] / evidence[0]
    variance = max(evidence[2] / evidence[0] - mean**2, 0.0) / evidence[0] + 1e-4
    sure = max(0.0, 1 - 4 * variance / max((mean - 1) ** 2, 1e-12)) * min(1.0, evidence[0] / 20)
    return evidence, LEVEL_RATE * sure * math.log(max(mean, 0.05))
