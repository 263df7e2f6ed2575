"""FedPracIS: importance sampling by the norms of the selected clients' last updates.

Wang, Guo, Lin, Tang, "DELTA: Diverse Client Sampling for Fasting Federated Learning" (NeurIPS 2023), eq. 15
and Algorithm 2.
"""

from ...numerics.arrays import Floats
from ..records import Feedback
from .practical import PracticalSelector


class PracISSelector(PracticalSelector):
    """Divides the selected clients' probability anew, by the scores s_i = ||ĝ_i|| (eq. 15).

    ĝ_i is the sum of the gradients over the local steps.
    """

    name = "prac-is"
    summary = "by past norms, smoothed over the rounds"

    def _participant_scores(self, feedback: Feedback) -> Floats:
        return feedback.update_norms
