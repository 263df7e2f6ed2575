"""Who is here in a round, kept so that a few absent clients among millions cost no pass over all."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..numerics.arrays import Bools, Floats, Ints

FEW = 8
"""The absent are few when they are at most one in so many of the registered clients."""

NOBODY: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Presence:
    """Who is here: everyone living but a few, or a list.

    Attributes
    ----------
    registered : ndarray of bool, shape (M,)
        Who was not removed.
    client_sizes : ndarray, shape (M,)
        Sizes of all.
    count : int
        How many are here.
    registered_size : float
        Sum of the registered clients's sizes.
    absent : ndarray of int or None
        The living who are not here, ascending, if they are few; None if `listed` says who is here.
    listed : ndarray of int or None
        Those who are here, ascending, if the absent are not few.
    """

    registered: Bools
    client_sizes: Floats
    count: int
    registered_size: float
    absent: Ints | None
    listed: Ints | None = None

    @cached_property
    def clients(self) -> Ints:
        """Those who are here, ascending; a pass over all clients where the absent are few."""
        if self.listed is not None:
            return self.listed
        if self.count == self.registered.size:
            return np.arange(self.count)
        return np.flatnonzero(self.mask)

    @cached_property
    def mask(self) -> Bools:
        """(M,) who is here; not to be written to."""
        if self.listed is not None:
            here = np.zeros(self.registered.size, dtype=np.bool_)
            here[self.listed] = True
            return here
        if self.absent is None or self.absent.size == 0:
            return self.registered
        here = self.registered.copy()
        here[self.absent] = False
        return here

    def of(self, values: Floats) -> Floats:
        """Return the entries of values (M,) for those who are here, in their order; not to be written to."""
        return values if self.count == self.registered.size else values[self.clients]

    def at(self, positions: Ints) -> Ints:
        """Return the clients at some positions among those who are here, who are in ascending order."""
        return positions if self.count == self.registered.size else self.clients[positions]

    @property
    def total_size(self) -> float:
        """Sum of the sizes of those who are here."""
        if self.absent is not None:
            if self.absent.size == 0:
                return self.registered_size
            rest = self.registered_size - float(self.client_sizes[self.absent].sum())
            if rest > 0.1 * self.registered_size:  # else the difference cancels
                return rest
        return float(self.of(self.client_sizes).sum())

    def holds(self, clients: Ints) -> Bools:
        """Return which of some registered clients are here; only where the absent are few."""
        absent = self.absent
        if absent is None or absent.size == 0:
            return np.ones(clients.size, dtype=np.bool_)
        found: Bools = absent[np.minimum(np.searchsorted(absent, clients), absent.size - 1)] != clients
        return found
