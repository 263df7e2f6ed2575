"""Poisson sampling: each client is drawn or not, independently of all others.

Hájek, "Asymptotic Theory of Rejective Sampling with Varying Probabilities from a Finite Population" (1964).
"""

import numpy as np

from ..numerics.arrays import Floats
from ..numerics.sampling import Draw
from .base import Features
from .inclusion import distinct, inclusion


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k clients on average, perhaps none; `features` is not used."""
    pi = inclusion(scores, k)
    clients = pi.coins(rng)
    return distinct(clients, pi.of(clients))
