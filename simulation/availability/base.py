"""The interface of all availability processes, and the processes "always" and "once"."""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Ints
from strategies.numerics.streams import generator

Floats32 = npt.NDArray[np.float32]  # four bytes per client are enough for a rate

DAY = 24
"""Rounds per day, in processes with a time of day."""


class Availability(ABC):
    """Determines which clients are available in a round.

    The available clients are a function of (seed, round). So rounds may be requested in any order, and a
    resumed run sees the same clients. Whether a client is available does not depend on the number of clients,
    except in `Cyclic`, `Once`, `Trace` and `GroupCounts`. Most processes have further parameters.

    Parameters
    ----------
    num_clients : int
        M.
    seed : int (default: 0)
        Seed of all draws, >= 0.
    """

    purpose = "availability"
    """Purpose of the random stream (`strategies.numerics.streams`)."""

    def __init__(self, num_clients: int, seed: int = 0) -> None:
        if num_clients < 1:
            raise ValueError(f"num_clients = {num_clients}: must be >= 1")
        self.num_clients = num_clients
        self.seed = seed

    def available(self, round: int) -> Ints | None:
        """Return the clients that are available in a round >= 1, ascending; None for all clients."""
        if round < 1:
            raise ValueError(f"round = {round}: must be >= 1")
        return self._available(round)

    def num_registered(self, round: int) -> int:
        """Return how many clients are registered in a round. Registered clients have the lowest indexes."""
        return self.num_clients

    @abstractmethod
    def _available(self, round: int) -> Ints | None: ...

    def _generator(self, round: int) -> np.random.Generator:
        return generator(self.seed, round, self.purpose)


class Always(Availability):
    """All clients are always available."""

    def _available(self, round: int) -> None:
        return None


def checked_rates(field: str, rates: npt.ArrayLike, num_clients: int) -> Floats32:
    """Check probabilities, and return them as float32: one for all clients, or (M,) one per client."""
    values = np.asarray(rates, dtype=np.float32)
    if values.shape not in ((), (num_clients,)) or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(
            f"{field} = {values}: must be in [0, 1], one number or one for each of {num_clients} clients"
        )
    return values


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
