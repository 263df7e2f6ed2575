"""Who is here in which round: the interface, and everybody always."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Ints
from strategies.numerics.streams import generator

Floats32 = npt.NDArray[np.float32]  # four bytes a client are enough for a rate


class Availability(ABC):
    """Says who is here in a round.

    A function of (seed, round): rounds may be asked for in any order, and a resumed run sees the same. What a
    client does depends on its index, not on how many there are beside it, unless a process says otherwise.

    Parameters
    ----------
    num_clients : int
        M.
    seed : int (default: 0)
        Of all draws, >= 0.
    """

    purpose = "availability"
    """Of the random stream (`strategies.numerics.streams`)."""

    def __init__(self, num_clients: int, seed: int = 0) -> None:
        if num_clients < 1:
            raise ValueError(f"num_clients = {num_clients}: must be >= 1")
        self.num_clients = num_clients
        self.seed = seed

    def here(self, round: int) -> Ints | None:
        """Return the indexes of the clients that are here in a round, ascending; None for everybody.

        Raises
        ------
        ValueError
            If ``round`` is below 1.
        """
        if round < 1:
            raise ValueError(f"round = {round}: must be >= 1")
        return self._here(round)

    def known(self, round: int) -> int:
        """Return how many clients there are in a round, here or away: those with the lowest indexes."""
        return self.num_clients

    @abstractmethod
    def _here(self, round: int) -> Ints | None: ...

    def _generator(self, round: int) -> np.random.Generator:
        return generator(self.seed, round, self.purpose)


class Always(Availability):
    """Everybody is always here."""

    def _here(self, round: int) -> None:
        return None


def checked_rates(field: str, rates: npt.ArrayLike, num_clients: int) -> Floats32:
    """Return probabilities, one for all () or one for each client (M,)."""
    values = np.asarray(rates, dtype=np.float32)
    if values.shape not in ((), (num_clients,)) or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(
            f"{field} = {values}: must be in [0, 1], one number or one for each of {num_clients}"
        )
    return values
