"""DELTA: importance sampling by gradient diversity and local variance.

Wang, Guo, Lin, Tang, "DELTA: Diverse Client Sampling for Fasting Federated Learning" (NeurIPS 2023),
Algorithm 1 and Corollary 3.7.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Floats
from ..importance.importance import ImportanceSettings
from ..importance.reported import ReportedSelector
from ..settings import setting


@dataclass(frozen=True)
class DeltaSettings(ImportanceSettings):
    """Settings of DELTA; α1 and α2 follow from L, η_L and η where these are given."""

    alpha_1: float = setting(0.5, low=0.0, high=1e100, doc="α1, the weight of the squared diversity")
    alpha_2: float = setting(0.5, low=0.0, high=1e100, doc="α2, the weight of the local variance")
    local_steps: int = setting(
        1, low=1, high=10**9, doc="number of local steps that an update sums; diversities are divided by it"
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
        """Return (α1, α2): 20 K² L η_L and 5 K L η_L + η/n of Corollary 3.7, or as set."""
        if self.smoothness is None or self.local_learning_rate is None or self.global_learning_rate is None:
            return self.alpha_1, self.alpha_2
        rate = self.local_steps * self.smoothness * self.local_learning_rate
        return 20 * self.local_steps * rate, 5 * rate + self.global_learning_rate / clients_per_round

    def scores(self, diversities: Floats, variances: Floats, clients_per_round: int) -> Floats:
        """Return sqrt(α1 (ζ/K)² + α2 σ²) (n,); not finite where an input is not, or on overflow."""
        alpha_1, alpha_2 = np.sqrt(self.alphas(clients_per_round))
        with np.errstate(over="ignore", invalid="ignore"):
            scores: Floats = diversities * (alpha_1 / self.local_steps)
            spread = np.sqrt(variances)
            spread *= alpha_2
            return np.hypot(scores, spread, out=scores)


class DeltaSelector(ReportedSelector):
    """p_i ∝ λ_i sqrt(α1 ζ_i² + α2 σ_i²) (eq. 13), over all available clients.

    ζ_i = ||g_i - mean g|| is ``reports["diversity"]``, and σ_i², the variance of the gradient between
    batches, is ``reports["gradient_variance"]``; a client that reports only one of them has not answered. As
    everywhere, g is the sum over the local steps. The variance is that of one step, so ζ is divided by
    ``local_steps``: otherwise it would dominate by its unit alone.

    Section 3.4 compares with uniform sampling with α1 and α2 swapped; eq. 13 and the constants of Corollary
    3.7 follow from eq. 11. They minimise a bound, not the variance of the estimate: where all gradients share
    a large common part, clients near the mean are drawn rarely and get large weights, and DELTA does worse
    than uniform sampling. The toy example of appendix B.1, which shows the opposite, takes plain means of the
    selected pairs; with the unbiased weights the order is reversed.
    """

    name = "delta"
    polls_for = frozenset({"diversity", "gradient_variance"})
    settings_type = DeltaSettings
    _settings: DeltaSettings

    def _reported_scores(self, reports: Mapping[str, Floats]) -> Floats:
        return self._settings.scores(
            reports["diversity"], reports["gradient_variance"], self._clients_per_round
        )
