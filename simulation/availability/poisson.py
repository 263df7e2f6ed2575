"""Each client by its own coin, in each round anew."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Ints

from .base import Availability, Floats32, checked_rates


class Poisson(Availability):
    """Each client tosses a coin of its own in each round, so that about a Poisson number are here.

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`.
    rates : float or array_like, shape (M,) (default: 0.5)
        The probability with which each client is here, in [0, 1].
    """

    def __init__(self, num_clients: int, seed: int = 0, *, rates: npt.ArrayLike = 0.5) -> None:
        super().__init__(num_clients, seed)
        self.rates = checked_rates("rates", rates, num_clients)

    def _here(self, round: int) -> Ints:
        rng = self._generator(round)
        chances = self._chances(round, rng)
        return np.flatnonzero(rng.random(self.num_clients, dtype=np.float32) < chances)

    def _chances(self, round: int, rng: np.random.Generator) -> Floats32:
        """Return the probability of each client, or one for all; what is above 1 counts as 1."""
        return self.rates


class Uniform(Poisson):
    """A factor, uniform in [.5, 1.5], on all rates: about half to 1.5 times as many are here.

    Takes the parameters of `Poisson`. From a rate of 2/3 on, a client is here less often than its rate says.
    """

    def _chances(self, round: int, rng: np.random.Generator) -> Floats32:
        return self.rates * np.float32(rng.uniform(0.5, 1.5))
