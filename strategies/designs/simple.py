"""Designs that need no features and no order of the clients.

Independent draws with replacement: Hansen and Hurwitz, "On the Theory of Sampling from Finite Populations"
(1943). Systematic draws in random order: Madow, "On the Theory of Systematic Sampling, II" (1949); Hartley,
Rao, "Sampling with Unequal Probabilities and without Replacement" (1962); `numerics.fixed_size_sampling` has
the algorithm, and for very many clients `inclusion` has another one with the same π. Poisson sampling: Hájek,
"Asymptotic Theory of Rejective Sampling with Varying Probabilities from a Finite Population" (1964).
"""

import numpy as np

from ..numerics.arrays import Floats
from ..numerics.sampling import Draw
from .base import Features
from .inclusion import distinct, inclusion
from .running_sum import draw_at


def independent(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k times; a client may be drawn repeatedly. `features` is not used."""
    return draw_at(scores, rng.random(k))


def systematic(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k distinct clients; `features` is not used."""
    pi = inclusion(scores, k)
    clients = pi.fixed_size(rng)
    return distinct(clients, pi.of(clients))


def poisson(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw each client or not, independently: k on average, perhaps none; `features` is not used."""
    pi = inclusion(scores, k)
    clients = pi.coins(rng)
    return distinct(clients, pi.of(clients))
