"""OSMD: learn whom to sample from the norms of the updates, by online stochastic mirror descent.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback",
Algorithm 1, with the rate of eq. 11 (Corollary 2).
"""

from .adaptive_osmd import AdaptiveOSMDSelector


class OSMDSelector(AdaptiveOSMDSelector):
    """One distribution p, one rate η.

    With a_m = λ_m² ||g_m||² / ā and the importance W of the draw::

        p_m <- project(p_m exp(η W_m a_m / (K p_m²)), floor α/M)      (eqs. 7 and 8, Proposition 1)

        η   = B α³/M³ sqrt((log M + 2 log(M/α) TV)/(2T)) multiplier, B = K or K²   (eq. 11), with TV = 0

    TV, how far the best distribution moves in T rounds, is unknown; with 0 the rate is the smallest of
    Adaptive-OSMD's, whose expert e = 1 this is: the settings, ā (estimated from the replies) and everything
    about T, joiners and leavers are told there. It suits a best distribution that stands still; where it
    moves, or early on where a few large norms are worth going after, Adaptive-OSMD has faster experts, and
    at a multiplier of 1 this one hardly leaves uniform sampling.
    """

    name = "osmd"

    def _num_experts(self, num_rounds: int) -> int:
        return 1
