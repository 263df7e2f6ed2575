"""What the bandit baselines of the OSMD paper share: a horizon, and a_m in a unit that drops out."""

import numpy as np

from ...numerics.arrays import Array
from ..base import Selector
from ..probability import ProbabilitySelector

LARGEST_RATIO = 1e30
"""sqrt(a) is clipped to this times its reference, which it may exceed where the reference is a setting."""


class BanditSelector(ProbabilitySelector):
    """T is `num_rounds` and required; a run that goes on beyond T, or is resumed with another, keeps it."""

    state_axes = Selector.state_axes | {
        "num_rounds": (),  # T
        "largest": (),  # the largest size times norm so far; 0 until there is one
    }

    def _initial_state(self) -> dict[str, Array]:
        return {"num_rounds": np.array(self._horizon()), "largest": np.array(0.0)}
