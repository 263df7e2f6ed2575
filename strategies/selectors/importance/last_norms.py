"""The last known norm of each client's update, and what is assumed of those never seen."""

from collections.abc import Mapping
from typing import ClassVar

from ...numerics.arrays import Array, Floats
from ..base import Selector
from ..records import Feedback, Selection
from ..settings import PerClient

LARGEST_NORM = 1e150


class LastNormSelector(Selector):
    """Remembers the last norm of each client's update: -1 until there is one.

    `update_norms` says what is known before the first round, for example from a query of all clients, and of
    joiners.
    """

    per_client: ClassVar[Mapping[str, PerClient]] = {
        "update_norms": PerClient(-1.0, -1.0, LARGEST_NORM, False, "its last known ||g||; below 0: unknown")
    }

    @property
    def _norms(self) -> Floats:
        norms: Floats = self._array("update_norms")
        return norms

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, _, seen = self._reported(selection, feedback, feedback.update_norms)
        if not clients.size:
            return {}
        norms = self._norms.copy()
        norms[clients] = seen.clip(max=LARGEST_NORM)
        return {"update_norms": norms}

    def _check_state(self, state: Mapping[str, Array]) -> None:
        super()._check_state(state)
        norms = state["update_norms"]
        self.per_client["update_norms"].check("state['update_norms']", norms, norms.size)
