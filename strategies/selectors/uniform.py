"""Uniform sampling: every client that is here is as likely as any other (McMahan et al. 2017, FedAvg)."""

import numpy as np

from ..numerics.arrays import Floats
from ..numerics.sampling import Draw, draw_simple_random
from .probability import ProbabilitySelector


class UniformSelector(ProbabilitySelector):
    """p_m = 1/M.

    With ``replacement=False`` it is simple random sampling: inclusion probability K/n (what
    ``Selection.probabilities`` holds then) and W = n/K for everyone, n being how many are here. This is the
    exact fixed-size design; the successive weights of OSMD's Algorithm 6 would only add variance.
    """

    name = "uniform"

    def _distribution(self) -> Floats:
        p: Floats = self._living / max(1, self._living.sum())
        return p

    def _draw(self, p: Floats, k: int, rng: np.random.Generator) -> Draw:
        if self._settings.replacement:
            return super()._draw(p, k, rng)
        return draw_simple_random(p.size, k, rng)
