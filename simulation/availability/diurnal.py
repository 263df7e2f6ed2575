"""The availability of each client follows the time of day in its time zone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strategies.numerics.streams import generator

from .base import DAY, Floats32
from .poisson import Poisson


class Diurnal(Poisson):
    """Each client's rate follows a sine over the day in the client's time zone.

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`.
    rates : float or array_like, shape (M,) (default: 0.5)
        Mean rates over a day, in [0, 1]. If a rate is above 0.5, the actual mean is lower than the rate,
        because probabilities are cut at 1.
    day : int (default: 24)
        Rounds per day, >= 2.
    zones : array_like of int, shape (M,), optional
        How many rounds each client's clock is ahead, 0 to day - 1 (default: drawn at random).
    """

    def __init__(
        self,
        num_clients: int,
        seed: int = 0,
        *,
        rates: npt.ArrayLike = 0.5,
        day: int = DAY,
        zones: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(num_clients, seed, rates=rates)
        if day < 2:
            raise ValueError(f"day = {day}: must be >= 2")
        if zones is None:
            zones = generator(seed, 0, "zones").integers(day, size=num_clients)
        given = np.asarray(zones)
        is_whole = given.shape == (num_clients,) and given.dtype.kind in "iu"
        if not is_whole or given.min() < 0 or given.max() >= day:
            raise ValueError(f"zones = {given}: must be {num_clients} whole numbers from 0 to {day - 1}")
        self.day = day
        self.zones = given.astype(np.min_scalar_type(day))

    def _probabilities(self, round: int, rng: np.random.Generator) -> Floats32:
        hours = round - 1 + np.arange(self.day)
        factors = (1 + np.sin(2 * np.pi * hours / self.day)).astype(np.float32)
        probabilities: Floats32 = self.rates * factors[self.zones]
        return probabilities
