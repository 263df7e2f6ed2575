"""The bound of FLICS' Theorem 1, with its constant C, ε̂ of Lemma 4, and the covariances of eq. 7.

The paper's M groups are G here; but G², as in the paper, bounds the squared norm of a gradient. F_j is the
loss of group j, p_j its weight, and f = sum_j p_j F_j. docs/results/flics.md says where the paper is silent
or contradicts itself.
"""

import math
from typing import NamedTuple

import numpy as np

from strategies.numerics.arrays import Floats


class Constants(NamedTuple):
    """The constants of the bound that do not depend on the selection."""

    smoothness: float  # L
    # σ_L², σ_G² and G²: bounds of the variance of a stochastic gradient g, of ||∇F_j - ∇f||², and of ||g||².
    noise: float
    spread: float
    gradient: float
    local_rate: float  # η_L and η
    global_rate: float
    steps: int  # T_L, the number of local steps
    shares: Floats  # (G,) p, the groups' weights in the objective f
    gap: float  # f(w_0) - f(w*)

    @property
    def _crowding(self) -> float:
        """G sum_j p_j², which is 1 if all groups have the same weight."""
        return self.shares.size * float((self.shares**2).sum())

    def margin(self) -> float:
        """Return the supremum of the constants c that the proof allows: 1/2 - 15 L² T_L² η_L² G sum p².

        Raises ValueError if η η_L >= 1/(T_L L), or η_L is above 1/(sqrt(30) T_L L G sum p²), which the
        proof excludes.
        """
        reach = self.steps * self.smoothness * self.local_rate
        if self.global_rate * reach >= 1 or math.sqrt(30) * reach * self._crowding > 1:
            raise ValueError(
                f"local_rate = {self.local_rate}: must be below {1 / (self.global_rate * self.steps)} / L "
                f"and at most {1 / (math.sqrt(30) * self.steps * self._crowding)} / L"
            )
        return 0.5 - 15 * reach**2 * self._crowding


def participation_error(estimates: Floats, final: Floats) -> float:
    """Return ε̂ = 1 + ε/r_min (Lemma 4), with ε the largest |ŝ_j(t) - s_j*| and r_min the least s_j*.

    `estimates` (T, G) holds ŝ(t), the groups' mean numbers of participants so far, and `final` (G,) their
    limit s*.
    """
    return 1 + float(np.abs(estimates - final).max() / final.min())


def selection_variance(shares: Floats, estimates: Floats, covariance: Floats) -> Floats:
    """Return sum_ij p_i p_j Σ_ij/(ŝ_i(t) ŝ_j(t)) (T,), whose mean over the rounds is σ_T (Corollary 1.1).

    `covariance` (G, G) is Σ, the covariance of the groups' numbers of participants.
    """
    scaled = shares / estimates
    v: Floats = ((scaled @ covariance) * scaled).sum(axis=1)
    return v


def around_eq_7(
    shares: Floats, estimates: Floats, final: Floats, clients: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return three arrays (T,): a lower bound of the right side of eq. 7, this side, and an upper bound.

    The bounds are those after eq. 7: (1 ∓ ε) sum p²/ŝ(t) - p²/n around sum p²/ŝ(t)² (s - s²/n), for
    `estimates` ŝ (T, G), `final` s (G,) and n, the number of each group's clients (G,). With ε of round t =
    max |s_j/ŝ_j(t) - 1| both bounds hold if no s_j or ŝ_j(t) is above n_j.
    """
    ratios = final / estimates
    error = np.abs(ratios - 1).max(axis=1)
    main, constant = (shares**2 / estimates).sum(axis=1), float((shares**2 / clients).sum())
    middle: Floats = (shares**2 * (ratios / estimates - ratios**2 / clients)).sum(axis=1)
    return (1 - error) * main - constant, middle, (1 + error) * main - constant


def remainder(of: Constants, error: float, variances: Floats, c: float) -> float:
    """Return C, the part of Theorem 1's bound that does not shrink, for 0 < c <= `Constants.margin`.

    `error` is ε̂ of `participation_error`, `variances` (T,) that of `selection_variance`. The last term of C
    is printed as a sum over T rounds, but the proof divides by T. The printed t_L is T_L. Section III and the
    end of the proof print the factor σ_L² + G²; appendix B lacks it. The sum of T_L gradients would need T_L
    σ_L² + T_L² G².
    """
    step, size, squares = of.global_rate * of.local_rate, of.smoothness, float((of.shares**2).sum())
    noise = size * step * error**2 * of.noise * squares / 2
    drift = 5 * size**2 * error * of.local_rate**2 * of.steps * of._crowding / 2
    drift *= of.noise + 6 * of.steps * of.spread
    drawn = size * step / (2 * of.steps) * (of.noise + of.gradient) * float(variances.mean())
    return (noise + drift + drawn) / (c * error)


def bound(of: Constants, rounds: int, error: float, variances: Floats) -> float:
    """Return Theorem 1's bound of min_t E||∇f(w_t)||² over T = `rounds` rounds, with the best c."""
    c = of.margin()
    first = of.gap / (c * of.global_rate * of.local_rate * of.steps * rounds)
    return first + remainder(of, error, variances, c)
