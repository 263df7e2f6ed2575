"""Remembered updates: sketches of each client's last updates, for what compares updates."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from ..numerics.arrays import Array, Bools, Floats, Ints
from ..numerics.sketches import SHORT, shortened
from .base import Selector
from .records import Feedback, Selection

CLIENTS, SKETCHES = "sketched", "sketches"  # the keys of the state


class RememberedUpdates:
    """The mean sketches of the clients that have sent an update. The memory grows with the number of these.

    The first update of a client sets its mean. Each further update with the sketch v makes it
    (1 - share) mean + share v. With a share of 1 it is the last update.

    A client decides what it sends, and so decides its sketch. But every design selects it with the
    probability π_m that the selector gives it, and its weight is λ_m/π_m. So a liar gains no draws and no
    weight. It chooses only with whom it is drawn together, and can make cohorts vary as much as they would
    without sketches.
    """

    def __init__(self, share: float = 0.5) -> None:
        self._share = share
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
        kept = (1 - self._share) * self._means[rows] + self._share * new
        self._means[rows] = np.where(np.array(fresh)[:, None], new, kept)

    def of(self, clients: Ints) -> Floats:
        """Return (n, d) the mean sketches of clients (n,); rows of NaN where nothing is known."""
        rows = self._rows_of(clients)
        found = np.full((clients.size, self._means.shape[1]), np.nan)
        found[rows >= 0] = self._means[rows[rows >= 0]]
        return found

    def knows(self, clients: Ints) -> Bools:
        """Return (n,) whether each of these clients (n,) has a mean sketch."""
        known: Bools = self._rows_of(clients) >= 0
        return known

    @property
    def number(self) -> int:
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
    def of_state(
        cls, state: Mapping[str, Array], num_clients: int, share: float = 0.5
    ) -> "RememberedUpdates":
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
        memory = cls(share)
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


class RememberingSelector(Selector):
    """Remembers sketches of the updates of each client that has sent one, if it `uses_sketches`."""

    new_share: ClassVar[float] = 0.5
    """The share of a client's last update in what is remembered; 1: only the last update is."""
    remembered_width: ClassVar[int] = SHORT
    """The largest number of entries of a remembered sketch."""

    def __init__(self, num_clients: int, **arguments: Any) -> None:
        self._remembered = RememberedUpdates(self.new_share)
        super().__init__(num_clients, **arguments)

    def update(self, round: int, selection: Selection, feedback: Feedback) -> None:
        super().update(round, selection, feedback)
        if self.uses_sketches and feedback.sketches is not None:
            usable = feedback.responded & self._registered[selection.clients]
            sketches = shortened(feedback.sketches[usable], self.remembered_width)
            self._remembered.remember(selection.clients[usable], sketches)

    def remove_clients(self, clients: npt.ArrayLike) -> None:
        super().remove_clients(clients)
        self._remembered.keep(self._registered)

    def state_dict(self) -> dict[str, Array]:
        return super().state_dict() | (self._remembered.state_dict() if self.uses_sketches else {})

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        if not self.uses_sketches or CLIENTS not in state:  # saved before the design remembered anything
            super().load_state_dict(state)
            return
        own = dict(state)
        memory = {key: np.asarray(own.pop(key, np.empty(0))) for key in (CLIENTS, SKETCHES)}
        arrays = self._checked_state(own)
        self._remembered = RememberedUpdates.of_state(memory, arrays["registered"].size, self.new_share)
        self._assign(arrays)
