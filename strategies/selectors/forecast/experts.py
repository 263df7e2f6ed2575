"""The 32 experts of `forecast`: their forecasts, their weights, and the prior from sizes.

r = λ_m ||g_m||, where g_m is an update of client m. y = r e^(-g), where the level g (without an index) is one
number for all clients. x is the log of (the client's size / the median size). A visit of a client is a round
in which the norm of its update became known. s is the mean of y over all visits of a client. The prior is a
forecast of y from x alone. The equations are in docs/forecast.md.
"""

import math
from typing import NamedTuple

import numpy as np

from ...numerics.arrays import Bools, Floats, Ints

MEMORIES = np.array([1.0, 3.0, 12.0, np.inf])  # c: about how many of the last visits count in a mean
STRENGTHS = np.array([0.02, 0.3, 3.0, 30.0])  # κ: as how many visits the prior counts
EXPERTS = 2 * MEMORIES.size * STRENGTHS.size
START_OF_WEAKEST = 0.7  # the total weight, at the start, of the experts with κ = .02
FORGET, SHARE = 0.998, 0.002
MAX_QUOTIENT, MAX_ERROR = 20.0, 100.0
CALIBRATION_RATE = DISPERSION_RATE = NOISE_RATE = SPREAD_RATE = 0.05
LEVEL_MEMORY, LEVEL_RATE = 0.9, 0.15
SLOPE_RATE, STEEPEST_SLOPE = 0.01, 0.1
NOISY, LEAK, LARGEST_LEAK = 0.25, 0.3, 0.4
RESTART, RESTART_DEVIATIONS = 1.5, 5 * 1.4826
# The doubt: its first sums count as three draws with a mean log(y/θ)⁴ of 2/3.
FIRST_DOUBTS = (3.0, 2.0, 0.0)
LARGEST_DOUBT, NORMAL_SURPRISE, LARGEST_SURPRISE, MANY_VISITS = 0.9, 2.0, math.exp(4), 16.0
RIDGE, STEEPEST = 4.0, 3.0
# Clients are divided into classes by x. WIDTH: the width of a class. REACH: the number of classes on each
# side of x = 0.
WIDTH, REACH = 0.02, 800
X = WIDTH * np.arange(-REACH, REACH + 1, dtype=np.float64)  # (C,) x of each class
SMALLEST_Y, LARGEST_Y = 1e-4, 1e12
SMALLEST_MEAN, LARGEST_MEAN = 1e-100, 1e100
TERMS = 5


class Prior(NamedTuple):
    """The forecast π = L e^(b x) for a client that was not seen, from its size."""

    log_mean: float  # log L for arithmetic means
    log_geometric: float  # log L for geometric means
    slope: float  # b
    unlikeness: float  # u: the root mean square of s/π over the seen clients, divided by the mean of s/π
    mass: Floats  # (C,) π of each class


def initial_log_weights() -> Floats:
    """Return the log weights log w (32,) of the experts at the start."""
    weights = np.full((2, MEMORIES.size, STRENGTHS.size), (1 - START_OF_WEAKEST) / 24)
    weights[:, :, 0] = START_OF_WEAKEST / 8
    logs: Floats = np.log(weights.ravel())
    return logs


def relative(r: Floats, unit: float, level: float) -> Floats:
    """Return y (n,) = (r / unit) e^(-level), at most 1e12; `unit` may be 0 if all r are 0."""
    with np.errstate(over="ignore"):
        y: Floats = np.minimum(r / (unit or 1.0) * math.exp(-level), LARGEST_Y)
    return y


def terms(visits: Ints, means: Floats, log_means: Floats) -> Floats:
    """Return (n, 5) for n clients the terms 1, s, s², log s and l, whose sums determine the prior.

    s and l are the means of y and of log y with the longest memory: the last columns of `means` (n, 4) and
    `log_means` (n, 4). The terms of a client without a visit are 0.
    """
    s = means[:, -1]
    seen = visits > 0
    return np.stack(
        [seen, s, s**2, np.where(seen, np.log(np.maximum(s, SMALLEST_Y)), 0.0), log_means[:, -1]], axis=1
    )


def prior_of(sums: Floats) -> Prior:
    """Return the prior, from `sums` (C, 5): the sum of `terms` over the seen clients of each class."""
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
    if mean < SMALLEST_MEAN:  # all norms are 0, or so small that their squares would vanish
        return Prior(0.0, log_geometric, b, 1.0, np.exp(b * X))
    unlikeness = math.sqrt(max(1.0, float(squares @ flat**2 / n) / mean**2))
    return Prior(math.log(mean), log_geometric, b, unlikeness, mean * np.exp(b * X))


def forecasts(
    visits: Ints, means: Floats, log_means: Floats, x: Floats, prior: Prior, shifts: Floats
) -> Floats:
    """Return the forecasts θ (32, n) of the experts for n clients.

    The first 16 experts use arithmetic means, the last 16 geometric means. Each half is ordered by memory,
    and for each memory by strength.

    `visits` (n,), `means` and `log_means` (n, 4) are the clients' number of visits, and their means of y and
    of log y for each memory; `x` (n,) is that of each client. `shifts` (16,) is h of the geometric experts,
    which is added to the logs of their forecasts.
    """
    tilt = prior.slope * x
    # The share of the prior is κ/(κ + min(n, c)) after n visits. Clients are the last axis, so that NumPy's
    # inner loops are long.
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
    """Return the means (n, 4) of y and of log y after one more visit of each client, with value y (n,)."""
    gain = 1 / np.minimum(visits[:, None] + 1, MEMORIES)
    logs = np.log(np.maximum(y, SMALLEST_Y))
    return means + gain * (y[:, None] - means), log_means + gain * (logs[:, None] - log_means)


