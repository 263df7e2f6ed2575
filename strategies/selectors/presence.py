"""The available clients of a round. If few clients are absent, only the absent clients are stored."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeVar

import numpy as np

from ..numerics.arrays import Array, Bools, Floats, Ints

A = TypeVar("A", bound=Array)

FEW = 8
"""The absent clients count as few if they are at most 1/FEW of the registered clients."""

NOBODY: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Presence:
    """The available clients, stored in one of two forms: in `absent` or in `listed`.

    `only` and `without`, called on the presence of all registered clients, return the presence of a round.
    They choose the form by the number of absent clients, so the form depends only on the set of available
    clients.
    """

    registered: Bools  # (M,) True for each client that has not been removed
    client_sizes: Floats  # (M,) of all clients
    count: int  # how many clients are available
    registered_size: float  # the sum of the registered clients' sizes
    # the registered clients that are not available, ascending, if they are few; otherwise None
    absent: Ints | None
    listed: Ints | None = None  # the available clients, ascending, if the absent clients are not few

    def only(self, clients: Ints) -> Self:
        """Return the presence of `clients` (registered, ascending) alone; in ``self`` all are available."""
        if (self.count - clients.size) * FEW > self.count:
            return self._with(clients.size, None, clients)
        elsewhere = self.registered.copy()
        elsewhere[clients] = False
        return self.without(np.flatnonzero(elsewhere))

    def without(self, clients: Ints) -> Self:
        """Return the presence without `clients` (registered, ascending); in ``self`` all are available."""
        few = self._with(self.count - clients.size, clients, None)
        return few if clients.size * FEW <= self.count else self._with(few.count, None, few.clients)

    def _with(self, count: int, absent: Ints | None, listed: Ints | None) -> Self:
        return type(self)(self.registered, self.client_sizes, count, self.registered_size, absent, listed)

    @cached_property
    def clients(self) -> Ints:
        """The available clients, ascending. If `absent` is stored, this takes a pass over M clients."""
        if self.listed is not None:
            return self.listed
        if self.count == self.registered.size:
            return np.arange(self.count)
        return np.flatnonzero(self.mask)

    @cached_property
    def mask(self) -> Bools:
        """(M,) whether each client is available. Do not write to this array."""
        if self.listed is not None:
            mask = np.zeros(self.registered.size, dtype=np.bool_)
            mask[self.listed] = True
            return mask
        if self.absent is None or self.absent.size == 0:
            return self.registered
        mask = self.registered.copy()
        mask[self.absent] = False
        return mask

    def of(self, values: A) -> A:
        """Return (count,) the entries of `values` (M,), ascending by client; maybe `values`: do not write."""
        return values if self.count == self.registered.size else values[self.clients]  # type: ignore[return-value]

    def at(self, positions: Ints) -> Ints:
        """Return the clients at these positions in `clients`."""
        return positions if self.count == self.registered.size else self.clients[positions]

    @property
    def total_size(self) -> float:
        """Sum of the available clients' sizes."""
        if self.absent is not None:
            if self.absent.size == 0:
                return self.registered_size
            rest = self.registered_size - float(self.client_sizes[self.absent].sum())
            if rest > 0.1 * self.registered_size:  # a smaller difference could be mostly rounding errors
                return rest
        return float(self.of(self.client_sizes).sum())

    def holds(self, clients: Ints) -> Bools:
        """Return (n,) whether each of these registered clients is available. Only if `listed` is None."""
        absent = self.absent
        if absent is None or absent.size == 0:
            return np.ones(clients.size, dtype=np.bool_)
        found: Bools = absent[np.minimum(np.searchsorted(absent, clients), absent.size - 1)] != clients
        return found
