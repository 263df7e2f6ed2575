"""The local pivotal method: clients whose features are alike are seldom drawn together.

Grafström, Lundström and Schelin, "Spatially Balanced Sampling through the Pivotal Method" (2012). Two
clients that are each other's nearest compete: one of them gets as much of both probabilities as it can take.
Here all such pairs compete at once.
"""

import numpy as np

from ..numerics.arrays import Floats, Ints
from ..numerics.sampling import Draw
from .base import Features
from .candidates import Candidates, draw_among_candidates

COMPONENTS = 8

TILE = 640
"""Nearest clients are sought among at most so many, neighbours in the first component."""


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k distinct clients by distances of x/π, by which competing clients add to the variance."""
    return draw_among_candidates(scores, k, rng, features, COMPONENTS, _draw)


def _draw(candidates: Candidates, rng: np.random.Generator) -> Ints:
    p, components = candidates.pi.copy(), candidates.components
    live = np.argsort(components[:, 0])
    while live.size > 1:
        tiles = np.array_split(live, -(-live.size // TILE))
        pairs = np.concatenate([tile[_nearest_pairs(components[tile])] for tile in tiles], axis=1)
        total = p[pairs].sum(axis=0)
        low, high = np.maximum(total - 1, 0), np.minimum(total, 1)
        first_wins = rng.random(total.size) * (high - low) < p[pairs[0]] - low
        p[pairs] = np.where(first_wins, (high, low), (low, high))
        live = live[(p[live] > 0) & (p[live] < 1)]
    return np.flatnonzero(p > 0.5)


def _nearest_pairs(points: Floats) -> Ints:
    """Return (2, s), s >= 1, the pairs of `points` (c, q), c >= 2, that are each other's nearest."""
    squares, ones = (points**2).sum(axis=1), np.ones(len(points))
    distances = np.column_stack([points, ones, squares]) @ np.column_stack([-2 * points, squares, ones]).T
    np.fill_diagonal(distances, np.inf)
    nearest = distances.argmin(axis=1)
    first = np.flatnonzero((nearest[nearest] == np.arange(len(points))) & (nearest > np.arange(len(points))))
    if not first.size:  # rounding made a circle of nearest clients
        first = np.array([0])
    return np.stack([first, nearest[first]])
