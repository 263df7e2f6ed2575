"""Importance sampling: p is in proportion to λ times a score, and has a floor. The score may be fixed."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Floats
from .. import checks
from ..probability import ProbabilitySelector, ProbabilitySettings
from ..settings import PerClient, setting


@dataclass(frozen=True)
class ImportanceSettings(ProbabilitySettings):
    """Settings of every selector that samples by importance."""

    floor: float = setting(0.1, low=1e-9, high=1.0, doc="ε: clients are drawn from q = (1 - ε) p + ε/M")


@dataclass(frozen=True)
class ThinFloorSettings(ImportanceSettings):
    """Settings for exact scores. The default floor multiplies the variance by at most 1/.999."""

    floor: float = setting(0.001, low=1e-9, high=1.0, doc="ε: clients are drawn from q = (1 - ε) p + ε/M")


class ImportanceSelector(ProbabilitySelector):
    """Draws from ``q = (1 - ε) p + ε/M``, ``p_m = λ_m s_m / sum_j λ_j s_j`` for scores s.

    For equal λ, p is that of the subclass's paper. For other λ, p ∝ λ s minimises the same bound. If all
    scores are 0, p = λ. Without the floor ε/M, a client with a score of 0 would never be drawn again and
    would be missing in the aggregate. With the floor and with replacement, each draw of a client adds at most
    M/(K ε) to the client's W. (With `cluster-is`: at most 2 M/(K ε).)
    """

    settings_type = ImportanceSettings
    _settings: ImportanceSettings

    @abstractmethod
    def _scores(self) -> Floats:
        """Return the scores s (M,), finite and >= 0. The entries of removed clients have no effect."""

    def _distribution(self) -> Floats:
        registered = self._registered
        if self._num_registered == self.num_clients:
            return self._floored(self.client_sizes, self._scores())
        q = np.zeros(self.num_clients)
        q[registered] = self._floored(self.client_sizes[registered], self._scores()[registered])
        return q

    def _floored(self, sizes: Floats, scores: Floats) -> Floats:
        """Return q (n,) for the `sizes` (n,) and `scores` (n,) of n >= 0 clients, in a new array."""
        largest = scores.max(initial=0.0)
        p: Floats = scores / largest if largest > 0 else np.ones(scores.size)
        p *= sizes
        epsilon = self._settings.floor
        p *= (1 - epsilon) / max(p.sum(), checks.SMALLEST_SIZE)
        p += epsilon / max(1, p.size)
        return p


class LipschitzISSelector(ImportanceSelector):
    """p_m ∝ λ_m L_m, where L_m is the Lipschitz constant of the gradient of client m's loss.

    Zhao, Zhang, "Stochastic Optimization with Importance Sampling for Regularized Loss Minimization" (ICML
    2015); Needell, Srebro, Ward (2016). The distribution is p^IS in section F.5 of the OSMD paper.

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
