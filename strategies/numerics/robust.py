"""Limits of plausible values where some are lies, from the quartiles of the bulk of the values."""

from typing import NamedTuple

import numpy as np

from .arrays import Floats

_QUARTILE = 0.6744897501960817
"""The distance of a normal distribution's quartile from its median, in standard deviations."""
_LOWER_SHARE = 0.5
"""How much the spread of small values counts for that of large ones: very small values suggest, but do not
prove, that very large ones are plausible."""
_PRIOR_VALUES = 3
"""The assumed spread counts as this many values."""
_PASSES = 4
"""How often the values above the limit are dropped, and the limit computed anew."""


class Bulk(NamedTuple):
    """The location of most values.

    Attributes
    ----------
    centre : float
        Their median.
    spread : float
        The larger of two distances from the median, in standard deviations of a normal distribution: that of
        the upper quartile, and half that of the lower one.
    margin : float
        A value is plausible up to this far above the centre.
    """

    centre: float
    spread: float
    margin: float


def bulk(values: Floats, *, deviations: float, least: float, prior: float) -> Bulk:
    """Return the location of most values, and how far above it a value is plausible.

    The margin is ``max(least, deviations · spread)``. Values above it are dropped and the rest is judged
    again, so that lies that raised the upper quartile gain nothing. Quartiles hold as long as fewer than a
    quarter of the values are lies. The upper quartile decides, because a median absolute deviation is 0 where
    most values agree, and would reject all others.

    Parameters
    ----------
    values : ndarray, shape (n,)
        Finite, n >= 1; logarithms if the judged quantity is positive.
    deviations : float
        The number of standard deviations above the centre that is plausible, > 0.
    least : float
        Least margin, >= 0.
    prior : float
        The spread assumed before there are values, >= 0; it counts as three values.

    Returns
    -------
    Bulk
        It takes one sort.
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
    """Return a quantile of the first `count` of ascending values, interpolated linearly."""
    place = share * (count - 1)
    below = int(place)
    above = min(below + 1, count - 1)
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))
