"""Importance sampling by Lipschitz constants, with a fixed distribution.

Zhao, Zhang, "Stochastic Optimization with Importance Sampling for Regularized Loss Minimization" (ICML 2015);
Needell, Srebro, Ward (2016). The distribution is p^IS in section F.5 of the OSMD paper.
"""

from ...numerics.arrays import Floats
from ..settings import PerClient
from .importance import ImportanceSelector, ThinFloorSettings


class LipschitzISSelector(ImportanceSelector):
    """p_m ∝ λ_m L_m, where L_m is the Lipschitz constant of the gradient of client m's loss.

    This p is good only if clients with larger L_m have larger norms of updates in all rounds. The unit of L
    does not matter. The small floor of `ThinFloorSettings` is ours.
    """

    name = "lipschitz-is"
    summary = "by Lipschitz constants"
    data_independent = True
    settings_type = ThinFloorSettings
    per_client = ImportanceSelector.per_client | {
        "lipschitz": PerClient(None, 1e-100, 1e100, False, "L of the gradient of the loss, in any unit")
    }

    def _scores(self) -> Floats:
        constants: Floats = self._array("lipschitz")
        return constants
