"""The base of the selectors that remember a sketch of each client's last update."""

import numpy as np

from ..numerics.arrays import Array, Bools, Floats, Ints
from .base import Selector
from .records import Feedback, Selection


class LastUpdateSelector(Selector):
    """Remembers the sketch of each client's last update, once the client has sent one."""

    state_axes = Selector.state_axes | {
        "rows": ("clients",),  # the row of a client in "sketches"; -1: no update is known
        "sketches": ("updates", "entries"),
    }

    @property
    def uses_sketches(self) -> bool:
        return True

    def _initial_state(self) -> dict[str, Array]:
        return super()._initial_state() | {
            "rows": np.full(self.num_clients, -1, dtype=np.int64),
            "sketches": np.empty((0, 0), dtype=np.float32),
        }

    def _knows(self, clients: Ints) -> Bools:
        """Return (n,) whether an update of each of these clients (n,) is known."""
        known: Bools = self._array("rows")[clients] >= 0
        return known

    def _last_updates(self, clients: Ints) -> Floats:
        """Return (n, d) the sketches of the last updates of clients (n,); rows of NaN where none is known."""
        rows, sketches = self._array("rows")[clients], self._array("sketches")
        found = np.full((clients.size, sketches.shape[1]), np.nan)
        found[rows >= 0] = sketches[rows[rows >= 0]]
        return found

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        changes = super()._learn(round, selection, feedback)
        if feedback.sketches is None:
            return changes
        with np.errstate(over="ignore"):
            new = feedback.sketches.astype(np.float32)
        usable = feedback.responded & np.isfinite(new).all(axis=1) & self._registered[selection.clients]
        clients, new = selection.clients[usable], new[usable]
        if not clients.size:
            return changes
        rows, sketches = self._array("rows").copy(), self._array("sketches")
        fresh = clients[rows[clients] < 0]
        rows[fresh] = len(sketches) + np.arange(fresh.size)
        room = np.empty((fresh.size, new.shape[1]), dtype=np.float32)
        sketches = np.concatenate([sketches.reshape(-1, new.shape[1]), room])
        sketches[rows[clients]] = new
        return changes | {"rows": rows, "sketches": sketches}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        return super()._joined(registered) | {"rows": self._extended("rows", registered.size, -1)}
