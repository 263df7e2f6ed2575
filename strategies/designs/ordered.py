"""Systematic sampling along an order in which neighbours are alike, so that few of them are drawn together.

Survey sampling calls it implicit stratification (Cochran, "Sampling Techniques", 1977, chapter 8). In
federated learning, clustered sampling (Fraboni et al., "Clustered Sampling", 2021) is its relative.
"""

import numpy as np

from ..numerics.arrays import Floats, Ints
from ..numerics.sampling import Draw
from .base import Features
from .candidates import Candidates, draw_among_candidates

COMPONENTS = 4


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k distinct clients that differ in their features."""
    return draw_among_candidates(scores, k, rng, features, COMPONENTS, _draw)


def _draw(candidates: Candidates, rng: np.random.Generator) -> Ints:
    pi = candidates.pi
    size = round(float(pi.sum()))
    order = _serpentine(candidates.components, size, rng)
    ends, steps = np.cumsum(pi[order]), np.arange(size)
    at = np.searchsorted(ends, (rng.random() + steps) * (ends[-1] / size), side="right")
    # If rounding puts two points on one client, or a point beyond the last segment, a neighbour is drawn.
    at = np.minimum(np.maximum.accumulate(at - steps) + steps, order.size - size + steps)
    return order[at]


def _serpentine(components: Floats, size: int, rng: np.random.Generator) -> Ints:
    """Return an order (c,) of the clients in which neighbours are alike.

    They are sorted by the first component and halved; each half is sorted by the next component and halved,
    and so on, until there are about `size` parts. Every second part is sorted downwards, so that parts meet
    in clients that are alike.
    """
    number, width = components.shape
    order = rng.permutation(number)
    for level in range(1 + (size - 1).bit_length()):
        part = np.arange(number) * 2**level // number
        order = order[np.lexsort((components[order, level % width] * (1 - 2 * (part % 2)), part))]
    return order
