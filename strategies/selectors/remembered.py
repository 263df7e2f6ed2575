"""Remembered updates: a mean sketch of each client's last updates, for the designs that use features."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..numerics.arrays import Array, Bools, Floats, Ints

CLIENTS, SKETCHES = "sketched", "sketches"  # the keys of the state


class RememberedUpdates:
    """The mean sketches of the clients that have sent an update. The memory grows with the number of these.

    The first update of a client sets its mean. Each further update with the sketch v makes it ½ mean + ½ v.

    A client decides what it sends, and so decides its sketch. But every design selects it with the
    probability π_m that the selector gives it, and its weight is λ_m/π_m. So a liar gains no draws and no
    weight. It chooses only with whom it is drawn together, and can make cohorts vary as much as they would
    without sketches.
    """

    def __init__(self) -> None:
        self._means = np.empty((0, 0), dtype=np.float32)  # (rows, d); there are spare rows at the end
        self._rows: dict[int, int] = {}  # client -> its row, in the order of the rows

    def remember(self, clients: Ints, sketches: Floats) -> None:
        """Learn from the updates of distinct `clients` (n,); only finite rows of `sketches` (n, d) count."""
        with np.errstate(over="ignore"):
            new = sketches.astype(np.float32)
        usable = np.isfinite(new).all(axis=1)
        clients, new = clients[usable], new[usable]
        if not clients.size:
            return
        number = len(self._rows)
        if number and self._means.shape[1] != new.shape[1]:
            raise ValueError(
                f"feedback.sketches has {new.shape[1]} columns: must be {self._means.shape[1]}, as before"
            )
        fresh = [client not in self._rows for client in clients.tolist()]
        self._rows |= {client: number + i for i, client in enumerate(clients[fresh].tolist())}
        if len(self._rows) > len(self._means):
            means = np.zeros((2 * len(self._rows), new.shape[1]), dtype=np.float32)
            if number:
                means[:number] = self._means[:number]
            self._means = means
        rows = self._rows_of(clients)
        self._means[rows] = np.where(np.array(fresh)[:, None], new, 0.5 * self._means[rows] + 0.5 * new)

    def of(self, clients: Ints) -> Floats:
        """Return (n, d) the mean sketches of clients (n,); rows of NaN where nothing is known."""
        rows = self._rows_of(clients)
        found: Floats = self._means[rows].astype(np.float64)
        found[rows < 0] = np.nan
        return found

    @property
    def number(self) -> int:
        """How many clients have a mean sketch."""
        return len(self._rows)

    def keep(self, registered: Bools) -> None:
        """Forget the clients for which `registered` (M,) is False."""
        clients, means = self._arrays()
        self._restore(clients[registered[clients]], means[registered[clients]])

    def state_dict(self) -> dict[str, Array]:
        """Return copies of the arrays: the clients (n,), and their mean sketches (n, d)."""
        clients, means = self._arrays()
        return {CLIENTS: clients, SKETCHES: means.copy()}

    @classmethod
    def of_state(cls, state: Mapping[str, Array], num_clients: int) -> "RememberedUpdates":
        """Return the memory with a `state_dict`; a ValueError if its clients or sketches are wrong."""
        clients: Any = np.array(state[CLIENTS])
        means: Any = np.array(state[SKETCHES])
        for key, array, dtype, axes in ((CLIENTS, clients, np.int64, 1), (SKETCHES, means, np.float32, 2)):
            if array.dtype != dtype or array.ndim != axes or len(array) != len(clients):
                raise ValueError(
                    f"state[{key!r}] has shape {array.shape} and dtype {array.dtype}: must have {axes} axes, "
                    f"the dtype {np.dtype(dtype)}, and an entry for each client"
                )
        if not np.isfinite(means).all():
            raise ValueError(f"state[{SKETCHES!r}] holds a number that is not finite")
        if np.unique(clients).size < clients.size or not ((clients >= 0) & (clients < num_clients)).all():
            raise ValueError(f"state[{CLIENTS!r}] = {clients}: must be distinct, from 0 to {num_clients - 1}")
        memory = cls()
        memory._restore(clients, means)
        return memory

    def _arrays(self) -> tuple[Ints, NDArray[np.float32]]:
        number = len(self._rows)
        return np.fromiter(self._rows, np.int64, number), self._means[:number]

    def _restore(self, clients: Ints, means: NDArray[np.float32]) -> None:
        self._means = means
        self._rows = {client: row for row, client in enumerate(clients.tolist())}

    def _rows_of(self, clients: Ints) -> Ints:
        return np.array([self._rows.get(client, -1) for client in clients.tolist()], dtype=np.int64)
