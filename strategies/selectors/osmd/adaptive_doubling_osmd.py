"""Adaptive-Doubling-OSMD: Adaptive-OSMD without a horizon, restarted at doubling intervals.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback",
Algorithm 5 (v1: appendix C.4), Algorithm 6 (v2: appendix A.1).
"""

from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Array, Floats, Ints
from ..records import Feedback, Selection
from ..settings import setting
from .adaptive_osmd import AdaptiveOSMDSelector, AdaptiveOSMDSettings
from .base import ExpertsSelector


@dataclass(frozen=True)
class AdaptiveDoublingOSMDSettings(AdaptiveOSMDSettings):
    """Settings of Adaptive-Doubling-OSMD; the defaults are the paper's, apart from γ and the source of ā."""

    warm_start: bool = setting(
        True, doc="a block starts from the last distribution (False: from the initial one)"
    )
    largest_of: str = setting(
        "block",
        choices=("block", "round"),
        doc="ā is the largest observed λ²‖g‖² of the previous block, or of the last round of that block",
    )


class AdaptiveDoublingOSMDSelector(AdaptiveOSMDSelector):
    """Adaptive-OSMD in blocks b = 1, 2, ... of T_b = 2^(b-1) rounds; block b ends at round 2^b - 1.

    Block b has the learning rates η_e, the number of experts E_b and the γ of Adaptive-OSMD with T = T_b::

        v1:  η_e = 2^(e - b/2 - 1)   K² α³/(M³ ā_b)   sqrt(log M)   multiplier       (eq. 15; E_b: eq. 16)
        v2:  η_e = 2^(e - b/2 - 1/2) K  α³/(M³ A_max) sqrt(2 log M) multiplier       (eq. 27; E_b: eq. 28)

    A block of T_b rounds makes T_b - 1 steps, because Algorithm 4 ends with round T - 1. The norms of the
    last round of a block only affect ā. The next block starts from the distribution of this last round if
    `warm_start` is True, and otherwise from the initial distribution.

    a is λ² ||g||². The bound ā_b of a (A_max in v2) comes from the first of these sources that is given:

    - the setting `a_max`;
    - in v2 with ``ask_norms=True``, the largest a of the clients that answer;
    - the largest a that was observed in the whole block b - 1 (as in the text of appendix C.4), or only in
      the last round of block b - 1 (as in the appendix's formula); the setting `largest_of` says which. If
      this a is 0, block b keeps ā_(b-1). Line 13 of Algorithm 5 takes the largest a of all clients, which
      cannot be observed.

    In v1, ``ask_norms=True`` determines only ā_1. Block 1 makes no step, and ā_2 is observed in round 1. So
    asking has an effect only if no norm above 0 is observed in round 1.

    With an observed ā, no step is made until a norm above 0 is observed. This ā decreases with the norms, so
    the experts learn faster. But if a block does not draw the clients with the largest norms, ā is too small
    for the next block, and steps are too large.

    The number of a round determines its block, so a run may be extended, and `num_rounds` is not used. The
    `update` of a block's last round sets up the next block; if that call is missing, the next `update` does.
    """

    name = "adaptive-doubling-osmd"
    summary = "as adaptive-osmd, without a known end"
    settings_type = AdaptiveDoublingOSMDSettings
    _settings: AdaptiveDoublingOSMDSettings
    state_axes = ExpertsSelector.state_axes | {
        "block": (),  # b, from 1
        "reference": (),  # sqrt(ā) of this block, with sizes instead of λ; 0 if ā is not known yet
        # sqrt of the largest a observed in this block, or with `largest_of` = "round" in the latest round
        "largest": (),
    }

    def _initial_state(self) -> dict[str, Array]:
        return {
            **self._started(self._num_experts(1)),
            "bound": np.array(0.0),
            "block": np.array(1),
            "reference": np.array(0.0),
            "largest": np.array(0.0),
        }

    def _fixed_reference(self) -> float:
        """Return sqrt(ā) if fixed for all blocks, else 0. In v1, norms before round 1 fix block 1 only."""
        asked_once = self._settings.rates == "v1" and self._settings.a_max is None
        return 0.0 if asked_once else super()._fixed_reference()

    def _learn_first(self, clients: Ints, norms: Floats) -> dict[str, Array]:
        changes = super()._learn_first(clients, norms)
        return {**changes, "reference": changes["bound"].copy()}

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        block, reference = int(self._array("block")), float(self._array("reference"))
        clients, importance, roots = self._roots(selection, feedback)
        now = float(roots.max(initial=0.0))
        largest = now
        if self._settings.largest_of == "block":
            largest = max(float(self._array("largest")), now)
        if round + 1 < 2**block:
            reference = self._fixed_reference() or reference or now
            changes = {"largest": np.array(largest), "reference": np.array(reference)}
            if now > 0:
                changes |= self._descend(clients, importance, roots, reference, 2.0 ** (block - 1))
            return changes
        block = (round + 1).bit_length()
        start = self._restarted(self._num_experts(2 ** (block - 1)), self._settings.warm_start)
        return start | {
            "block": np.array(block),
            "reference": np.array(self._fixed_reference() or largest or reference),
            "largest": np.array(0.0),
        }
