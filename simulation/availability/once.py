"""Each client is available in one round only, as in federations so large that clients never return."""

import numpy as np

from strategies.numerics.arrays import Ints
from strategies.numerics.streams import generator

from .base import Availability


class Once(Availability):
    """New clients are available in each round, and never return. After the last client, nobody is available.

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`. The round in which a client is available depends on M.
    rates : float (default: 0.01)
        Share of all clients that are available in each round, in (0, 1]; at least one client per round.
    """

    def __init__(self, num_clients: int, seed: int = 0, *, rates: float = 0.01) -> None:
        super().__init__(num_clients, seed)
        if np.ndim(rates) or not 0 < rates <= 1:
            raise ValueError(f"rates = {rates}: must be one number in (0, 1]")
        self.per_round = max(1, round(rates * num_clients))
        self._order = generator(seed, 0, "once").permutation(num_clients)

    def _available(self, round: int) -> Ints:
        return np.sort(self._order[(round - 1) * self.per_round : round * self.per_round])
