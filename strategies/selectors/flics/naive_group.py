"""Fixed quotas per group: the baseline NAIVE of the FLICS paper (section IV-C)."""

from typing import ClassVar, Literal

import numpy as np

from ...numerics.arrays import Array, Floats, Ints
from ...numerics.streams import generator
from ...numerics.water_filling import round_to_total
from .groups import GroupSelector


class NaiveGroupSelector(GroupSelector):
    """Chooses min(K p_j, a_j) of the a_j clients of group j that are here; the plain mean of all, c_m = 1/S.

    K p_j is rounded up or down at random, so that the quotas sum to K and are right on average. Where every
    group fills its quota this is stratified sampling, without bias. A group that does not fill it is missing
    in that round and is never made up for: the estimate leans to the groups that are always here.
    """

    name = "naive-group"
    unbiased: ClassVar[Literal["round", "long-run", "none"]] = "none"
    equal_weight_draws: ClassVar[Literal["always", "with replacement", "never"]] = "always"
    data_independent: ClassVar[bool] = True

    def _initial_state(self) -> dict[str, Array]:
        self._check_groups(self._array("groups"))
        return {}

    def _invite(self, round: int, here: Ints, k: int) -> tuple[Floats, Ints]:
        rng = generator(self._seed, round, "select")
        groups = self._array("groups")[here]
        a = np.bincount(groups, minlength=self._num_groups())
        expected = k * self._targets()[0]
        quotas = np.minimum(round_to_total(expected, rng), a)

        # Those with the smallest random numbers of their group, sorted among the few that may be of them.
        numbers = rng.random(here.size)
        bounds = (quotas + 6 * np.sqrt(quotas) + 10) / np.maximum(a, 1)
        few = np.flatnonzero(numbers < bounds[groups])
        if (np.bincount(groups[few], minlength=a.size) < quotas).any():
            few = np.arange(here.size)
        order = few[np.lexsort((numbers[few], groups[few]))]
        sizes = np.bincount(groups[few], minlength=a.size)
        place = np.arange(few.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        chosen = np.sort(order[place < quotas[groups[order]]])

        down = np.floor(expected)
        filled = np.minimum(down, a) + (expected - down) * (down < a)
        return filled / np.maximum(a, 1), chosen

    def _weights(self, clients: Ints) -> Floats:
        return np.full(clients.size, 1 / max(1, clients.size))
