"""DELTA: importance sampling by the diversity and the local variance of gradients. FedIS: by norms.

Wang, Guo, Lin, Tang, "DELTA: Diverse Client Sampling for Fasting Federated Learning" (NeurIPS 2023):
Algorithm 1 and Corollary 3.7 for DELTA, eq. 5 and Algorithm 2 for FedIS.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Floats
from ..baselines.optimal import OptimalSelector
from ..importance.importance import ImportanceSettings
from ..importance.reported import ReportedSelector
from ..settings import setting


@dataclass(frozen=True)
class DeltaSettings(ImportanceSettings):
    """Settings of DELTA. If L, η_L and η are given, α1 and α2 are computed from them."""

    alpha_1: float = setting(0.5, low=0.0, high=1e100, doc="α1, the weight of the squared diversity")
    alpha_2: float = setting(0.5, low=0.0, high=1e100, doc="α2, the weight of the local variance")
    local_steps: int = setting(
        1,
        low=1,
        high=10**9,
        doc="number of local steps that an update sums; diversities are divided by it. `cohort` and the "
        "simulator fill it from the run",
    )
    smoothness: float | None = setting(None, low=1e-100, high=1e100, doc="L, of the gradients")
    local_learning_rate: float | None = setting(None, low=1e-100, high=1e100, doc="η_L, of the clients")
    global_learning_rate: float | None = setting(None, low=1e-100, high=1e100, doc="η, of the server")

    def __post_init__(self) -> None:
        super().__post_init__()
        constants = (self.smoothness, self.local_learning_rate, self.global_learning_rate)
        if any(each is None for each in constants) and any(each is not None for each in constants):
            raise ValueError(
                f"smoothness = {constants[0]}, local_learning_rate = {constants[1]}, "
                f"global_learning_rate = {constants[2]}: must all be given, or none"
            )
        if self.alpha_1 == self.alpha_2 == 0:
            raise ValueError("alpha_1 = 0.0, alpha_2 = 0.0: must not both be 0")

    def alphas(self, clients_per_round: int) -> tuple[float, float]:
        """Return (α1, α2) for n = `clients_per_round`.

        If L, η_L and η are given, α1 = 20 K² L η_L and α2 = 5 K L η_L + η/n (Corollary 3.7). The
        paper's K is `local_steps` here. Otherwise α1 and α2 are the settings `alpha_1` and `alpha_2`.
        """
        if self.smoothness is None or self.local_learning_rate is None or self.global_learning_rate is None:
            return self.alpha_1, self.alpha_2
        rate = self.local_steps * self.smoothness * self.local_learning_rate
        return 20 * self.local_steps * rate, 5 * rate + self.global_learning_rate / clients_per_round

    def scores(self, diversities: Floats, variances: Floats, clients_per_round: int) -> Floats:
        """Return the scores sqrt(α1 (ζ/`local_steps`)² + α2 σ²) (n,).

        `diversities` holds ζ (n,) and `variances` holds σ² (n,). A score is not finite if its diversity or
        its variance is not finite, or if it overflows.
        """
        alpha_1, alpha_2 = np.sqrt(self.alphas(clients_per_round))
        with np.errstate(over="ignore", invalid="ignore"):
            scores: Floats = diversities * (alpha_1 / self.local_steps)
            spread = np.sqrt(variances)
            spread *= alpha_2
            return np.hypot(scores, spread, out=scores)


class DeltaSelector(ReportedSelector):
    """p_i ∝ λ_i sqrt(α1 ζ_i² + α2 σ_i²) (eq. 13), over all available clients.

    ``reports["diversity"]`` is the distance ||g_i - mean g||, from which ζ_i is computed (see below).
    ``reports["gradient_variance"]`` is σ_i², the variance of the gradient between the n mini-batches of the
    round's local steps. A client that reports only one of the two counts as not having answered. Differences
    from eq. 13:

    - g_i is the sum of the gradients over the local steps, computed from the client's update as in section 4
      of the paper. Both numbers also contain the drift of the client's model over the steps. ζ_i is the
      distance divided by ``local_steps``, because σ_i² is the variance of a single step.
    - In the mean of g, the length of an update counts as at most ten times the median length
      (`numerics.robust.mean_weights`), so that no single client determines all distances.
    - σ_i² has the divisor n - 1 where the paper has |B| = n. So a client with a single mini-batch has no
      σ_i², and the app and the simulator refuse a run with one local step.

    If ``local_steps`` is not given, the app and the simulator take it from the run. It is 1 by default in the
    library, and in a simulation that counts epochs; ζ_i² is then too large by the square of the number of
    steps.

    The p of eq. 13 minimises a bound, not the variance of the aggregate. If a large component is common to
    all gradients, clients near the mean are drawn rarely and get large weights, and DELTA does worse than
    uniform sampling. (Appendix B.1 shows the opposite, because it takes plain means.) Section 3.4 of the
    paper has α1 and α2 swapped; eq. 13 and Corollary 3.7 follow from eq. 11.
    """

    name = "delta"
    summary = "by diversities and variances of gradients"
    polls_for = frozenset({"diversity", "gradient_variance"})
    settings_type = DeltaSettings
    _settings: DeltaSettings

    def _reported_scores(self, reports: Mapping[str, Floats]) -> Floats:
        return self._settings.scores(
            reports["diversity"], reports["gradient_variance"], self._clients_per_round
        )


class FedISSelector(OptimalSelector):
    """p_i = ||ĝ_i|| / sum_j ||ĝ_j|| (eq. 5), with λ_i ||ĝ_i|| instead of ||ĝ_i|| if sizes are unequal.

    The paper states the form for unequal sizes after eq. 34, where q_i is λ_i. ĝ_i is the sum of the
    gradients over the local steps.

    FedIS is ``optimal`` with a larger floor. The paper assumes a floor (p >= γ > 0) but does not define it.
    By a misprint, eq. 76 has the norm of the mean of the ĝ_i instead of the mean of the norms.

    All norms must be known before each round. ``prac-is`` needs only the norms of the selected clients.
    """

    name = "fed-is"
    summary = "in proportion to their norms"
    settings_type = ImportanceSettings
