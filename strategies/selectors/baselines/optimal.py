"""Optimal sampling: p in proportion to λ_m ||g_m||, where the norms of all clients' updates are known.

This p minimises the variance reduction loss, eq. 4 of Zhao, Wang, Kolar, "Adaptive Client Sampling in
Federated Learning via Online Learning with Bandit Feedback". The selector is an oracle for experiments.
"""

from collections.abc import Mapping
from typing import ClassVar

from ...numerics.arrays import Floats
from ..importance.importance import ImportanceSettings, ThinFloorSettings
from ..importance.reported import ReportedSelector


class OptimalSelector(ReportedSelector):
    """p_m = sqrt(a_m) / sum_j sqrt(a_j) with a_m = λ_m² ||g_m||², so p ∝ λ_m ||g_m||.

    All available clients train in every round to report the norms of their updates. The unit of norms does
    not matter. The small floor of `ThinFloorSettings` is ours.
    """

    name = "optimal"
    summary = "with the probabilities of least variance"
    polls_for = frozenset({"update_norm"})
    settings_type: ClassVar[type[ImportanceSettings]] = ThinFloorSettings

    def _reported_scores(self, reports: Mapping[str, Floats]) -> Floats:
        return reports["update_norm"]
