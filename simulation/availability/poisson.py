"""Each client is available independently in each round: "poisson", "uniform", "cyclic" and "diurnal"."""

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Ints
from strategies.numerics.streams import generator

from .base import DAY, Availability, Floats32, checked_rates


class Poisson(Availability):
    """Each client is available with its own probability.

    If all rates are small, the number of available clients has about a Poisson distribution.

    Parameters
    ----------
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


class Cyclic(Poisson):
    """Each client has one rate by day, in rounds 1, 3, ..., and another by night, in rounds 2, 4, ...

    Parameters
    ----------
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


class Diurnal(Poisson):
    """Each client's rate follows a sine over the day in the client's time zone.

    Parameters
    ----------
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
