"""The values that many clients sent lately, against which the guard judges new ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Array, Floats, Ints

NORM = "update norm"
TRAINED = (NORM, "loss", "gradient variance")
"""The kinds of values that come with a trained model."""
POLLED = {
    name: f"polled {name.replace('_', ' ')}"
    for name in ("loss", "update_norm", "gradient_variance", "diversity")
}
"""The reports that candidates give before a round (`Selector.polls_for`), and the kind of each value."""
KINDS = (*TRAINED, *POLLED.values())


@dataclass(frozen=True, eq=False)
class Window:
    """The last value of each of n clients, the newest at the end.

    Attributes
    ----------
    clients : ndarray of int, shape (n,)
        Distinct clients.
    values : ndarray, shape (n,)
        Logarithms, or the values themselves where they are signed.
    residuals : ndarray, shape (n,)
        The values less the centre of the round in which they came.
    """

    clients: Ints
    values: Floats
    residuals: Floats

    def at(self, positions: Ints) -> Window:
        """Return the window at some positions."""
        return Window(self.clients[positions], self.values[positions], self.residuals[positions])


class RecentValues:
    """Remembers, for each kind of value, the last value of the clients that sent one most recently.

    A round costs O(S + window), whatever the number of clients.

    Parameters
    ----------
    window : int
        The number of clients remembered for each kind.
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
        """How far above the centre the last update norms were plausible, as a logarithm."""
        return float(self._norm_margin)

    def of_others(self, kind: str, clients: Ints) -> Window:
        """Return the values of one kind, without those of the given clients."""
        row = KINDS.index(kind)
        known = self._clients[row]
        kept = np.flatnonzero((known >= 0) & ~np.isin(known, clients))
        return Window(known, self._values[row], self._residuals[row]).at(kept)

    def excess_of(self, kind: str, clients: Ints) -> Floats:
        """Return (n,) how far above the centre each client's last value was; NaN where none is remembered."""
        row = KINDS.index(kind)
        known = self._clients[row]
        order = np.argsort(known)
        found = order[np.minimum(np.searchsorted(known, clients, sorter=order), known.size - 1)]
        excess: Floats = np.where(known[found] == clients, self._residuals[row][found], nan)
        return excess

    def remember(self, kind: str, others: Window, new: Window, margin: float) -> None:
        """Replace the values of one kind by those of other clients, followed by new ones.

        Parameters
        ----------
        kind : str
            One of `KINDS`.
        others : Window
            What `of_others` returned for the clients of the new values.
        new : Window
            In any order: that of the clients' indexes is kept. Of more than a window's worth, values are
            kept whose ranks are evenly spaced.
        margin : float
            How far above the centre such values are plausible.
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

    def state_dict(self) -> dict[str, Array]:
        """Return copies of all arrays needed to go on, bit for bit."""
        return {name: array.copy() for name, array in self._arrays().items()}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Go on from a saved state.

        Raises
        ------
        ValueError
            If keys, shapes or dtypes do not fit; then nothing has changed.
        """
        own, arrays = self._arrays(), {name: np.array(array) for name, array in state.items()}
        if arrays.keys() != own.keys():
            raise ValueError(f"state has keys {sorted(arrays)}: must be {sorted(own)}")
        for name, array in own.items():
            check_form(name, arrays[name], array.shape, array.dtype)
        for name, array in own.items():
            array[...] = arrays[name]

    def _arrays(self) -> dict[str, Array]:
        return {
            "clients": self._clients,
            "values": self._values,
            "residuals": self._residuals,
            "norm_margin": self._norm_margin,
        }


def check_form(name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse an array of a saved state that has another shape or dtype.

    Raises
    ------
    ValueError
        If it has.
    """
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(
            f"state[{name!r}] is {array.dtype} of shape {array.shape}: must be {dtype} of shape {shape}"
        )
