"""Designs: how a cohort is drawn from scores, with exact probabilities and unbiased weights."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ..numerics.arrays import Floats
from ..numerics.sampling import Draw
from . import balanced, independent, ordered, poisson, spread, stratified, systematic
from .base import Design, Features

DESIGNS: Mapping[str, Design] = MappingProxyType(
    {
        design.name: design
        for design in (
            Design("independent", False, False, independent.draw),
            Design("stratified", False, False, stratified.draw),
            Design("systematic", True, False, systematic.draw),
            Design("poisson", False, False, poisson.draw),
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
    """Draw k of n clients with the design `name`, see `Design`."""
    if name not in DESIGNS:
        raise ValueError(f"design = {name!r}: must be one of {', '.join(map(repr, DESIGNS))}")
    return DESIGNS[name].draw(scores, k, rng, features)


__all__ = ["DESIGNS", "Design", "Features", "draw"]
