"""The bounds of the OSMD paper that can be computed: of the regret, of the gradient, and the heterogeneity ζ.

v1 is the first version of the paper, v2 the later one. M is the number of clients, K the number of draws a
round, T the number of rounds, and α/M the floor of p. The loss of a round is ``l_t(p) = (1/K) sum_m a_m/p_m``
with ``a_m = λ_m² ||g_m||²``, and ā is a bound of all a_m. q^t are the probabilities in round t that the
regret is measured against. The distance-generating function is the negative entropy.

v1 bounds the slope of the estimated loss by M³ā/(K²α³). If a client is drawn N_m <= K times in a round, the
slope can exceed this bound by the factor N_m. v2 has M³ā/(Kα³), which holds.
"""

import math
from typing import NamedTuple

import numpy as np

from strategies.numerics.arrays import Floats
from strategies.numerics.projection import project_floored_simplex


class Setting(NamedTuple):
    """The parameters of the bounds: the version of the paper ("v1" or "v2"), M, K and α."""

    version: str
    m: int
    k: int
    alpha: float

    @property
    def _slope(self) -> float:
        """The bound of the estimated loss's slope, divided by ā."""
        return self.m**3 / (self.alpha**3 * self.k ** (2 if self.version == "v1" else 1))

    def _spread(self, variation: float) -> float:
        return math.log(self.m) + 2 * variation * math.log(self.m / self.alpha)


def intrinsic_regret(at: Setting, rate: float, variation: float, largest: Floats) -> float:
    """Return the bound of OSMD's regret against any q^t >= α/M, for any rate η (of losses not divided by ā).

    ::

        v1:  log M/η + 2 log(M/α) TV/η + 2 η sum_t Q_t²,    Q_t = M³ ā_t/(K² α³)    Proposition 3
        v2:  log M/η + 2 log(M/α) TV/η + η/2 sum_t Q_t²,    Q_t = M³ ā_t/(K α³)     Proposition 13

    `variation` is TV, the sum of the L1 distances between q of successive rounds; `largest` (T,) has ā_t.
    """
    steps = (2 if at.version == "v1" else 0.5) * rate * float((largest**2).sum()) * at._slope**2
    return at._spread(variation) / rate + steps


def projection_error(at: Setting, rate: float, q: Floats, roots: Floats) -> float:
    """Return the term that Theorems 1 (v1) and 6 (v2) add for a comparator q (T, M) below α/M.

    It is 8 log(M/α)/η sum_t ψ(q^t, α) + sum_t φ(q^t, α) l_t(q^t), with ψ and φ of eq. 9 (v1), eq. 19 (v2).
    Theorem 6 prints a further factor 1/K before the second sum, although l_t has this factor already. `roots`
    (T, M) are sqrt(a), 0 where q is 0.
    """
    floor = at.alpha / at.m
    below = np.maximum(floor - q, 0).sum(axis=1)
    above = np.maximum(q - floor, 0).sum(axis=1)
    omega = np.divide(below, above, out=np.ones(below.size), where=above > 0)
    phi = omega / (1 - omega * (1 - floor))
    losses = np.divide(roots**2, q, out=np.zeros(q.shape), where=q > 0).sum(axis=1) / at.k
    return float(8 * math.log(at.m / at.alpha) / rate * below.sum() + phi @ losses)


def best_rate_regret(at: Setting, rounds: int, largest: float, variation: float) -> float:
    """Return the bound of OSMD's regret with the rate of the paper, against any q^t >= α/M.

    ::

        v1:  2 sqrt(2) M³ ā/(K² α³) sqrt(T (log M + 2 TV log(M/α)))        eq. 12
        v2:  2 M³ A_max/(K α³) sqrt(T (log M/2 + β log(M/α)))              Corollary 7

    Corollary 1 of v1 (eq. 10) is eq. 12 with the mean of ā_t² for ā². Eq. 21 of v2 prints half of the bound
    above: the factor 2 that follows from Theorem 6 and eq. 20 is missing.
    """
    factor = 2 * math.sqrt(2) if at.version == "v1" else math.sqrt(2)
    return factor * at._slope * largest * math.sqrt(rounds * at._spread(variation))


