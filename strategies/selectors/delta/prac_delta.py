"""FedPracDELTA: sampling by the diversity and the local variance of the selected clients' last updates.

Wang, Guo, Lin, Tang, "DELTA: Diverse Client Sampling for Fasting Federated Learning" (NeurIPS 2023), eq. 16
and Algorithm 1.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...numerics.arrays import Floats
from ..records import Feedback
from ..settings import setting
from .delta import DeltaSettings
from .practical import PracticalSelector


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
        """The setting `diversity_mean`, see `Selector.diversity_mean`."""
        return "plain" if self._settings.diversity_mean == "plain" else "weighted"

    def _participant_scores(self, feedback: Feedback) -> Floats:
        variances = feedback.gradient_variances
        known = feedback.responded & np.isfinite(variances)
        mean = (variances[known] / max(1, known.sum())).sum()  # dividing first keeps large sums finite
        filled = np.where(known, variances, mean)
        return self._settings.scores(feedback.diversities, filled, self._clients_per_round)
