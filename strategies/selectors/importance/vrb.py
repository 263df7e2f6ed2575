"""VRB, the Variance Reducer Bandit: follow the regularised leader with bandit feedback.

Borsos, Krause, Levy, "Online Variance Reduction for Stochastic Optimization" (COLT 2018), Algorithm 1; a
baseline of the OSMD paper (section F.2).
"""

from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Floats
from ..probability import ProbabilitySettings
from ..settings import setting
from .bandit import CumulatedSelector


@dataclass(frozen=True)
class VRBSettings(ProbabilitySettings):
    """Settings of VRB."""

    bound: float | None = setting(
        None, low=1e-300, high=1e300, doc="L >= a = λ²||g||² of all clients (None: the largest so far)"
    )


class VRBSelector(CumulatedSelector):
    """Samples from a mixture of the uniform distribution and the best fixed p for all estimates so far.

    The best fixed p is regularised by γ. After each round::

        p̃_m = (1 - θ) p_m + θ/M,   p_m ∝ sqrt(w_m + γ)
        w_m <- w_m + W_m a_m                        a_m = λ_m² ||g_m||², W_m: importance of client m
        θ   = (M/T)^(1/3),   γ = L M/θ

    Clients are drawn from p̃. L is the setting `bound`, by default the largest a_m so far. M is the number of
    registered clients, and T the number of rounds. If M >= T, θ is 1, which is uniform sampling. w is stored
    as a multiple of L, so the unit of norms has no effect. Joining clients get the mean w.

    w sums over the whole run, so old norms are never forgotten. γ is so large that p differs much from
    uniform only after about T rounds with large norms. If norms decrease, as they do in training, p stays
    near uniform.
    """

    name = "vrb"
    summary = "by past norms, near uniform at first"
    settings_type = VRBSettings
    _settings: VRBSettings

    @property
    def _bound(self) -> float | None:
        return self._settings.bound

    def _distribution(self) -> Floats:
        registered, m = self._registered, max(1, self._num_registered)
        theta = min(1.0, (m / float(self._array("num_rounds"))) ** (1 / 3))
        root = np.sqrt(self._array("totals") + m / theta) * registered
        p: Floats = root * ((1 - theta) / max(1.0, root.sum())) + registered * (theta / m)
        return p
