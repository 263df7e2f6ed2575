"""MABS: a multi-armed bandit with the clients as arms; a large norm at a small p gives a large reward.

Salehi, Celis, Thiran, "Stochastic Optimization with Bandit Sampling" (2017), Algorithm 1; a baseline of the
OSMD paper (section F.2).
"""

import math
from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Array, Bools, Floats
from ..probability import ProbabilitySettings
from ..records import Feedback, Selection
from ..settings import setting
from .bandit import LARGEST_RATIO, BanditSelector


@dataclass(frozen=True)
class MABSSettings(ProbabilitySettings):
    """Settings of MABS; the default of `mix` is the paper's."""

    mix: float = setting(0.4, low=1e-9, high=1.0, doc="η, the share of uniform sampling in p")
    mean_square: float | None = setting(
        None, low=1e-300, high=1e300, doc="mean of a² over all clients, a = λ²||g||² (None: estimated)"
    )


class MABSSelector(BanditSelector):
    """EXP3 with the reward a_m/p_m², the negative derivative of the variance with respect to p_m.

    After each round::

        p_m = (1 - η) w_m / sum_j w_j + η/M
        w_m <- w_m exp(δ W_m a_m / p_m²)          a_m = λ_m² ||g_m||², W_m: importance of client m
        δ   = sqrt(η⁴ log M / (T M⁵ mean(a²)))

    w is 1 at the start, η is the setting `mix`, M the number of registered clients, and T the number of
    rounds. The paper assumes that the mean of a² over all clients is known. If the setting `mean_square` is
    not given, each round yields the unbiased estimate (1/M) sum W_m a_m², and the mean of these estimates
    over the rounds so far is used. Rounds in which all norms are 0 do not count.

    Because of the factor M⁵, steps are small: with a few hundred clients p hardly differs from uniform.
    Weights never decrease, so p does not follow norms that change. A share η of the draws is always uniform.
    """

    name = "mabs"
    summary = "by past norms, as a bandit"
    settings_type = MABSSettings
    _settings: MABSSettings
    state_axes = BanditSelector.state_axes | {
        "log_weights": ("clients",),  # log w, shifted so that the largest is 0
        "squares": (),  # sum over rounds of the estimated mean of a², in units of (largest a)²
        "rounds": (),  # the number of rounds in this sum
    }

    def _initial_state(self) -> dict[str, Array]:
        return super()._initial_state() | {
            "log_weights": np.zeros(self.num_clients),
            "squares": np.array(0.0),
            "rounds": np.array(0),
        }

    def _distribution(self) -> Floats:
        def compute() -> Floats:
            registered, mix, log_weights = self._registered, self._settings.mix, self._array("log_weights")
            p: Floats = np.zeros(self.num_clients)
            np.exp(log_weights - self._largest(log_weights), out=p, where=registered)
            p *= (1 - mix) / max(1.0, p.sum())
            p += registered * (mix / max(1, self._num_registered))
            return p

        return self._cached("p", ("log_weights", "registered"), compute).copy()

    def _largest(self, log_weights: Floats) -> float:
        """Return the largest log weight of the registered clients, or 0 if no client is registered."""
        largest = float(log_weights.max(where=self._registered, initial=-np.inf))
        return largest if largest > -np.inf else 0.0

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, importance, roots = self._roots(selection, feedback)
        if not roots.any():
            return {}
        m, mix, given = self._num_registered, self._settings.mix, self._settings.mean_square
        largest, before = max(float(self._array("largest")), roots.max()), float(self._array("largest"))
        squares = self._array("squares") * (before / largest) ** 4
        squares = squares + (importance * (roots / largest) ** 4).sum() / m
        rounds = self._array("rounds") + 1
        if given is None:
            reference = largest * (squares / rounds) ** 0.25  # the fourth root of the mean of a²
        else:
            reference = given**0.25 * self._registered_size
        delta = math.sqrt(mix**4 * math.log(m) / (float(self._array("num_rounds")) * m**5))
        a = np.minimum(roots / reference, LARGEST_RATIO) ** 2
        log_weights = self._array("log_weights").copy()
        log_weights[clients] += delta * importance * a / self._probabilities_of(clients) ** 2
        return {
            "log_weights": log_weights - self._largest(log_weights),
            "squares": np.array(squares),
            "rounds": np.array(rounds),
            "largest": np.array(largest),
        }

    def _joined(self, registered: Bools) -> dict[str, Array]:
        """Give joining clients the mean weight, so that p = 1/M for them."""
        mean = 0.0
        if self._num_registered:
            old = self._array("log_weights")[self._registered]
            mean = float(np.log(np.exp(old - old.max()).mean()) + old.max())
        return {"log_weights": self._extended("log_weights", registered.size, mean)}
