"""Rounds are day and night in turn: each client has one rate of availability by day, and another by night."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .base import Floats32, checked_rates
from .poisson import Poisson


class Cyclic(Poisson):
    """Each client has one rate by day, in rounds 1, 3, ..., and another by night, in rounds 2, 4, ...

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`.
    rates : float or array_like, shape (M,) (default: 0.5)
        Rates by day, in [0, 1]. If ``rates`` is a single number and ``night_rates`` is not given, only the
        first half of the clients have this rate by day, and the second half have the rate 0. At night, the
        halves exchange their rates. So two groups alternate, as in appendix G.3 of the Power-of-Choice paper.
    night_rates : float or array_like, shape (M,), optional
        Rates by night, in [0, 1] (default: the rates by day in reverse order of the clients).
    """

    def __init__(
        self,
        num_clients: int,
        seed: int = 0,
        *,
        rates: npt.ArrayLike = 0.5,
        night_rates: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(num_clients, seed, rates=rates)
        if night_rates is not None:
            self.night_rates = checked_rates("night_rates", night_rates, num_clients)
            return
        if self.rates.ndim == 0:
            first_half = np.arange(num_clients) < num_clients / 2
            self.rates = np.where(first_half, self.rates, np.float32(0))
        self.night_rates = self.rates[::-1]

    def _probabilities(self, round: int, rng: np.random.Generator) -> Floats32:
        return self.rates if round % 2 == 1 else self.night_rates
