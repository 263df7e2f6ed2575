"""Adaptive-OSMD: learns p from the norms of the updates, with several learning rates at once.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback",
Algorithm 4 (v1), Algorithm 5 (v2), with the estimates of eqs. 6 and 7. v1 and v2 are two versions of the
paper; `rates` has the formulas that differ between them.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...numerics.arrays import Array, Floats, Ints
from ..records import Feedback, Selection
from ..settings import setting
from .base import ExpertsSelector, ExpertsSettings
from .rates import meta_rate, num_experts, smallest_rate

LARGEST_ROOT = 1e30
"""Limit of sqrt(a/ā), so that all exponents are finite. sqrt(a/ā) may exceed 1 if ā was
determined before a was observed."""


@dataclass(frozen=True)
class AdaptiveOSMDSettings(ExpertsSettings):
    """Settings of Adaptive-OSMD; the defaults are the paper's, apart from γ and the source of ā."""

    gamma: str = setting(
        "scale-free",
        choices=("scale-free", "printed"),
        doc="the rate of the experts' weights: independent of the gradients' unit, or the printed formula",
    )


class AdaptiveOSMDSelector(ExpertsSelector):
    """Draws from p = sum_e θ_e q_e, a mixture of experts.

    Each expert e = 1, ..., E has a distribution q_e with its own learning rate η_e, and the weight θ_e. With
    a_m = λ_m² ||g_m||² and the importance W of the draw, a round changes every expert::

        l_e    = (1/K) sum_m W_m a_m / q_e,m                                   (eq. 6; W_m = N_m / (K p_m))
        q_e,m <- project(q_e,m exp(η_e W_m a_m / (K q_e,m²)), floor α/M)       (eq. 7, Proposition 1)
        θ_e   <- θ_e exp(-γ l_e) / normalisation,  θ_e = (1 + 1/E) / (e (e + 1)) at the start

        v1:  η_e = 2^(e-1) K² α³/(M³ ā) sqrt(log M / (2T)) multiplier          (eq. 13; E: eq. 14)
        v2:  η_e = 2^(e-1) K  α³/(M³ ā) sqrt(2 log M / T)  multiplier          (eq. 22; E: eq. 23)
        γ    = α/M sqrt(8K/(T ā)), or scale-free sqrt(8/T) α² K/(M² ā)         (Theorem 3, Theorem 8)

    N_m is how often client m was drawn. ||g_m|| is the norm of the sum of the gradients over the local steps.
    Algorithm 4 of v2 (FedAvg) also divides ||g_m||² by the number B of local steps. Here a and an observed ā
    are B times as large.

    ā (v2: A_max) is a bound of all a. Only the quotient a/ā is used, so the units of norms and sizes have no
    effect, except on the printed γ. ā has one of three sources: the setting `a_max`; with ``ask_norms=True``,
    the largest a of the clients that answer before round 1, as in the paper (whose λ ||g||² must be a
    misprint of λ² ||g||²); by default, the largest a observed so far. The largest a of round 1 alone would
    not be enough: if norms have heavy tails, it is too small by orders of magnitude, and the learning rates
    are too large by the same factor.

    For draws without replacement (v1: Algorithm 6; v2: Algorithm 7), the paper estimates the loss (eq. 6) and
    its gradient (eq. 7) with N_m/(K p_m), which is biased. This class uses the unbiased importance with which
    Algorithm 6 weights the updates: W_m = (1/p_(k),m + K - k)/K for the client m that is drawn k-th, where
    p_(k),m is the probability of m in the k-th draw.

    T is `num_rounds`, which is required. T is part of the state: a run that continues beyond round T keeps
    its learning rates, and a resume with another `num_rounds` does not change T. In the rates and the floor,
    M is the number of registered clients. E is computed at the start and does not change. If clients join,
    each of them gets the probability 1/M, and all other probabilities are multiplied by one factor, so the
    floor still holds. The probability of removed clients is divided among the other clients in proportion to
    their probabilities, and q is projected again.

    With ``initial="sizes"`` all experts start from p ∝ λ, projected to the floor, instead of the paper's
    uniform distribution. A later correction of sizes does not change the experts.
    """

    name = "adaptive-osmd"
    summary = "by past norms, with several rates"
    settings_type: ClassVar[type[ExpertsSettings]] = AdaptiveOSMDSettings
    state_axes = ExpertsSelector.state_axes | {
        "reference": (),  # sqrt(ā) in the unit of size times norm; 0 if ā is not known yet
        "num_rounds": (),  # T
    }

    def _initial_state(self) -> dict[str, Array]:
        num_rounds = self._horizon()
        return self._started(self._num_experts(num_rounds)) | {
            "bound": np.array(0.0),
            "reference": np.array(0.0),
            "num_rounds": np.array(num_rounds),
        }

    def _num_experts(self, num_rounds: int) -> int:
        return num_experts(self._settings.rates, self._num_registered, self._alpha, num_rounds)

    @property
    def _variation(self) -> float:
        """β: the rates are computed for this total variation of the best distribution over all rounds."""
        return 0.0

    @property
    def _scale_free(self) -> bool:
        return not isinstance(self._settings, AdaptiveOSMDSettings) or self._settings.gamma == "scale-free"

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, importance, roots = self._roots(selection, feedback)
        largest = float(roots.max(initial=0.0))
        if largest == 0:
            return {}
        reference = self._fixed_reference() or max(float(self._array("reference")), largest)
        changes = self._descend(clients, importance, roots, reference, float(self._array("num_rounds")))
        return {**changes, "reference": np.array(reference)}

    def _descend(
        self, clients: Ints, importance: Floats, roots: Floats, reference: float, num_rounds: float
    ) -> dict[str, Array]:
        """Let all experts and their weights make one step, and return the changed arrays of the state.

        `Lazy` experts step in place.

        `clients` (n,) have a usable norm, `importance` (n,) is their W, and `roots` (n,) their sqrt(a).
        `reference` is sqrt(ā) > 0 in the same unit, and `num_rounds` is T.
        """
        k, m, alpha = self._clients_per_round, self._num_registered, self._alpha
        weighted = importance * (np.minimum(roots, LARGEST_ROOT * reference) / reference) ** 2  # W a/ā
        experts = self._experts
        q = experts.at(clients)  # (E, n)
        slopes = weighted / (k * q)  # (E, n) the terms of each expert's loss
        smallest = smallest_rate(self._settings.rates, m, k, alpha, num_rounds, self._variation)
        rates = np.ldexp(smallest * self._settings.learning_rate_multiplier, np.arange(len(q)))
        largest = None if self._scale_free else (reference / self._registered_size) ** 2
        gamma = meta_rate(m, k, alpha, num_rounds, largest)

        losses = slopes.sum(axis=1)
        log_theta = self._array("log_theta") - gamma * losses
        log_theta -= log_theta.max()  # keeps the normalisation exact if losses are large
        return {
            **experts.stepped(clients, rates[:, None] * slopes / q),
            "log_theta": log_theta - np.logaddexp.reduce(log_theta),
        }
