"""Poisson sampling: each client is drawn or not, independently of all others.

Hájek, "Asymptotic Theory of Rejective Sampling with Varying Probabilities from a Finite Population" (1964).
"""

import numpy as np

from ..numerics.arrays import Floats
from ..numerics.sampling import Draw
from .base import Features
from .inclusion import attainable, distinct, inclusion_probabilities


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k clients on average, perhaps none. `features` is not used."""
    pi = inclusion_probabilities(scores, attainable(scores, k))
    clients = np.flatnonzero(rng.random(pi.size) < pi)
    return distinct(clients, pi[clients])
