"""Practical DELTA and FedIS, which learn probabilities from the selected clients alone.

Wang, Guo, Lin, Tang, "DELTA: Diverse Client Sampling for Fasting Federated Learning" (NeurIPS 2023): eq. 16
and Algorithm 1 for FedPracDELTA, eq. 15 and Algorithm 2 for FedPracIS.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...numerics.arrays import Array, Bools, Floats
from ..base import Selector
from ..importance.importance import ImportanceSelector
from ..records import Feedback, Selection
from ..settings import setting
from .delta import DeltaSettings


class PracticalSelector(ImportanceSelector):
    """Divides the total probability of a round's selected clients S anew among these clients.

    The probabilities of all other clients stay unchanged. After each round::

        p_i <- λ_i s_i / (sum_{j in S} λ_j s_j) * (1 - sum_{j not in S} p_j),  i in S     (eqs. 15 and 16)

    s_i is the score of the update of client i, in any unit. The paper has no λ in this formula. At the start
    p = λ (the paper: 1/m for m clients, which is the same for equal λ). The state holds a level l_m for each
    client, 1 at the start, and p ∝ λ_m l_m, so corrected sizes change p at once. A joining client gets the
    mean level, so its p is its λ. The probability of a removed client is divided among the others in
    proportion to their p. Selected clients without a score do not belong to S. If all scores are 0, p does
    not change.

    The draws come from q, which is p with the floor of `ImportanceSelector`. Scores are compared only with
    scores of the same round, so with a small K the distribution changes slowly.
    """

    state_axes = Selector.state_axes | {"levels": ("clients",)}

    @abstractmethod
    def _participant_scores(self, feedback: Feedback) -> Floats:
        """Return the scores s (S,) >= 0 of the selected clients; NaN or infinite if a score is unknown."""

    def _scores(self) -> Floats:
        levels: Floats = self._array("levels")
        return levels

    def _initial_state(self) -> dict[str, Array]:
        return {"levels": np.ones(self.num_clients)}

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, _, scores = self._usable(selection, feedback, self._participant_scores(feedback))
        if not scores.any():
            return {}
        levels, sizes = self._array("levels").copy(), self.client_sizes[clients]
        shares = scores / scores.max()
        levels[clients] = shares * ((sizes @ levels[clients]) / (sizes @ shares))
        return {"levels": levels}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        levels = self._array("levels")
        mean = 1.0
        if self._num_registered:
            mean = float(np.average(levels[self._registered], weights=self.client_sizes[self._registered]))
        return {"levels": self._extended("levels", registered.size, mean)}


class PracISSelector(PracticalSelector):
    """Divides the selected clients' probability anew, by the scores s_i = ||ĝ_i|| (eq. 15).

    ĝ_i is the sum of the gradients over the local steps.
    """

    name = "prac-is"
    summary = "by past norms, smoothed over the rounds"

    def _participant_scores(self, feedback: Feedback) -> Floats:
        return feedback.update_norms


@dataclass(frozen=True)
class PracDeltaSettings(DeltaSettings):
    """Settings of FedPracDELTA."""

    diversity_mean: str = setting(
        "weighted",
        choices=("weighted", "plain"),
        doc="the mean from which diversities are distances: with the weights of the estimate, or plain "
        "(the paper's, biased where sampling is not uniform)",
    )


class PracDeltaSelector(PracticalSelector):
    """Divides the selected clients' probability anew, by scores s_i = sqrt(α1 ζ_i² + α2 σ_i²) (eq. 16).

    ζ_i is ``Feedback.diversities`` divided by ``local_steps``, and σ_i² is ``Feedback.gradient_variances``;
    `delta.DeltaSelector` explains their units. Section 4 of the paper does not divide by the number of steps;
    ``local_steps=1`` gives the paper's form. With ``diversity_mean="plain"``, a client that was drawn several
    times counts once in the mean. With FedVARP, ζ_i is the distance of u_i - y_i from the mean of these
    differences, where u_i is the update of client i, and y_i its remembered update
    (`rounds.control_variates.FedVARP`). A client that replies without a variance gets the mean of the
    reported variances. If no client reports a variance, s_i is sqrt(α1) ζ_i.
    """

    name = "prac-delta"
    summary = "by past diversities and variances"
    feedback_used = frozenset({"diversity", "gradient_variance"})
    report_used = "gradient-variance"
    settings_type = PracDeltaSettings
    _settings: PracDeltaSettings

    @property
    def diversity_mean(self) -> Literal["weighted", "plain"]:
        return "plain" if self._settings.diversity_mean == "plain" else "weighted"

    def _participant_scores(self, feedback: Feedback) -> Floats:
        variances = feedback.gradient_variances
        known = feedback.responded & np.isfinite(variances)
        mean = (variances[known] / max(1, known.sum())).sum()  # dividing first keeps large sums finite
        filled = np.where(known, variances, mean)
        return self._settings.scores(feedback.diversities, filled, self._clients_per_round)
