"""Fixed quotas per group: the baseline NAIVE of the FLICS paper (section IV-C)."""

import numpy as np

from ...numerics.arrays import Array, Floats, Ints
from ...numerics.water_filling import round_to_total
from ..context import RoundContext
from .groups import GroupSelector


class NaiveGroupSelector(GroupSelector):
    """Selects min(K p_j, a_j) of the a_j available clients of group j; the plain mean of all, c_m = 1/S.

    K p_j is rounded up or down at random, so that the quotas sum to K and have mean K p_j. Where every group
    fills its quota this is stratified sampling, without bias. What a group lacks in a round is never made up
    for, so the estimate is biased towards the groups that are always available.
    """

    name = "naive-group"
    unbiased = "none"
    equal_weight_draws = "always"
    data_independent = True

    def _initial_state(self) -> dict[str, Array]:
        self._check_groups(self._array("groups"))
        return {}

    def _sample(self, context: RoundContext) -> tuple[Floats, Ints]:
        rng, clients = context.rng("select"), context.available.clients
        groups, a = self._array("groups")[clients], self._counted(clients)
        expected = context.k * self._shares()[0]
        quotas = np.minimum(round_to_total(expected, rng), a)

        # Of each group the clients with the smallest random numbers; only those that may be among them are
        # sorted.
        numbers = rng.random(clients.size)
        bounds = (quotas + 6 * np.sqrt(quotas) + 10) / np.maximum(a, 1)
        few = np.flatnonzero(numbers < bounds[groups])
        if (np.bincount(groups[few], minlength=a.size) < quotas).any():
            few = np.arange(clients.size)
        order = few[np.lexsort((numbers[few], groups[few]))]
        sizes = np.bincount(groups[few], minlength=a.size)
        place = np.arange(few.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        chosen = clients[np.sort(order[place < quotas[groups[order]]])]

        down = np.floor(expected)
        filled = np.minimum(down, a) + (expected - down) * (down < a)
        return filled / np.maximum(a, 1), chosen

    def _weights(self, clients: Ints) -> Floats:
        return np.full(clients.size, 1 / max(1, clients.size))
