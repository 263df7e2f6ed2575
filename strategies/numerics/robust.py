"""Limits of plausible values that a few lies cannot move, and a mean that no single update determines."""

from math import inf
from typing import NamedTuple

import numpy as np

from .arrays import Floats

_QUARTILE = 0.6744897501960817
"""The distance of a normal distribution's quartile from its median, in standard deviations."""
_LOWER_SHARE = 0.5
"""The spread above the median is taken to be at least this share of the spread below it. Very small values
suggest, but do not prove, that very large values are plausible."""
_PRIOR_VALUES = 3
"""The spread that is assumed beforehand counts as this many values."""
_PASSES = 4
"""The largest number of passes. After each pass, the values above the limit are dropped."""


class Bulk(NamedTuple):
    """Where most values are."""

    centre: float  # the median of the values that `bulk` did not drop
    # An estimate of the standard deviation of values above the median, >= 0: the larger of the distance from
    # the median to the upper quartile, and half of that to the lower quartile, both scaled so that, for
    # normal values, the first is the standard deviation; averaged, as a variance, with the assumed spread.
    spread: float
    margin: float  # values up to centre + margin are plausible


def bulk(values: Floats, *, deviations: float, least: float, prior: float) -> Bulk:
    """Return where most values are, and how far above the centre a value is plausible.

    The margin is ``max(least, deviations · spread)``. Values above centre + margin are dropped, and centre
    and margin are computed again from the remaining values, so that large lies do not raise the upper
    quartile. The quartiles are reliable if fewer than a quarter of the values are lies. The median absolute
    deviation is not used as the spread: it is 0 if most values are equal, and all other values would then be
    implausible.

    `values` (n,) are finite, n >= 1; pass logarithms if the quantity is positive. `deviations` > 0 is how far
    above the centre a value may be, as a multiple of the spread. `least` >= 0 is the least margin. `prior` >=
    0 is the spread that is assumed without any values; this assumption counts as three values.
    """
    ordered = np.sort(values)
    count = ordered.size
    for _ in range(_PASSES):
        low, centre, high = (_quantile(ordered, count, share) for share in (0.25, 0.5, 0.75))
        seen = max(high - centre, _LOWER_SHARE * (centre - low)) / _QUARTILE
        spread = float(np.sqrt((count * seen**2 + _PRIOR_VALUES * prior**2) / (count + _PRIOR_VALUES)))
        margin = max(least, deviations * spread)
        kept = int(np.searchsorted(ordered, centre + margin, side="right"))
        if kept >= count:
            break
        count = kept
    return Bulk(centre, spread, margin)


def _quantile(ordered: Floats, count: int, share: float) -> float:
    """Return the quantile ``share`` of the first ``count`` values of ``ordered``, interpolated linearly."""
    place = share * (count - 1)
    below = int(place)
    above = min(below + 1, count - 1)
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))


_GAP, _GAP_OF_FEW = 4.0, 12.0
"""The largest gap between the logarithms of n honest norms is taken to be below 4 + 12/n. Where honest norms
are lognormal with a standard deviation of 2, a norm lies above a larger gap with a probability below 3e-4 for
every n >= 2, and of about 1e-5 for n >= 100."""


def largest_supported(logs: Floats, power: float = 1.0) -> float:
    """Return the largest logarithm that the others support; infinity if they support every one.

    Fewer than a quarter of the values, or one of up to eight, may be garbage of any size. So let v be the
    largest value after leaving out (n - 1) // 4 values, but at least one. v is supported, and so is every
    larger value that no gap separates from v. A gap is a distance of more than ``power · (4 + 12/n)``
    between neighbours, which is a factor of at least e⁴ ≈ 55 between the values.

    Garbage above a gap changes nothing: it neither raises the result nor hides other garbage.

    `logs` (n,) are finite logarithms of positive values, which grow with the `power` of a norm.
    """
    n = logs.size
    if n < 2:
        return inf
    least = max(0, n - 1 - max(1, (n - 1) // 4))
    upper = np.sort(np.partition(logs, least)[least:])
    gaps = np.flatnonzero(np.diff(upper) > power * (_GAP + _GAP_OF_FEW / n))
    return float(upper[gaps[0]]) if gaps.size else inf


_LONGEST = 10.0
"""The largest norm that counts fully, in multiples of the median norm. A longer update counts in the mean as
if it were scaled down to this norm."""


def mean_weights(sizes: Floats, norms: Floats) -> Floats:
    """Return (n,) the weight of each update in the mean of n updates: λ_i min(1, 10 median/||u_i||).

    Without the limit, one huge update would determine the mean, and all other updates would be about equally
    far from this mean.

    `sizes` (n,) are the clients' data sizes, > 0; λ_i is a size divided by the sum of the sizes of finite
    updates. `norms` (n,) are ||u_i||; the median is over the finite norms above 0. An update whose norm is
    not finite has the weight 0.
    """
    usable = np.isfinite(norms)
    shares = np.where(usable, sizes, 0.0)
    moving = norms[usable & (norms > 0)]
    limit = _LONGEST * float(np.median(moving)) if moving.size else 0.0
    scales = np.divide(limit, norms, out=np.ones(norms.size), where=usable & (norms > limit))
    weights: Floats = shares / (shares.sum() or 1.0) * scales
    return weights
