"""More clients at noon than at night, where they live."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strategies.numerics.streams import generator

from .base import Floats32
from .poisson import Poisson
from .traces import DAY


class Diurnal(Poisson):
    """Each client's rate goes up and down with a sine, by the time of day where it lives.

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`.
    rates : float or array_like, shape (M,) (default: 0.5)
        On average over a day; above 0.5 it is less, as nobody can be more than here.
    day : int (default: 24)
        Rounds a day, >= 2.
    zones : array_like of int, shape (M,), optional
        By how many rounds, 0 to day - 1, each client's day is ahead; default: drawn.
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
        if (
            given.shape != (num_clients,)
            or given.dtype.kind not in "iu"
            or given.min() < 0
            or given.max() >= day
        ):
            raise ValueError(f"zones = {given}: must be {num_clients} whole numbers from 0 to {day - 1}")
        self.day = day
        self.zones = given.astype(np.min_scalar_type(day))

    def _chances(self, round: int, rng: np.random.Generator) -> Floats32:
        hours = round - 1 + np.arange(self.day)
        factors = (1 + np.sin(2 * np.pi * hours / self.day)).astype(np.float32)
        chances: Floats32 = self.rates * factors[self.zones]
        return chances