def ensemble_regret(at: Setting, rounds: int, largest: float, variation: float, experts: int) -> float:
    """Return the bound of Adaptive-OSMD's regret with the printed γ: Theorem 3 (v1), Theorem 8 (v2).

    It is 3/2 of `best_rate_regret` plus (M/α) sqrt(T ā/(8K)) (1 + 2 log E), with E = `experts`.
    """
    return 1.5 * best_rate_regret(at, rounds, largest, variation) + _meta(at, rounds, largest, experts, 1)


def doubling_regret(
    at: Setting, rounds: int, largest: float, variation: float, experts: int, excess: float = 1.0
) -> float:
    """Return the bound of Adaptive-Doubling-OSMD's regret: Theorem 4 (v1), Theorem 10 (v2).

    `experts` is E of the last block; the paper takes eq. 14 (v1) for T rounds, which is not smaller. `excess`
    is C >= 1 of Theorem 4: ā of each block is at most C times the largest a of the block. v2 has no C.
    """
    base = math.sqrt(2) - 1
    if at.version == "v1":
        scale = math.sqrt(2 * (rounds + 1)) / base
        first = (2 * excess + 1) / 2 * best_rate_regret(at, 1, largest, variation)
        return scale * (first + _meta(at, 1, largest, experts, excess))
    first = 3 * best_rate_regret(at, rounds, largest, variation)
    return (first + 2 * _meta(at, rounds, largest, experts, 1)) / base


def _meta(at: Setting, rounds: int, largest: float, experts: int, excess: float) -> float:
    """Return (M/α) sqrt(T ā/(8K)) (C + 2 log E)."""
    return at.m / at.alpha * math.sqrt(rounds * largest / (8 * at.k)) * (excess + 2 * math.log(experts))


# Heterogeneity.


def variance(p: Floats, norms: Floats, mean_norm: Floats) -> Floats:
    """Return V(p, w) (W,) at W models: the variance of one draw's estimate of the gradient (v2, eq. 9).

    ``V(p, w) = (1/M²) sum_m ||∇F_m(w)||²/p_m - ||∇F(w)||²``, with p (M,) or (W, M), norms (W, M) and
    ||∇F(w)|| (W,), where F is the mean of all F_m.
    """
    v: Floats = (norms**2 / p).sum(axis=1) / norms.shape[1] ** 2 - mean_norm**2
    return v


class Heterogeneity(NamedTuple):
    """ζ² of three kinds of sampling: the supremum of V(p, w) over given models w, see `variance`."""

    uniform: float  # ζ_0² (v1), ζ_unif² (v2): of uniform sampling
    # ζ_1² (v1), ζ_fix²(α) (v2): of the best p >= α/M that is the same for all models. It is computed by
    # ascent and is at most a few permille too large.
    fixed: float
    least: float  # ζ_2² (v1), ζ_min² (v2): of the best p of each model
    best: Floats  # (M,) p of `fixed`


def heterogeneity(norms: Floats, mean_norm: Floats, alpha: float = 1e-9, steps: int = 3000) -> Heterogeneity:
    """Return ζ² over W models, for the floor α/M of ζ_fix.

    ζ_fix² is min_p max_w V(p, w). Given weights ω of the models with sum 1, the p that minimises the weighted
    mean of V is proportional to the root of the weighted mean of ||∇F_m||². A multiplicative ascent of some
    `steps` moves ω towards the models with the largest V; the best p on the way is returned.
    """
    count, m = norms.shape
    uniform = variance(np.full(m, 1 / m), norms, mean_norm)
    with np.errstate(divide="ignore"):
        least = norms.mean(axis=1) ** 2 - mean_norm**2
        log_weights, best, chosen = np.zeros(count), float(uniform.max()), np.full(m, 1 / m)
        for step in range(1, steps + 1):
            weights = np.exp(log_weights - log_weights.max())
            mean = weights / weights.sum() @ norms**2
            p = project_floored_simplex(0.5 * np.log(mean), alpha / m)
            v = variance(p, norms, mean_norm)
            if v.max() < best:
                best, chosen = float(v.max()), p
            log_weights = log_weights + 2 / math.sqrt(step) * v / (np.abs(v).max() or 1.0)
    return Heterogeneity(float(uniform.max()), best, float(least.max()), chosen)


