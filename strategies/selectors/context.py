"""The input of a selection: the arguments of `Selector.select`, checked once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..numerics.arrays import Floats, Ints
from ..numerics.streams import generator
from .presence import NOBODY, Presence


@dataclass(frozen=True, eq=False)
class RoundContext:
    """What is known about a round when its clients are selected."""

    seed: int  #: the run's seed
    round: int  #: >= 0
    available: Presence  #: which clients are available
    #: How many clients (or draws) to select, >= 0: the argument `budget` of `Selector.select`, rounded down;
    #: or `clients_per_round` if `budget` is not given.
    k: int
    #: (n,) the polled clients, distinct, in the order of the poll; empty if the selector does not poll
    candidates: Ints = field(default_factory=lambda: NOBODY)
    #: (n,) of the candidates, by name; NaN = no answer
    reports: Mapping[str, Floats] = field(default_factory=dict)
    draw: int = 0  #: how many selections were made before this one in the same round

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the random generator for a purpose in this selection, see `numerics.streams`."""
        return generator(self.seed, self.round, f"{purpose} {self.draw}" if self.draw else purpose)

    def answered(self, values: Floats) -> tuple[Ints, Floats]:
        """Return (candidates, values) of available candidates whose value, of `values` (n,), is finite."""
        answered = np.isfinite(values)
        if self.available.count < self.available.registered.size:
            answered &= self.available.mask[self.candidates]
        if answered.all():
            return self.candidates, values
        return self.candidates[answered], values[answered]
