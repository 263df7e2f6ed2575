"""What the bandit baselines of the OSMD paper share: a horizon, and a_m in a unit that drops out."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ...numerics.arrays import Array, Floats, Ints
from ..base import Selector
from ..probability import ProbabilitySelector
from ..records import Feedback, Selection

LARGEST_RATIO = 1e30
"""Bound of sqrt(a) over its reference, which it may exceed where the reference is a setting."""


class BanditSelector(ProbabilitySelector):
    """T is `num_rounds` and required; a run that goes on beyond T, or is resumed with another, keeps it."""

    state_axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **Selector.state_axes,
        "num_rounds": (),  # T
        "largest": (),  # the largest size times norm so far; 0 until there is one
    }

    def _initial_state(self) -> dict[str, Array]:
        if self._num_rounds is None:
            raise ValueError(
                f"num_rounds = None: {self.name} needs the number of rounds (>= 1) for its rates"
            )
        return {"num_rounds": np.array(self._num_rounds), "largest": np.array(0.0)}

    def _roots(self, selection: Selection, feedback: Feedback) -> tuple[Ints, Floats, Floats]:
        """Return clients, importance W and sqrt(a) of those whose norm is usable; sizes stand for λ."""
        clients, importance, norms = self._reported(selection, feedback, feedback.update_norms)
        return clients, importance, self.client_sizes[clients] * np.minimum(norms, 1e150)  # stays finite
