"""The interface of all availability processes, and the process "always"."""

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
        """Return the indexes of the clients that are available in a round, ascending; None for all clients.

        Raises
        ------
        ValueError
            If ``round`` is below 1.
        """
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
