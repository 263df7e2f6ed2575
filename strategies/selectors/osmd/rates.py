"""The learning rates of the OSMD family, in the two versions of its paper.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback":
"v1" is the version with appendices C to H; "v2" is the later version on arXiv (with Liu, Zhang, Zhou and
Chen). M is the number of registered clients, K the number of draws per round, and T the number of rounds. The
floor is α/M. a_m = λ_m² ||g_m||², and ā is a bound of all a_m: max_m a_m in v1, and A_max in v2. η is the
learning rate of an expert, and γ the rate of the experts' weights. The selectors compute with a_m/ā instead
of a_m, so the functions return η ā and γ ā instead of η and γ.
"""

import math


def smallest_rate(version: str, m: int, k: int, alpha: float, rounds: float, variation: float) -> float:
    """Return η ā of OSMD, where β >= 0 (`variation`) is the total variation of the best distribution.

    ::

        v1:  K² α³/M³ sqrt((log M + 2 β log(M/α)) / (2T))         eq. 11; with β = 0 the η_1 of eq. 13
        v2:  K  α³/M³ sqrt((2 log M + 4 β log(M/α)) / T)          eq. 20; with β = 0 the η_1 of eq. 22
    """
    spread = math.log(m) + 2 * variation * math.log(m / alpha)
    if version == "v1":
        return k**2 * (alpha / m) ** 3 * math.sqrt(spread / (2 * rounds))
    return k * (alpha / m) ** 3 * math.sqrt(2 * spread / rounds)


def num_experts(version: str, m: int, alpha: float, rounds: int) -> int:
    """Return the number of experts E.

    The rate of each expert is twice the rate of the expert before it. With E experts, the largest rate is
    large enough for the largest possible total variation of the best distribution::

        v1:  floor(log2(1 + 4 log(M/α)/log M (T - 1)) / 2) + 1    eq. 14, eq. 16
        v2:  ceil( log2(1 + 4 log(M/α)/log M (T - 1)) / 2) + 1    eq. 23, eq. 28
    """
    log_m = math.log(max(2, m))  # for one client, E is the same as for two
    doublings = math.log2(1 + 4 * (log_m - math.log(alpha)) / log_m * (rounds - 1)) / 2
    return (math.floor if version == "v1" else math.ceil)(doublings) + 1


def meta_rate(m: int, k: int, alpha: float, rounds: float, largest: float | None) -> float:
    """Return γ ā, the rate of the experts' weights.

    ::

        printed:     α/M sqrt(8K/(T ā)) ā = α/M sqrt(8K ā/T)      Theorem 3 (v1), Theorem 8 (v2)
        scale-free:  sqrt(8/T) α² K/M²

    The printed γ depends on the unit of the gradients. The scale-free γ follows from Hoeffding's lemma for
    losses in [0, M² ā/(α² K)], which is the range of the estimates (eq. 6) if a_m <= ā.

    `largest` is ā, for the printed γ. None gives the scale-free γ.
    """
    if largest is None:
        return math.sqrt(8 / rounds) * k * (alpha / m) ** 2
    return alpha / m * math.sqrt(8 * k * largest / rounds)
