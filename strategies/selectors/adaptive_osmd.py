"""Adaptive-OSMD: learn whom to sample from the norms of the updates, with a set of learning rates.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback",
Algorithm 4, with the estimates of eqs. 6 and 7, the rates of eq. 13 and the number of experts of eq. 14.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..numerics.arrays import Array, Bools, Floats
from ..numerics.projection import project_floored_simplex
from .base import Feedback, Selection, Selector
from .probability import ProbabilitySelector, ProbabilitySettings
from .settings import setting


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


class AdaptiveOSMDSelector(ProbabilitySelector):
    """Experts e = 1..E, each a distribution q_e with its own rate η_e, mixed into p = sum_e θ_e q_e.

    With a_m = λ_m² ||g_m||² / ā and the importance W of the draw, a round does for every expert::

        l_e    = (1/K) sum_m W_m a_m / q_e,m                                   (eq. 6; W_m = N_m / (K p_m))
        q_e,m <- project(q_e,m exp(η_e W_m a_m / (K q_e,m²)), floor α/M)       (eq. 7, Proposition 1)
        θ_e   <- θ_e exp(-γ l_e) / normalisation,  θ_e = (1 + 1/E) / (e (e + 1)) at the start

        η_e = 2^(e-1) B α³/M³ sqrt(log M / (2T)) multiplier, B = K or K²       (eq. 13)
        γ   = sqrt(8/T) α² K/M²
        E   = floor(log2(1 + 4 log(M/α) / log M (T - 1)) / 2) + 1              (eq. 14)

    ā is the largest a seen so far, divided out first so that units of norms and sizes change nothing (the
    printed γ depends on them; the one here is for losses of range M²/(α² K)). The paper asks all clients for
    it before training. The first round's K alone are no substitute: with heavy tails they miss the largest by
    orders of magnitude, and rates too large by as much do worse than uniform sampling.

    T is `num_rounds` and required; the rates do not depend on the round, so a run that goes on beyond T keeps
    them, and one resumed with another `num_rounds` keeps the T of its state. M in rates and floor is the
    number of living clients; E stays as it was at the start. Joiners get mass 1/M each and the others shrink
    to make room, which keeps the floor; the mass of leavers is shared out in proportion, and projected again.
    """

    name = "adaptive-osmd"
    settings_type = AdaptiveOSMDSettings
    _settings: AdaptiveOSMDSettings
    state_axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **Selector.state_axes,
        "experts": ("experts", "clients"),  # q_e, 0 for the removed
        "log_theta": ("experts",),
        "reference": (),  # sqrt(ā) in the unit of size times norm; 0 until there is one
        "num_rounds": (),  # T
    }

    def _initial_state(self) -> dict[str, Array]:
        if self._num_rounds is None:
            raise ValueError(
                f"num_rounds = None: {self.name} needs the number of rounds (>= 1) for its rates"
            )
        log_m = math.log(max(2, self.num_clients))  # one client alone: as many experts as for two
        ratio = 4 * (log_m - math.log(self._settings.alpha)) / log_m
        num_experts = int(math.log2(1 + ratio * (self._num_rounds - 1)) / 2) + 1
        e = np.arange(1, num_experts + 1)
        return {
            "experts": np.full((num_experts, self.num_clients), 1 / self.num_clients),
            "log_theta": np.log((1 + 1 / num_experts) / (e * (e + 1))),
            "reference": np.array(0.0),
            "num_rounds": np.array(self._num_rounds),
        }

    def _distribution(self) -> Floats:
        p: Floats = np.exp(self._array("log_theta")) @ self._array("experts")
        return p

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, importance, norms = self._reported(selection, feedback, feedback.update_norms)
        # Sizes stand for λ: their sum cancels in a/ā, also when clients join or leave.
        roots = self.client_sizes[clients] * np.minimum(norms, 1e150)  # finite when multiplied
        if not roots.any():
            return {}
        reference = max(float(self._array("reference")), roots.max())
        a = (roots / reference) ** 2

        k, m, t = self._clients_per_round, int(self._living.sum()), float(self._array("num_rounds"))
        alpha, experts, log_theta = self._settings.alpha, self._array("experts"), self._array("log_theta")
        base = k if self._settings.expert_base == "K" else k**2
        smallest_rate = base * (alpha / m) ** 3 * math.sqrt(math.log(m) / (2 * t))
        rates = 2.0 ** np.arange(len(experts)) * smallest_rate * self._settings.learning_rate_multiplier
        gamma = math.sqrt(8 / t) * k * (alpha / m) ** 2

        q = experts[:, clients]  # (E, S)
        losses = (importance * a / q).sum(axis=1) / k
        log_theta = log_theta - gamma * losses
        log_theta -= log_theta.max()  # or large losses would drown the normalisation below
        stepped = np.full(experts.shape, -np.inf)
        stepped[:, self._living] = np.log(experts[:, self._living])
        stepped[:, clients] += rates[:, None] * importance * a / (k * q**2)
        return {
            "experts": self._project(stepped, self._living),
            "log_theta": log_theta - np.logaddexp.reduce(log_theta),
            "reference": np.array(reference),
        }

    def _joined(self, living: Bools) -> dict[str, Array]:
        before, after = int(self._living.sum()), int(living.sum())
        experts = self._array("experts")
        joiners = np.full((len(experts), after - before), 1 / max(1, after))
        return {"experts": np.hstack([experts * (before / max(1, after)), joiners])}

    def _left(self, living: Bools) -> dict[str, Array]:
        with np.errstate(divide="ignore"):  # clients removed before have log 0
            return {"experts": self._project(np.log(self._array("experts")), living)}

    def _project(self, log_weights: Floats, living: Bools) -> Floats:
        experts = np.zeros(log_weights.shape)
        if living.any():
            floor = self._settings.alpha / living.sum()
            for expert, row in zip(experts, log_weights, strict=True):
                expert[living] = project_floored_simplex(row[living], floor)
        return experts
