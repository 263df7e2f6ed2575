"""The base of the bandit baselines of the OSMD paper, which need the number of rounds in advance."""

import numpy as np

from ...numerics.arrays import Array
from ..base import Selector
from ..probability import ProbabilitySelector

LARGEST_RATIO = 1e30
"""Limit of sqrt(a_m) = λ_m ||g_m|| divided by a reference. The quotient may exceed 1 if the reference is a
setting or a mean over clients."""


class BanditSelector(ProbabilitySelector):
    """A selector that requires `num_rounds`, T.

    T is part of the state: neither a resume with another `num_rounds` nor rounds beyond T change it.
    """

    state_axes = Selector.state_axes | {
        "num_rounds": (),  # T
        "largest": (),  # the largest size times norm so far, or from VRB's `bound`; 0 before the first norm
    }

    def _initial_state(self) -> dict[str, Array]:
        return {"num_rounds": np.array(self._horizon()), "largest": np.array(0.0)}
