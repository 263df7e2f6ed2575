"""Stratified draws: one in each k-th of the running sum of the scores.

Cochran, "Sampling Techniques" (1977), chapter 5. The variance is at most that of independent draws.
"""

import numpy as np

from ..numerics.arrays import Floats
from ..numerics.sampling import Draw
from .base import Features
from .running_sum import draw_at


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k times with replacement; clients that follow each other are seldom drawn together."""
    return draw_at(scores, one_in_each(k, rng))


def one_in_each(k: int, rng: np.random.Generator) -> Floats:
    """Return (k,) ascending numbers: one uniform number from each of k equal parts of [0, 1)."""
    return np.minimum((np.arange(k) + rng.random(k)) / k, np.nextafter(1, 0))
