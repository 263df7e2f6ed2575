"""Independent draws with replacement, each in proportion to the scores.

Hansen and Hurwitz, "On the Theory of Sampling from Finite Populations" (1943).
"""

import numpy as np

from ..numerics.arrays import Floats
from ..numerics.sampling import Draw
from .base import Features
from .running_sum import draw_at


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k times; a client may be drawn repeatedly. `features` is not used."""
    return draw_at(scores, rng.random(k))
