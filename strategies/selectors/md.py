"""Multinomial by data: clients are drawn in proportion to their data (Li et al. 2020, FedProx)."""

import numpy as np

from ..numerics.arrays import Floats
from .probability import ProbabilitySelector


class MultinomialSelector(ProbabilitySelector):
    """p_m = λ_m = size_m / sum of the living's sizes.

    With replacement every drawn client weighs N_m/K. A strong baseline wherever sizes explain the norms of
    updates.
    """

    name = "md"

    def _distribution(self) -> Floats:
        sizes = np.where(self._living, self.client_sizes, 0.0)
        total = sizes.sum()
        return sizes / total if total > 0 else sizes
