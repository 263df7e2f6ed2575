"""Draws in two phases: first candidates, then the cohort among them. So a design reads the features of a few.

In the first phase, C candidates are drawn with π' = min(1, c' s) and fixed size; in the second phase the
design draws k of them with π'' = π/π', where π = min(1, c s). So client m is drawn with probability
π' π'' = π, and W_m = 1/π_m is unbiased. As c <= c', all candidates with π' < 1 have the same π'' = c/c',
their number is fixed, and all clients with π' = 1 are always candidates. So the sum of π'' over the
candidates is the same in every draw. As its mean is the sum of π, it is k, and the second phase can have a
fixed size, too.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..numerics.arrays import Bools, Floats, Ints
from ..numerics.fixed_size_sampling import systematic
from ..numerics.sampling import Draw
from .base import Features
from .inclusion import distinct, inclusion

NUMBER, TIMES_K = 500, 3
"""There are NUMBER candidates, or TIMES_K k if that is more, or all clients. The fewer, the more variance is
left by the first phase, about k/C of that of k independent draws."""

FEWEST_KNOWN = 4
"""With fewer known clients among the candidates, the features say too little, and the draw is systematic."""

NOISE = 1e-3
"""Random numbers of this relative size tell clients apart that have the same features."""

SMALLEST_VARIANCE = 1e-6
"""Components are left out if their variance is below this share of the largest component's."""


class Candidates(NamedTuple):
    """The c >= 2 candidates that are not drawn for certain."""

    pi: Floats  # (c,) π'' in (0, 1), the probability to be drawn in the second phase; the sum is an integer
    components: Floats  # (c, q) the components of their expanded features, largest first, q >= 1


def draw_among_candidates(
    scores: Floats,
    k: int,
    rng: np.random.Generator,
    features: Features | None,
    most: int,
    draw: Callable[[Candidates, np.random.Generator], Ints],
) -> Draw:
    """Draw k clients by `most` components of features: `draw` draws those that are not certain."""
    pi = inclusion(scores, k)
    if features is None:
        clients = pi.fixed_size(rng)
        return distinct(clients, pi.of(clients))
    chance = pi.resized(max(NUMBER, TIMES_K * k))
    clients = chance.fixed_size(rng)
    second: Floats = np.minimum(pi.of(clients) / chance.of(clients), 1.0)
    certain, rest = clients[np.flatnonzero(second == 1)], np.flatnonzero(second < 1)
    components = None
    if rest.size:
        components = _components(features(clients[rest]), pi.of(clients[rest]), second[rest], most, rng)
    if components is None:
        drawn = clients[systematic(second, rng)]
    else:
        drawn = np.concatenate([certain, clients[rest[draw(Candidates(second[rest], components), rng)]]])
    return distinct(drawn, pi.of(drawn))


def _components(x: Floats, pi: Floats, second: Floats, most: int, rng: np.random.Generator) -> Floats | None:
    """Return (c, q) the leading components of y_m = x_m/π_m minus its mean; None if y says nothing.

    The estimate of the sum of x is a sum of y over the cohort. If clients were drawn independently, it would
    have the covariance sum π''(1 - π'') y y^T, whose eigenvectors are the directions of the components. An
    unknown client gets the mean of the known, x_m = π_m (sum of x)/(sum of π), so its y is 0.
    """
    known: Bools = np.logical_and.reduce(np.isfinite(x), axis=1)
    if np.count_nonzero(known) < FEWEST_KNOWN:
        return None
    x = np.where(known[:, None], x, 0.0)
    x = x / (np.abs(x).max() or 1.0)  # so that no product overflows
    relative = np.maximum(pi / pi.max(), 1e-100)  # a smaller π may have been rounded to 0
    y = x / relative[:, None]
    mean = x.sum(axis=0) / relative[known].sum()
    y = np.where(known[:, None], y - mean, 0.0)
    y /= np.abs(y).max() or 1.0
    values, vectors = np.linalg.eigh((y * (second * (1 - second))[:, None]).T @ y)
    kept = np.flatnonzero(values > SMALLEST_VARIANCE * values[-1])[::-1][:most]
    if not kept.size or values[-1] < 1e-20:
        return None
    found: Floats = y @ vectors[:, kept]
    found += NOISE * found.std(axis=0) * rng.standard_normal(found.shape)
    return found
