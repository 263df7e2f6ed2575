"""Designs: how a cohort is drawn from scores, with exact probabilities and unbiased weights."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ..numerics.arrays import Floats
from ..numerics.sampling import Draw
from . import balanced, ordered, simple, spread, stratified
from .base import Design, Features

DESIGNS: Mapping[str, Design] = MappingProxyType(
    {
        design.name: design
        for design in (
            Design("independent", False, False, simple.independent),
            Design("stratified", False, False, stratified.draw),
            Design("systematic", True, False, simple.systematic),
            Design("poisson", False, False, simple.poisson),
            Design("ordered", True, True, ordered.draw),
            Design("spread", True, True, spread.draw),
            Design("balanced", True, True, balanced.draw),
        )
    }
)
"""All designs by name."""


def draw(
    name: str, scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None
) -> Draw:
    """Draw about k of the available clients with a design.

    ``name``: a key of `DESIGNS`. ``scores`` (n,): how often each available client is to be drawn, relative to
    the others; finite, >= 0, not all 0. ``k``: K, the expected number of draws, 1 <= k < n. ``rng``: the
    source of all random numbers of the draw. ``features``: what is remembered of each client's updates, see
    `Features`. Without features, the designs that use them draw as "systematic".

    Returns positions in `scores`, and importance weights W with E[W_m] = 1 for each client with a positive
    score.

    Raises a ValueError if there is no such design, or no score is positive.
    """
    if name not in DESIGNS:
        raise ValueError(f"design = {name!r}: must be one of {', '.join(map(repr, DESIGNS))}")
    return DESIGNS[name].draw(scores, k, rng, features)


__all__ = ["DESIGNS", "Design", "Features", "draw"]
