"""Systematic sampling along an order in which neighbours are alike."""

import numpy as np

from ..numerics.arrays import Floats, Ints
from ..numerics.sampling import Draw
from .base import Features
from .candidates import Candidates, draw_among

MOST = 1000


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k distinct clients that are unlike each other."""
    return draw_among(scores, k, rng, features, MOST, _draw)


def _draw(candidates: Candidates, rng: np.random.Generator) -> Ints:
    pi, y = candidates
    order = np.lexsort((rng.random(pi.size), y @ np.linalg.svd(y, full_matrices=False)[2][0]))
    size = round(float(pi.sum()))
    ends = np.cumsum(pi[order])
    steps = np.arange(size)
    at = np.searchsorted(ends, (rng.random() + steps) * (ends[-1] / size), side="right")
    at = np.minimum(np.maximum.accumulate(at - steps) + steps, order.size - size + steps)
    return order[at]
