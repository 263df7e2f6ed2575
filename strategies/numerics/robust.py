"""What is still plausible among values of which some are lies: limits from the quartiles of the bulk."""

from typing import NamedTuple

import numpy as np

from .arrays import Floats

_QUARTILE = 0.6744897501960817
"""Of a normal distribution, the distance of a quartile from the median in standard deviations."""
_LOWER_SHARE = 0.5
"""What the spread of small values tells of that of large ones: where there are very small clients there need
not be very large ones, but might."""
_PRIOR_VALUES = 3
"""How many values the spread that is assumed beforehand counts for."""
_PASSES = 4
"""How often what lay above the limit is left out and the limit taken anew."""


class Bulk(NamedTuple):
    """Where most values lie.

    Attributes
    ----------
    centre : float
        Their median.
    spread : float
        The distance of the upper quartile from the median, or half that of the lower one where that is more,
        in standard deviations of a normal distribution.
    margin : float
        How far above the centre a value is plausible.
    """

    centre: float
    spread: float
    margin: float


def bulk(values: Floats, *, deviations: float, least: float, prior: float) -> Bulk:
    """Return where most of the values lie, and how far above them a value is plausible.

    The margin is ``max(least, deviations · spread)``. Values above it are left out and the rest is judged
    again, so that liars who raised the upper quartile lose that too. Quartiles hold as long as fewer than a
    quarter of the values are lies. It is the upper one that says what is plausible above; a median absolute
    deviation is 0 where most values agree, and would call the rest lies.

    Parameters
    ----------
    values : ndarray, shape (n,)
        Finite, n >= 1; logarithms where what is judged is positive.
    deviations : float
        How many standard deviations above the centre are plausible, > 0.
    least : float
        Least margin, >= 0.
    prior : float
        The spread assumed before there are values, >= 0; it counts for three of them.

    Returns
    -------
    Bulk
        Costs a sort.
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
