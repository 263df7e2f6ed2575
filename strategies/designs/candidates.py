"""Draws in two phases: first candidates, then the cohort among them. So a design reads the features of a few.

In the first phase, C candidates are drawn with π' = min(1, c' s) by `systematic`; in the second phase the
design draws k of them with π'' = π/π', where π = min(1, c s). So client m is drawn with probability
π' π'' = π, and W_m = 1/π_m is exact, whatever the candidates are. As c <= c', all candidates with π' < 1
have the same π'' = c/c', and all clients with π' = 1 are always candidates. So the sum of π'' over the
candidates is always the same, and as its mean is the sum of π, it is k. So the second phase has a fixed size.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..numerics.arrays import Floats, Ints
from ..numerics.fixed_size_sampling import systematic
from ..numerics.sampling import Draw
from .base import Features
from .inclusion import distinct, inclusion

FEWEST_KNOWN = 4


class Candidates(NamedTuple):
    """The clients among which the second phase draws; none of them is drawn for certain."""

    pi: Floats  # (c,) π'' in (0, 1), the probability to be drawn in the second phase; the sum is an integer
    expanded: Floats  # (c, d) features divided by π, minus their mean; 0 for unknown clients


def draw_among(
    scores: Floats,
    k: int,
    rng: np.random.Generator,
    features: Features | None,
    most: int,
    draw: Callable[[Candidates, np.random.Generator], Ints],
) -> Draw:
    """Draw at most `most` candidates, and k among them with `draw`, which returns positions of candidates."""
    pi = inclusion(scores, k)
    chance = pi.resized(max(k, most))
    first = chance.fixed_size(rng)
    second: Floats = np.minimum(pi.of(first) / chance.of(first), 1.0)
    certain, rest = first[np.flatnonzero(second == 1)], np.flatnonzero(second < 1)
    expanded = None
    if features is not None and rest.size:
        expanded = _expanded(features(first[rest]), pi.of(first[rest]))
    if expanded is None:
        drawn = first[systematic(second, rng)]
    else:
        drawn = np.concatenate([certain, first[rest[draw(Candidates(second[rest], expanded), rng)]]])
    return distinct(drawn, pi.of(drawn))


def _expanded(x: Floats, pi: Floats) -> Floats | None:
    """Return x_m/π_m minus the mean over known clients, 0 for unknown clients; None if that says nothing."""
    known = np.isfinite(x).all(axis=1)
    if np.count_nonzero(known) < FEWEST_KNOWN:
        return None
    x = np.where(known[:, None], x, 0.0)
    x = x / (np.abs(x).max() or 1.0)
    mean = x.sum(axis=0) / pi[known].sum()
    y: Floats = np.where(known[:, None], x / pi[:, None] - mean, 0.0)
    largest = np.abs(y).max()
    return y / largest if largest > 0 else None
