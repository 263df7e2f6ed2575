"""Adaptive-Doubling-OSMD: Adaptive-OSMD without a horizon, restarted at doubling intervals.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback",
Algorithm 5, with the rates of eq. 15 and the number of experts of eq. 16.
"""

from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Array
from ..records import Feedback, Selection
from ..settings import setting
from .adaptive_osmd import AdaptiveOSMDSelector, AdaptiveOSMDSettings
from .experts import ExpertsSelector


@dataclass(frozen=True)
class AdaptiveDoublingOSMDSettings(AdaptiveOSMDSettings):
    """Settings of Adaptive-Doubling-OSMD; the defaults are the paper's."""

    warm_start: bool = setting(
        True, doc="a block starts from the last mixture (False: from the initial distribution)"
    )


class AdaptiveDoublingOSMDSelector(AdaptiveOSMDSelector):
    """Adaptive-OSMD in blocks b = 1, 2, ... of T_b = 2^(b-1) rounds; block b ends at round 2^b - 1.

    A block has the rates, the number of experts and the γ of Adaptive-OSMD with T = T_b::

        η_e = 2^(e - b/2 - 1) B α³/M³ sqrt(log M) multiplier              (eq. 15, which is eq. 13 with T_b)
        γ   = sqrt(8/T_b) α² K/M²
        E_b = floor(log2(1 + 4 log(M/α)/log M (2^(b-1) - 1)) / 2) + 1     (eq. 16)

    A block starts from the mixture at the end of the last block, or from the initial distribution. ā is the
    largest a observed in the previous block: the printed max over all clients (line 13) cannot be observed,
    and that of one round (the text) is too noisy. A block of norms 0 leaves ā as it was; in the first block,
    and until a norm above 0 is observed, ā is the largest a so far. So a decay of the norms speeds up the
    experts, and after a block without the largest norms the steps are too large: units cancel, but a/ā may
    exceed 1.

    The round's number determines its block, so an extended or resumed run continues, and `num_rounds` is not
    used. A block ends with the update of its last round, or of any later one.
    """

    name = "adaptive-doubling-osmd"
    settings_type = AdaptiveDoublingOSMDSettings
    _settings: AdaptiveDoublingOSMDSettings
    state_axes = ExpertsSelector.state_axes | {
        "block": (),  # b, from 1
        "reference": (),  # sqrt(ā) in the unit of size times norm; 0 until there is one
        "largest": (),  # sqrt of the largest a observed in this block
    }

    def _initial_state(self) -> dict[str, Array]:
        return {
            **self._started(self._num_experts(1)),
            "block": np.array(1),
            "reference": np.array(0.0),
            "largest": np.array(0.0),
        }

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        block, reference = int(self._array("block")), float(self._array("reference"))
        clients, importance, roots = self._roots(selection, feedback)
        largest = max(float(self._array("largest")), roots.max(initial=0.0))
        changes: dict[str, Array] = {}
        if roots.any():
            if block == 1 or reference == 0:
                reference = largest
            changes = self._descend(clients, importance, roots, reference, 2.0 ** (block - 1))
            changes |= {"reference": np.array(reference), "largest": np.array(largest)}
        if round + 1 < 2**block:
            return changes
        block = (round + 1).bit_length()
        start = self._restarted(
            self._num_experts(2 ** (block - 1)), changes if self._settings.warm_start else None
        )
        return start | {
            "block": np.array(block),
            "reference": np.array(largest if largest > 0 else reference),
            "largest": np.array(0.0),
        }
