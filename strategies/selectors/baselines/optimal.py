"""Optimal sampling: p in proportion to the root of a_m, with the norms of all clients known beforehand.

The minimiser of the variance reduction loss, eq. 5 of Zhao, Wang, Kolar, "Adaptive Client Sampling in
Federated Learning via Online Learning with Bandit Feedback"; an oracle for experiments.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy.typing as npt

from ...numerics.arrays import Floats, Ints
from ..importance.scores import ImportanceSettings, ReportedSelector, ThinFloorSettings, at_least_0
from ..presence import Presence


class OptimalSelector(ReportedSelector):
    """p_m = sqrt(a_m) / sum_j sqrt(a_j) with a_m = λ_m² ||g_m||², so p ∝ λ_m ||g_m||.

    The norms of this round's updates, of all who are here, are ``reports["update_norm"]``: it asks of each
    client the work that sampling is there to save. The unit of norms does not matter.
    """

    name = "optimal"
    polls_for: ClassVar[frozenset[str]] = frozenset({"update_norm"})
    settings_type: ClassVar[type[ImportanceSettings]] = ThinFloorSettings

    def _reported_scores(
        self, candidates: npt.ArrayLike | None, reports: Mapping[str, Floats] | None, here: Presence
    ) -> tuple[Ints, Floats]:
        asked, norms = self._answers("update_norm", candidates, reports, here)
        return asked, at_least_0("update_norm", norms)
