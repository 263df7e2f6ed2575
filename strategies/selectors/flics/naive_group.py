"""A fixed quota for each group: the baseline NAIVE of the FLICS paper (section IV-C)."""

import numpy as np

from ...numerics.arrays import Array, Floats, Ints
from ...numerics.budget_allocation import round_to_total
from ..context import RoundContext
from .groups import GroupSelector


class NaiveGroupSelector(GroupSelector):
    """Selects min(K p_j, a_j) of the a_j available clients of group j, and takes the plain mean, c_m = 1/S.

    p_j is the target share of group j. K p_j is rounded up or down at random; the quotas sum to K, and the
    mean of each is K p_j. If every group fills its quota, this is stratified sampling without bias. Later
    rounds do not compensate for an unfilled quota, so the aggregate is biased towards the groups that are
    always available.
    """

    name = "naive-group"
    summary = "in fixed numbers from each group"
    unbiased = "none"
    equal_weight_draws = "always"
    data_independent = True

    def _initial_state(self) -> dict[str, Array]:
        self._check_groups(self._array("groups"))
        return {}

    def _sample(self, context: RoundContext) -> tuple[Floats, Ints]:
        rng, groups = context.rng("select"), self._available_groups(context)
        a = self._counted(groups)
        expected = context.k * self._shares()[0]
        quotas = np.minimum(round_to_total(expected, rng), a)
        chosen = self._draw(context, groups, quotas, rng)
        down = np.floor(expected)
        filled = np.minimum(down, a) + (expected - down) * (down < a)
        return filled / np.maximum(a, 1), chosen

    def _weights(self, clients: Ints) -> Floats:
        return np.full(clients.size, 1 / max(1, clients.size))
