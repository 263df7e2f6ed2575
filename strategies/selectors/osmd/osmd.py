"""OSMD: learns p from the norms of the updates, by online stochastic mirror descent.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback",
Algorithm 1, with the rate of eq. 11 (Corollary 2).
"""

from .adaptive_osmd import AdaptiveOSMDSelector


class OSMDSelector(AdaptiveOSMDSelector):
    """One distribution p, one rate η.

    With a_m = λ_m² ||g_m||² / ā and the importance W of the draw::

        p_m <- project(p_m exp(η W_m a_m / (K p_m²)), floor α/M)      (eqs. 7 and 8, Proposition 1)

        η   = B α³/M³ sqrt((log M + 2 log(M/α) TV)/(2T)) multiplier, B = K or K²   (eq. 11), with TV = 0

    TV, how far the best distribution moves in T rounds, is unknown. With TV = 0 this is the expert e = 1 of
    Adaptive-OSMD, the slowest; see there for the settings, ā (estimated from the replies), T, joiners and
    leavers. It suits a best distribution that does not move. Where it moves, or early in a run with a few
    large norms, the faster experts of Adaptive-OSMD are better, and with a multiplier of 1 OSMD hardly leaves
    uniform sampling.
    """

    name = "osmd"

    def _num_experts(self, num_rounds: int) -> int:
        return 1
