"""Each client is available independently in each round: "poisson" and "uniform"."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Ints

from .base import Availability, Floats32, checked_rates


class Poisson(Availability):
    """Each client is available with its own probability.

    If all rates are small, the number of available clients has about a Poisson distribution.

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`.
    rates : float or array_like, shape (M,) (default: 0.5)
        Probability that each client is available, in [0, 1].
    """

    def __init__(self, num_clients: int, seed: int = 0, *, rates: npt.ArrayLike = 0.5) -> None:
        super().__init__(num_clients, seed)
        self.rates = checked_rates("rates", rates, num_clients)

    def _available(self, round: int) -> Ints:
        rng = self._generator(round)
        probabilities = self._probabilities(round, rng)
        return np.flatnonzero(rng.random(self.num_clients, dtype=np.float32) < probabilities)

    def _probabilities(self, round: int, rng: np.random.Generator) -> Floats32:
        """Return one probability per client, or one for all clients; values above 1 act as 1."""
        return self.rates


class Uniform(Poisson):
    """In each round, a random factor that is uniform in [0.5, 1.5] multiplies the rates of all clients.

    The parameters are those of `Poisson`. A client with a rate above 2/3 is available less often than its
    rate says, because a probability is at most 1.
    """

    def _probabilities(self, round: int, rng: np.random.Generator) -> Floats32:
        return self.rates * np.float32(rng.uniform(0.5, 1.5))
