"""The available clients of a round, in a form in which a few absent among millions cost no pass over all."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from ..numerics.arrays import Bools, Floats, Ints

FEW = 8
"""The absent are few when they are at most one in this many of the registered clients."""

NOBODY: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Presence:
    """The available clients: all registered ones but a few absent, or a list.

    `only` and `without` make that of a round from that of all registered clients (`absent` empty), and keep
    the cheaper of the two forms, so that an answer does not depend on which of them was called.

    Attributes
    ----------
    registered : ndarray of bool, shape (M,)
        Which clients were not removed.
    client_sizes : ndarray, shape (M,)
        Sizes of all clients.
    count : int
        How many clients are available.
    registered_size : float
        Sum of the registered clients' sizes.
    absent : ndarray of int or None
        The registered clients that are not available, ascending, if they are few; None if `listed` is given.
    listed : ndarray of int or None
        The available clients, ascending, if the absent are not few.
    """

    registered: Bools
    client_sizes: Floats
    count: int
    registered_size: float
    absent: Ints | None
    listed: Ints | None = None

    def only(self, clients: Ints) -> Self:
        """Return the presence of these registered clients alone (ascending); ``self`` is that of all."""
        if (self.count - clients.size) * FEW > self.count:
            return self._with(clients.size, None, clients)
        elsewhere = self.registered.copy()
        elsewhere[clients] = False
        return self.without(np.flatnonzero(elsewhere))

    def without(self, clients: Ints) -> Self:
        """Return the presence of all but these registered clients (ascending); ``self`` is that of all."""
        few = self._with(self.count - clients.size, clients, None)
        return few if clients.size * FEW <= self.count else self._with(few.count, None, few.clients)

    def _with(self, count: int, absent: Ints | None, listed: Ints | None) -> Self:
        return type(self)(self.registered, self.client_sizes, count, self.registered_size, absent, listed)

    @cached_property
    def clients(self) -> Ints:
        """The available clients, ascending; a pass over all clients where the absent are few."""
        if self.listed is not None:
            return self.listed
        if self.count == self.registered.size:
            return np.arange(self.count)
        return np.flatnonzero(self.mask)

    @cached_property
    def mask(self) -> Bools:
        """(M,) which clients are available; not to be written to."""
        if self.listed is not None:
            mask = np.zeros(self.registered.size, dtype=np.bool_)
            mask[self.listed] = True
            return mask
        if self.absent is None or self.absent.size == 0:
            return self.registered
        mask = self.registered.copy()
        mask[self.absent] = False
        return mask

    def of(self, values: Floats) -> Floats:
        """Return the entries of values (M,) of the available clients, ascending; not to be written to."""
        return values if self.count == self.registered.size else values[self.clients]

    def at(self, positions: Ints) -> Ints:
        """Return the clients at some positions in `clients`."""
        return positions if self.count == self.registered.size else self.clients[positions]

    @property
    def total_size(self) -> float:
        """Sum of the available clients' sizes."""
        if self.absent is not None:
            if self.absent.size == 0:
                return self.registered_size
            rest = self.registered_size - float(self.client_sizes[self.absent].sum())
            if rest > 0.1 * self.registered_size:  # else the difference cancels
                return rest
        return float(self.of(self.client_sizes).sum())

    def holds(self, clients: Ints) -> Bools:
        """Return which of some registered clients are available; only where the absent are few."""
        absent = self.absent
        if absent is None or absent.size == 0:
            return np.ones(clients.size, dtype=np.bool_)
        found: Bools = absent[np.minimum(np.searchsorted(absent, clients), absent.size - 1)] != clients
        return found
