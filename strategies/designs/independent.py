"""Independent draws with replacement, each in proportion to the scores.

Hansen and Hurwitz, "On the Theory of Sampling from Finite Populations" (1943).
"""

import numpy as np

from ..numerics.arrays import Floats
from ..numerics.sampling import Draw, draw_with_replacement
from .base import Features


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k times; a client may be drawn repeatedly. `features` is not used."""
    return draw_with_replacement(scores, k, rng)
