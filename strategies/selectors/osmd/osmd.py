"""OSMD: learns p from the norms of the updates, by online stochastic mirror descent.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback",
Algorithm 1, with the rate of Corollary 2 (v1) or Corollary 7 (v2).
"""

from dataclasses import dataclass

from ..settings import setting
from .adaptive_osmd import AdaptiveOSMDSelector
from .base import ExpertsSettings


@dataclass(frozen=True)
class OSMDSettings(ExpertsSettings):
    """Settings of OSMD; the defaults are the paper's, apart from the source of ā and β = 0."""

    variation: float = setting(
        0.0,
        low=0.0,
        high=1e9,
        doc="how far the best distribution moves over all rounds (L1 norm); a larger value: a larger rate",
    )


class OSMDSelector(AdaptiveOSMDSelector):
    """Learns one distribution p with one learning rate η.

    With a_m = λ_m² ||g_m||² and the importance W of the draw::

        p_m <- project(p_m exp(η W_m a_m / (K p_m²)), floor α/M)                      (eq. 7, Proposition 1)

        v1:  η = K² α³/(M³ ā) sqrt((log M + 2 β log(M/α)) / (2T)) multiplier          (eq. 11)
        v2:  η = K  α³/(M³ ā) sqrt((2 log M + 4 β log(M/α)) / T)  multiplier          (eq. 20)

    β is the setting `variation`: the total variation of the best distribution over T rounds, which is unknown
    in practice. With β = 0, OSMD is the expert e = 1 of Adaptive-OSMD, which has the smallest learning rate.
    `AdaptiveOSMDSelector` describes the settings, ā, T, and what happens if clients join or are removed. If
    the best distribution changes, or early in a run in which a few clients have large norms, the faster
    experts of Adaptive-OSMD are better. With a `learning_rate_multiplier` of 1, p stays near uniform.
    """

    name = "osmd"
    summary = "by past norms, learned online"
    settings_type = OSMDSettings
    _settings: OSMDSettings

    @property
    def _variation(self) -> float:
        return self._settings.variation

    def _num_experts(self, num_rounds: int) -> int:
        return 1
