"""Noise on a client's reports: the Gaussian mechanism, and the privacy cost of several reports.

A report is one number that depends on all data of a client. The privacy unit is the whole client (local
differential privacy). The client clips the number to [0, bound], so the sensitivity is the bound. The client
then adds noise from N(0, σ²) and sends the sum.

Sources:

- B. Balle, Y.-X. Wang, "Improving the Gaussian mechanism for differential privacy" (ICML 2018). Theorem 8
  gives the exact condition on σ, both necessary and sufficient.
- J. Dong, A. Roth, W. J. Su, "Gaussian differential privacy" (2022). By Corollary 3.3, several Gaussian
  mechanisms compose to one Gaussian mechanism with 1/z² = sum_i 1/z_i², where z = σ/bound. This also holds if
  later questions depend on earlier answers.

``cohort bench papers report-noise`` measures how much worse selection gets with this noise.

This noise does not protect the update (which may be masked or have noise of its own), the number of examples,
or the fact that a client takes part. Nor does it protect against attacks on the rounding of floating-point
noise (Mironov 2012).
"""

from dataclasses import dataclass
from functools import cached_property
from math import erfc, exp, inf, log, log1p, pi, sqrt

import numpy as np
import numpy.typing as npt

_SMALLEST_MU, _LARGEST_MU = 1e-9, 1e3
_BISECTIONS = 200


@dataclass(frozen=True)
class GaussianMechanism:
    """Releases a number in [0, bound] with noise.

    Attributes
    ----------
    epsilon, delta : float
        The privacy budget of one report: ε in (0, 50], δ in [1e-15, 0.5].
    bound : float
        The largest number that is released, finite and > 0, in the number's unit. Larger numbers are clipped
        to the bound. A smaller bound hides more differences between clients. A larger bound adds more noise.

    Examples
    --------
    >>> mechanism = GaussianMechanism(epsilon=1.0, delta=1e-5, bound=5.0)
    >>> round(mechanism.sigma, 2)
    18.65
    >>> 0 <= mechanism.release(3.0, np.random.default_rng()) <= 5
    True
    >>> round(composed_epsilon([mechanism.noise_multiplier] * 100, delta=1e-5), 1)  # of a hundred reports
    14.4
    """

    epsilon: float
    delta: float
    bound: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 50:
            raise ValueError(f"epsilon = {self.epsilon}: must be greater than 0 and at most 50")
        if not 1e-15 <= self.delta <= 0.5:
            raise ValueError(f"delta = {self.delta}: must be between 1e-15 and 0.5")
        if not 0 < self.bound < inf:
            raise ValueError(f"bound = {self.bound}: must be finite and greater than 0")

    @cached_property
    def noise_multiplier(self) -> float:
        """The smallest z = σ/bound with which a report is (ε, δ)-private."""
        low, high = _SMALLEST_MU, _LARGEST_MU  # bounds of μ = 1/z; least_delta grows with μ
        for _ in range(_BISECTIONS):
            middle = sqrt(low * high)
            low, high = (middle, high) if least_delta(middle, self.epsilon) <= self.delta else (low, middle)
        return (1 + 1e-9) / low  # rounded to the safe side

    @property
    def sigma(self) -> float:
        """σ, the standard deviation of the noise, in the number's unit."""
        return self.noise_multiplier * self.bound

    def release(self, value: float, rng: np.random.Generator) -> float:
        """Return the number with noise, clipped to [0, bound].

        Clipping the noisy number costs no privacy, and reduces the error.

        Parameters
        ----------
        value : float
            The true number; it is clipped to [0, bound]. NaN is replaced by the bound, since a released NaN
            would reveal that the number was NaN.
        rng : np.random.Generator
            The source of the noise. Its state must be secret, and each report needs new noise. So use
            ``np.random.default_rng()``, which takes its seed from the operating system.
        """
        clipped = min(max(value, 0.0), self.bound) if value == value else self.bound
        return min(max(clipped + rng.normal(0.0, self.sigma), 0.0), self.bound)


def composed_epsilon(noise_multipliers: npt.ArrayLike, delta: float) -> float:
    """Return the total ε of several reports, for one total δ.

    `noise_multipliers` (n,) holds z = σ/bound > 0 of each report; `delta` is in (0, 1). The result is the
    smallest ε >= 0 for which all reports together are (ε, δ)-private; 0 if there are no reports.
    """
    z = np.asarray(noise_multipliers, dtype=np.float64)
    if z.ndim != 1 or not (z > 0).all():
        raise ValueError(f"noise_multipliers = {z}: must be (n,) numbers > 0")
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}: must be between 0 and 1")
    mu = sqrt(float((1 / z**2).sum()))
    if mu == 0 or least_delta(mu, 0.0) <= delta:
        return 0.0
    low, high = (
        0.0,
        mu**2 / 2 + mu * sqrt(2 * log(1 / delta)),
    )  # the upper bound of ε by concentrated differential privacy: Bun, Steinke (2016), Proposition 1.3
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if least_delta(mu, middle) <= delta else (middle, high)
    return high


def least_delta(mu: float, epsilon: float) -> float:
    """Return δ = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ), the least for which σ = bound/μ is (ε, δ)-private."""
    return exp(_log_tail(epsilon / mu - mu / 2)) - exp(epsilon + _log_tail(epsilon / mu + mu / 2))


def _log_tail(x: float) -> float:
    """Return log P(N(0, 1) > x)."""
    if x < 30:
        return log(erfc(x / sqrt(2)) / 2)
    # For larger x, erfc underflows. Four terms of its asymptotic series have a relative error below 1e-10.
    series = -1 / x**2 + 3 / x**4 - 15 / x**6 + 105 / x**8
    return -(x**2) / 2 - log(x * sqrt(2 * pi)) + log1p(series)
