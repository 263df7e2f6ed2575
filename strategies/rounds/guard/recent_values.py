"""Remembers the recent norms, losses and other values of clients, with which the guard compares new ones."""

from dataclasses import dataclass
from math import nan

import numpy as np

from ...numerics.arrays import Array, Floats, Ints

NORM = "update norm"
TRAINED = (NORM, "loss", "gradient variance")
"""The kinds of values in replies to TRAIN."""
POLLED = {
    name: f"polled {name.replace('_', ' ')}"
    for name in ("loss", "update_norm", "gradient_variance", "diversity")
}
"""The name of each measurement that a poll may ask for (`Selector.polls_for`) -> the kind of its values."""
KINDS = (*TRAINED, *POLLED.values())


@dataclass(frozen=True, eq=False)
class Window:
    """The last values of n clients, one for each client, the newest at the end."""

    clients: Ints  # (n,) distinct
    values: Floats  # (n,) the logarithms of the clients' values, or signed values
    residuals: Floats  # (n,) the values minus the centre of the values of their round

    def at(self, positions: Ints) -> "Window":
        """Return the entries at the given positions."""
        return Window(self.clients[positions], self.values[positions], self.residuals[positions])


class RecentValues:
    """Remembers, for each kind of value, the last value of each client that sent one lately.

    The time of a round with n values is O(n + window). It does not grow with the number of all clients.

    ``window`` is the largest number of clients that are remembered for each kind, >= 1.
    """

    def __init__(self, window: int) -> None:
        shape = (len(KINDS), window)
        self._window = window
        self._clients = np.full(shape, -1, dtype=np.int64)  # a row for each kind, filled from the end
        self._values = np.zeros(shape)
        self._residuals = np.zeros(shape)
        self._norm_margin = np.zeros(())

    @property
    def norm_margin(self) -> float:
        """log(limit / centre) of the last update norms."""
        return float(self._norm_margin)

    def of_others(self, kind: str, clients: Ints) -> Window:
        """Return the remembered values of one kind, except the values of the given clients."""
        row = KINDS.index(kind)
        known = self._clients[row]
        kept = np.flatnonzero((known >= 0) & ~np.isin(known, clients))
        return Window(known, self._values[row], self._residuals[row]).at(kept)

    def excess_of(self, kind: str, clients: Ints) -> Floats:
        """Return (n,) the residual of each client's last value; NaN if none is remembered."""
        row = KINDS.index(kind)
        known = self._clients[row]
        order = np.argsort(known)
        found = order[np.minimum(np.searchsorted(known, clients, sorter=order), known.size - 1)]
        excess: Floats = np.where(known[found] == clients, self._residuals[row][found], nan)
        return excess

    def remember(self, kind: str, others: Window, new: Window, margin: float) -> None:
        """Replace the remembered values of one kind by the values of ``others``, followed by new values.

        ``others`` is the result of `of_others` for the clients of the new values, which are in any order. If
        there is not enough room, the oldest values of ``others`` are dropped; if there are more than
        ``window`` new values, only values with evenly spaced ranks are remembered. ``margin`` is the largest
        plausible residual of this kind.
        """
        order = np.argsort(new.clients)
        if order.size > self._window:
            ranks = np.lexsort((new.clients, new.values))
            order = np.sort(ranks[np.linspace(0, ranks.size - 1, self._window).astype(np.int64)])
            order = order[np.argsort(new.clients[order])]
        new = new.at(order)
        row, least = KINDS.index(kind), max(0, others.clients.size + new.clients.size - self._window)
        for array, old, added, empty in (
            (self._clients, others.clients, new.clients, -1),
            (self._values, others.values, new.values, 0.0),
            (self._residuals, others.residuals, new.residuals, 0.0),
        ):
            kept = np.concatenate([old[least:], added])
            array[row, : self._window - kept.size] = empty
            array[row, self._window - kept.size :] = kept
        if kind == NORM:
            self._norm_margin[()] = margin

    def arrays(self) -> dict[str, Array]:
        """Return all arrays of the state by name. They are not copies."""
        return {
            "clients": self._clients,
            "values": self._values,
            "residuals": self._residuals,
            "norm_margin": self._norm_margin,
        }
