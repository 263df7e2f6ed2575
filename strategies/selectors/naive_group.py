"""Fixed quotas per group: the baseline NAIVE of the FLICS paper (section IV-C)."""

from typing import ClassVar, Literal

import numpy as np

from ..numerics.arrays import Array, Bools, Floats, Ints
from ..numerics.streams import generator
from ..numerics.water_filling import round_to_total
from .groups import GroupSelector


class NaiveGroupSelector(GroupSelector):
    """Chooses min(K p_j, a_j) of the a_j clients of group j that are here; the plain mean of all, c_m = 1/S.

    K p_j is rounded up or down at random, so that the quotas sum to K and are right on average. Where every
    group fills its quota this is stratified sampling, without bias. A group that does not fill it is missing
    in that round and is never made up for: the estimate leans to the groups that are always here.
    """

    name = "naive-group"
    unbiased: ClassVar[Literal["round", "long-run", "none"]] = "none"

    def _initial_state(self) -> dict[str, Array]:
        self._check_groups(self._array("groups"))
        return {}

    def _invite(self, round: int, here: Ints, k: int) -> tuple[Floats, Bools]:
        rng = generator(self._seed, round, "select")
        groups = self._array("groups")[here]
        a = np.bincount(groups, minlength=self._num_groups())
        expected = k * self._targets()[0]
        quotas = round_to_total(expected, rng)

        order = np.argsort(groups + rng.random(here.size))  # group by group, each shuffled
        place = np.empty(here.size, dtype=np.int64)
        place[order] = np.arange(here.size) - np.repeat(np.cumsum(a) - a, a)
        down = np.floor(expected)
        filled = np.minimum(down, a) + (expected - down) * (down < a)
        return (filled / np.maximum(a, 1))[groups], place < quotas[groups]

    def _weights(self, clients: Ints) -> Floats:
        return np.full(clients.size, 1 / max(1, clients.size))
