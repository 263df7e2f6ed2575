"""Importance sampling by Lipschitz constants: a fixed distribution, made once.

Zhao, Zhang, "Stochastic Optimization with Importance Sampling for Regularized Loss Minimization" (ICML 2015);
Needell, Srebro, Ward (2016). It is p^IS in section F.5 of the OSMD paper.
"""

from ...numerics.arrays import Floats
from ..settings import PerClient
from .importance import ImportanceSelector, ThinFloorSettings


class LipschitzISSelector(ImportanceSelector):
    """p_m ∝ λ_m L_m, L_m being the Lipschitz constant of the gradient of client m's loss.

    Worst-case constants stand in for norms: a good choice where the norms keep the order of the L_m, and no
    better than any other fixed p where they change. The unit of L does not matter.
    """

    name = "lipschitz-is"
    data_independent = True
    settings_type = ThinFloorSettings
    per_client = ImportanceSelector.per_client | {
        "lipschitz": PerClient(None, 1e-100, 1e100, False, "L, of the gradient of its loss, in any unit")
    }

    def _scores(self) -> Floats:
        constants: Floats = self._array("lipschitz")
        return constants