# The gradient.


class Descent(NamedTuple):
    """The constants of the problem and of the training in the bounds of the gradient."""

    # μ, and L of F; μ <= 1/L. For FedAvg: the product of the global and the local step size, and an L that
    # holds for all F_m.
    step_size: float
    smoothness: float
    gap: float  # D^F = F(w_0) - F*
    noise: float  # σ², a bound of the variance of one sample's gradient
    batch_size: int  # B and T. For FedAvg, B is the number of local steps, with one sample each.
    rounds: int


def gradient_bound(of: Descent, k: int, q: Floats, zeta: float, regret: float) -> float:
    """Return the bound of the mean of E||∇F(w_t)||² over T rounds, from the proof of Theorem 2 (v1, eq. 32).

    ::

        2 D^F/(T μ) + L μ (2 σ²/(K B M²) sum_m 1/q_m + 2 ζ²/K + D-Regret_T(q)/T)

    `q` (M,) is the comparator of all rounds, `zeta` ζ², the supremum of `variance`, and `regret` the regret
    against q or a bound of it, which gives Theorems 4 and 9 (v2). The proof replaces sum 1/q_m by its bound
    M²/α. ζ² is ζ_1² (v1) or ζ_fix² (v2) for the best fixed q >= α/M, and ζ_0² or ζ_unif² for the uniform q,
    against which uniform sampling has no regret. Theorem 2 and the paper's R_0 to R_2 take the best μ and
    leave out the constants.
    """
    if of.step_size * of.smoothness > 1:
        raise ValueError(f"step_size = {of.step_size}: must be at most {1 / of.smoothness} (1/L)")
    noise = 2 * of.noise / (k * of.batch_size * q.size**2) * float((1 / q).sum())
    chosen = noise + 2 * zeta / k + regret / of.rounds
    return 2 * of.gap / (of.rounds * of.step_size) + of.smoothness * of.step_size * chosen


def fedavg_bound(of: Descent, k: int, q: Floats, zeta: float, zeta_uniform: float, regret: float) -> float:
    """Return the bound of the mean of E||∇F(w_t)||² over T rounds of FedAvg, from the proof of Theorem 5.

    It is eq. 46 with α = M min_m q_m. μ is the product of the global step size (>= 1) and the local one::

        8 D^F/(T μ B) + 8 (4 + 2/α) (μ B L)² (ζ_unif² + σ²/(2B))
            + 4 μ B L (2 ζ²/K + σ²/(K B M²) sum_m 1/q_m + D-Regret_T(q)/(T B))

    The regret has a as in Algorithm 4: λ² times the squared norm of the sum of the B local gradients, divided
    by B. The proof replaces sum 1/q_m by its bound M²/α. For the uniform q and uniform sampling, which has no
    regret, this is R_unif of section 4.2 with constants. Theorem 5 leaves out the constants and the factor M
    G²/(K α³) of its last term (eq. 47), where G bounds the norm of one sample's gradient. The proofs of
    Theorems 4 and 5 use eq. 21, which is half of `best_rate_regret`.
    """
    m, b = q.size, of.batch_size
    inverse = 1 / (m * float(q.min()))  # 1/α
    reach = of.step_size * b * of.smoothness
    if 4 * reach * math.sqrt(2 + inverse) > 1 + 1e-9:
        most = 1 / (4 * b * of.smoothness * math.sqrt(2 + inverse))
        raise ValueError(f"step_size = {of.step_size}: must be at most {most} (1/(4 B L sqrt(2 + 1/α)))")
    drift = 8 * (4 + 2 * inverse) * reach**2 * (zeta_uniform + of.noise / (2 * b))
    noise = of.noise / (k * b * m**2) * float((1 / q).sum())
    chosen = 2 * zeta / k + noise + regret / (of.rounds * b)
    return 8 * of.gap / (of.rounds * of.step_size * b) + drift + 4 * reach * chosen
