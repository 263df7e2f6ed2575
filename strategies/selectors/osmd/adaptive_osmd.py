"""Adaptive-OSMD: learns p from the norms of the updates, with a set of learning rates.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback",
Algorithm 4, with the estimates of eqs. 6 and 7, the rates of eq. 13 and the number of experts of eq. 14.
"""

import math
from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Array, Floats, Ints
from ..probability import ProbabilitySettings
from ..records import Feedback, Selection
from ..settings import setting
from .experts import ExpertsSelector

LARGEST_ROOT = 1e30
"""Limit of sqrt(a/ā), which exceeds 1 where ā is from earlier rounds alone; keeps all exponents finite."""


@dataclass(frozen=True)
class AdaptiveOSMDSettings(ProbabilitySettings):
    """Settings of Adaptive-OSMD; the defaults are the paper's."""

    alpha: float = setting(0.4, low=1e-15, high=1.0, doc="every client keeps probability alpha / M or more")
    learning_rate_multiplier: float = setting(
        1.0,
        low=1e-9,
        high=1e9,
        doc="multiplies the experts' learning rates; 1 is the printed theory, slow in practice",
    )
    expert_base: str = setting(
        "K",
        choices=("K", "K2"),
        doc="the factor K of the rates (the paper's later version) or K squared (eq. 13)",
    )
    initial: str = setting(
        "uniform",
        choices=("uniform", "sizes"),
        doc="the start of all experts: the uniform distribution (the paper's), or in proportion to data",
    )


class AdaptiveOSMDSelector(ExpertsSelector):
    """Experts e = 1..E, each a distribution q_e with its own rate η_e, mixed into p = sum_e θ_e q_e.

    With a_m = λ_m² ||g_m||² / ā and the importance W of the draw, a round does for every expert::

        l_e    = (1/K) sum_m W_m a_m / q_e,m                                   (eq. 6; W_m = N_m / (K p_m))
        q_e,m <- project(q_e,m exp(η_e W_m a_m / (K q_e,m²)), floor α/M)       (eq. 7, Proposition 1)
        θ_e   <- θ_e exp(-γ l_e) / normalisation,  θ_e = (1 + 1/E) / (e (e + 1)) at the start

        η_e = 2^(e-1) B α³/M³ sqrt(log M / (2T)) multiplier, B = K or K²       (eq. 13)
        γ   = sqrt(8/T) α² K/M²
        E   = floor(log2(1 + 4 log(M/α) / log M (T - 1)) / 2) + 1              (eq. 14)

    ā is the largest a so far. Dividing by it first makes units of norms and sizes irrelevant (the printed γ
    depends on them; the γ here is for losses of range M²/(α² K)). The paper asks all clients for ā before
    training. The K clients of the first round are no substitute: with heavy tails their largest a is orders
    of magnitude too small, and rates too large by as much do worse than uniform sampling.

    T is `num_rounds` and required. The rates do not depend on the round, so a run that goes on beyond T keeps
    them, and a run resumed with another `num_rounds` keeps the T of its state. M in rates and floor is the
    number of registered clients; E stays as it was at the start. Joiners get mass 1/M each and the others
    shrink to make room, which keeps the floor; the mass of leavers is divided in proportion, and q projected
    again.

    The paper starts from the uniform distribution. With ``initial="sizes"`` all experts start from p ∝ λ,
    projected: where sizes explain the norms, slow experts would need thousands of rounds to get there. Sizes
    corrected later do not change the experts.
    """

    name = "adaptive-osmd"
    settings_type = AdaptiveOSMDSettings
    _settings: AdaptiveOSMDSettings
    state_axes = ExpertsSelector.state_axes | {
        "reference": (),  # sqrt(ā) in the unit of size times norm; 0 until there is one
        "num_rounds": (),  # T
    }

    def _initial_state(self) -> dict[str, Array]:
        num_rounds = self._horizon()
        return self._started(self._num_experts(num_rounds)) | {
            "reference": np.array(0.0),
            "num_rounds": np.array(num_rounds),
        }

    def _num_experts(self, num_rounds: int) -> int:
        """Return E (eq. 14) for T = `num_rounds`."""
        log_m = math.log(max(2, self._num_registered))  # one client: as many experts as for two
        ratio = 4 * (log_m - math.log(self._alpha)) / log_m
        return int(math.log2(1 + ratio * (num_rounds - 1)) / 2) + 1

    @property
    def _alpha(self) -> float:
        return self._settings.alpha

    @property
    def _by_size(self) -> bool:
        return self._settings.initial == "sizes"

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, importance, roots = self._roots(selection, feedback)
        largest = float(roots.max(initial=0.0))
        if largest == 0:
            return {}
        reference = max(float(self._array("reference")), largest)
        changes = self._descend(clients, importance, roots, reference, float(self._array("num_rounds")))
        return {**changes, "reference": np.array(reference)}

    def _descend(
        self, clients: Ints, importance: Floats, roots: Floats, reference: float, num_rounds: float
    ) -> dict[str, Array]:
        """Return the changes of a step of all experts and their weights, for roots sqrt(a), sqrt(ā)."""
        k, m, alpha = self._clients_per_round, self._num_registered, self._alpha
        weighted = importance * (np.minimum(roots, LARGEST_ROOT * reference) / reference) ** 2  # W a/ā
        base = k if self._settings.expert_base == "K" else k**2
        smallest_rate = base * (alpha / m) ** 3 * math.sqrt(math.log(m) / (2 * num_rounds))
        q = self._at(clients)  # (E, S)
        slopes = weighted / (k * q)  # of each expert's loss
        rates = np.ldexp(smallest_rate * self._settings.learning_rate_multiplier, np.arange(len(q)))
        gamma = math.sqrt(8 / num_rounds) * k * (alpha / m) ** 2

        losses = slopes.sum(axis=1)
        log_theta = self._array("log_theta") - gamma * losses
        log_theta -= log_theta.max()  # or large losses would make the normalisation inexact
        return {
            **self._stepped(clients, rates[:, None] * slopes / q),
            "log_theta": log_theta - np.logaddexp.reduce(log_theta),
        }