def reweighted(
    log_weights: Floats, thetas: Floats, y: Floats, counts: Ints, smooth: float, dispersion: float
) -> Floats:
    """Return the experts' weights (32,) after a round; they sum to 1.

    `log_weights` (32,) are those before the round. `thetas` (32, n) are the forecasts for the drawn clients,
    `y` (n,) their observed y, and `counts` (n,) how often each was drawn. `smooth` is added to each y and θ,
    so that small values count less. The losses are divided by `dispersion`, φ > 0, so a large φ makes the
    weights change slowly.
    """
    quotient = np.minimum((y + smooth) / (thetas + smooth), MAX_QUOTIENT)
    loss = (quotient + np.log(thetas + smooth)) @ counts
    logs = FORGET * log_weights - np.clip(1 / dispersion, 0.02, 5) * loss
    weights: Floats = np.exp(logs - logs.max())
    weights *= (1 - SHARE) / weights.sum()
    return weights + SHARE / EXPERTS


def calibrated(shifts: Floats, thetas: Floats, y: Floats, counts: Ints) -> Floats:
    """Return the new h (16,) of the geometric experts after a round; `shifts` is h before the round.

    `thetas` (32, n), `y` (n,) and `counts` (n,) are those of `reweighted`.
    """
    off = np.minimum(y / thetas[EXPERTS // 2 :], MAX_QUOTIENT) @ counts / counts.sum() - 1
    moved: Floats = np.clip(shifts + CALIBRATION_RATE * off, -20, 20)
    return moved


def squared_error(ratio: Floats, counts: Ints) -> float:
    """Return the mean of (y/θ - 1)² over a round's draws, where each square counts as at most 100.

    `ratio` (n,) holds y/θ of the drawn clients, and `counts` (n,) how often each was drawn.
    """
    return float(counts @ np.minimum((ratio - 1) ** 2, MAX_ERROR) / counts.sum())


def doubted(doubts: Floats, ratio: Floats, known: Bools, counts: Ints, num_clients: int) -> Floats:
    """Return the sums (3,) that determine the doubt, after a round; `doubts` are those before the round.

    `ratio` (n,) holds y/θ of the drawn clients, `known` (n,) whether they were seen before, and `counts` (n,)
    how often each was drawn. The first two sums are over the last draws of seen clients: they fade as
    `num_clients`, M, such draws come three times.
    """
    errors = np.log(np.clip(ratio[known], 1 / LARGEST_SURPRISE, LARGEST_SURPRISE))
    n = counts[known]
    keep = np.array([*[1 - min(0.5, n.sum() / (3 * num_clients))] * 2, 1.0])
    updated: Floats = keep * doubts + np.array([n.sum(), n @ errors**4, counts.sum()])
    return updated


def doubt(doubts: Floats, mean_visits: float) -> float:
    """Return the share of p, in [0, .9), that is in proportion to the prior, not to the forecasts.

    The fourth power separates jumps from the noise of clients whose order is known: a factor 30 counts 134,
    noise with standard deviation .5 counts .2. `mean_visits` is the mean number of visits of a seen client:
    means of many visits are reliable even if each norm is noisy.
    """
    surprise = float(doubts[1] / doubts[0]) / NORMAL_SURPRISE
    return LARGEST_DOUBT * surprise**2 / (1 + surprise**2) / (1 + mean_visits / MANY_VISITS) ** 2


def jump(y: Floats, theta: Floats, spread: float) -> tuple[float, float]:
    """Return the common upward jump of the clients' log y (0 if there was none), and the new spread.

    `y` (n,) and `theta` (n,) are the observed values and the forecasts for the drawn clients that were seen
    before. `spread` is the running median of |log(y/θ)|.
    """
    if not y.size:
        return 0.0, spread
    ratio = np.log(np.maximum(np.maximum(y, 1e-300) / theta, 1e-300))
    median, found = float(np.median(ratio)), 0.0
    if y.size >= 3 and median > max(RESTART, RESTART_DEVIATIONS * spread / math.sqrt(y.size)):
        found = median
    typical = float(np.median(np.minimum(np.abs(ratio - found), 5)))
    return found, spread + SPREAD_RATE * (typical - spread)


def trend(
    evidence: Floats, slope: float, ratio: Floats, counts: Ints, noise: float
) -> tuple[Floats, float, float]:
    """Return the new evidence (3,), the new slope v, and the number to add to the level g.

    `ratio` (n,) holds y/θ of the drawn clients that were seen before. `counts` (n,) is N, how often each was
    drawn. The evidence about the mean of y/θ holds decaying sums of N, N y/θ and N (y/θ)². The slope is the
    expected change of g per round. `noise` is ν, which bounds the variance of y/θ from below. If ν is above
    .25, the slope decays to 0. docs/forecast.md explains both rules.
    """
    if not ratio.size:
        return evidence, slope, 0.0
    ratio = np.minimum(ratio, MAX_QUOTIENT)
    evidence = LEVEL_MEMORY * evidence + np.array([counts.sum(), counts @ ratio, counts @ ratio**2])
    mean = evidence[1] / evidence[0]
    variance = max(evidence[2] / evidence[0] - mean**2, noise) / evidence[0]
    sure = max(0.0, 1 - 4 * (variance + 1e-4) / max((mean - 1) ** 2, 1e-12)) * min(1.0, evidence[0] / 20)
    step = sure * math.log(max(mean, 0.05))
    slope *= 1 - min(LEAK * max(0.0, noise - NOISY), LARGEST_LEAK)
    slope = min(max(slope + SLOPE_RATE * step, -STEEPEST_SLOPE), STEEPEST_SLOPE)
    return evidence, slope, LEVEL_RATE * step
