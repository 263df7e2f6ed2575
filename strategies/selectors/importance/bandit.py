"""The base of the bandit baselines of the OSMD paper, which need the number of rounds in advance."""

import numpy as np

from ...numerics.arrays import Array
from ..base import Selector
from ..probability import ProbabilitySelector

LARGEST_RATIO = 1e30
"""The limit of sqrt(a_m) / sqrt(reference), where a_m = λ_m² ||g_m||². The quotient may exceed 1 if the
reference is a setting or a mean over clients."""


class BanditSelector(ProbabilitySelector):
    """A selector that requires `num_rounds`, T.

    T is part of the state: neither a resume with another `num_rounds` nor rounds beyond T change it.
    """

    state_axes = Selector.state_axes | {
        "num_rounds": (),  # T
        # The largest product of a size and a norm so far, or sqrt(L) in the same unit if VRB's `bound` L is
        # given; 0 before the first norm.
        "largest": (),
    }

    def _initial_state(self) -> dict[str, Array]:
        return {"num_rounds": np.array(self._horizon()), "largest": np.array(0.0)}
