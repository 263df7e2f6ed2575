"""The local pivotal method: clients whose features are alike are seldom drawn together.

Grafström, Lundström and Schelin, "Spatially Balanced Sampling through the Pivotal Method" (2012).
"""

import numpy as np

from ..numerics.arrays import Floats, Ints
from ..numerics.sampling import Draw
from .base import Features
from .candidates import Candidates, draw_among

MOST = 500


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k distinct clients that are unlike each other."""
    return draw_among(scores, k, rng, features, MOST, _draw)


def _draw(candidates: Candidates, rng: np.random.Generator) -> Ints:
    p, y = candidates.pi.copy(), candidates.expanded
    live = np.arange(p.size)
    while live.size > 1:
        i = live[rng.integers(live.size)]
        distance = ((y[live] - y[i]) ** 2).sum(axis=1)
        distance[live == i] = np.inf
        j = rng.choice(live[distance == distance.min()])
        total = p[i] + p[j]
        low, high = max(0.0, total - 1), min(1.0, total)
        p[[i, j]] = (high, low) if rng.random() * (high - low) < p[i] - low else (low, high)
        live = live[(p[live] > 1e-9) & (p[live] < 1 - 1e-9)]
    return np.flatnonzero(p > 0.5)
