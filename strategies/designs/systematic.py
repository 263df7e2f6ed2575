"""Systematic draws in random order: k distinct clients.

Madow, "On the Theory of Systematic Sampling, II" (1949); Hartley and Rao, "Sampling with Unequal
Probabilities and without Replacement" (1962). `numerics.fixed_size_sampling` has the algorithm; if there are
very many clients, `inclusion` has another one with the same π.
"""

import numpy as np

from ..numerics.arrays import Floats
from ..numerics.sampling import Draw
from .base import Features
from .inclusion import distinct, inclusion


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k distinct clients; `features` is not used."""
    pi = inclusion(scores, k)
    clients = pi.fixed_size(rng)
    return distinct(clients, pi.of(clients))
