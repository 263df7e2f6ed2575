"""Compares the variances that several distributions would have had, from the draws of another distribution.

Each round of a log gives an unbiased estimate x of ``sum_m a_m / q_m`` with ``a_m = λ_m² ||g_m||²``, the part
of the variance of the aggregate that depends on the distribution q. `compare` estimates the quotient of two
such sums over all rounds from the estimates of the rounds, with a confidence interval.

The interval: the errors of different rounds are uncorrelated, because the estimate of each round has the
right mean, whatever the log drew in earlier rounds. So their variances add up. The sum of the variances is
estimated from the differences between successive rounds, so that slow changes of the true sums do not count
as errors. The errors have heavy tails, because a client that is seldom drawn has a large weight, so the
quantile is that of Student's t. Its degrees of freedom are half of the number of differences that dominate
the sum of squares, since each round is part of two differences. `cohort bench advice` measures how often the
intervals contain the true quotient.
"""

import math
from typing import NamedTuple

import numpy as np

from ..numerics.arrays import Floats

# The degrees of freedom 1, 2, ..., 30, 60, 120 and infinity, and the quantile .975 of Student's t for them.
_DEGREES = np.array([*range(1, 31), 60, 120, np.inf])
_QUANTILES = np.array(
    [
        *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
        *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
        *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
        *(2.000, 1.980, 1.960),
    ]
)
_WIDEST = 700.0  # the largest half-width of an interval, in logarithms, so that exp() does not overflow


class Interval(NamedTuple):
    """An estimate with its 95 % confidence interval; all three are >= 0."""

    value: float
    low: float
    high: float


def compare(x: Floats, y: Floats, x_errors: Floats, y_errors: Floats) -> Interval:
    """Estimate the sum of the means of x, divided by the sum of the means of y.

    `x` and `y` (T,), T >= 2, are estimates >= 0 of each round, for two distributions and from the same draws;
    y > 0 in some round. `x_errors` and `y_errors` (T,) have mean 0 and resemble the errors of x and y. They
    are subtracted, unless a sum would not be positive then. If x equals y, and the errors are equal, all
    values are exactly 1.
    """
    better_x, better_y = x - x_errors, y - y_errors
    if min(better_x.sum(), better_y.sum()) > 0:
        x, y = better_x, better_y
    total = float(y.sum())
    value = float(x.sum()) / total
    squared = np.diff(x - value * y) ** 2 / 2
    sum_of_squares = float(squared.sum())
    if sum_of_squares == 0 or value == 0:
        return Interval(value, value, value)
    error = math.sqrt(sum_of_squares * x.size / squared.size) / total
    dominant = sum_of_squares**2 / float((squared**2).sum()) / 2
    width = min(quantile(dominant) * error / value, _WIDEST)
    return Interval(value, value * math.exp(-width), value * math.exp(width))


def quantile(degrees: float) -> float:
    """Return the quantile .975 of Student's t; interpolated in 1 / ``degrees`` of freedom, >= 1."""
    return float(np.interp(1 / max(1.0, degrees), 1 / _DEGREES[::-1], _QUANTILES[::-1]))
