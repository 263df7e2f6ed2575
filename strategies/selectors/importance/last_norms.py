"""The base of the selectors that remember the last known norm of each client's update."""

from collections.abc import Mapping

from ...numerics.arrays import Array, Floats, Ints
from ..base import Selector
from ..probability import LARGEST_NORM
from ..records import Feedback, Selection
from ..settings import PerClient


class LastNormSelector(Selector):
    """Remembers the norm of each client's last update; -1 if no norm is known.

    The setting `update_norms` gives norms that are known beforehand: at the start of a run, or when clients
    join.
    """

    per_client = Selector.per_client | {
        "update_norms": PerClient(-1.0, -1.0, LARGEST_NORM, False, "the last known ||g||; below 0: unknown")
    }

    @property
    def _norms(self) -> Floats:
        norms: Floats = self._array("update_norms")
        return norms

    def _learn_first(self, clients: Ints, norms: Floats) -> dict[str, Array]:
        known = self._norms.copy()
        known[clients] = norms.clip(max=LARGEST_NORM)
        return {"update_norms": known}

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, _, norms = self._usable(selection, feedback, feedback.update_norms)
        if not clients.size:
            return {}
        known = self._norms.copy()
        known[clients] = norms.clip(max=LARGEST_NORM)
        return {"update_norms": known}

    def _check_state(self, state: Mapping[str, Array]) -> None:
        super()._check_state(state)
        norms = state["update_norms"]
        self.per_client["update_norms"].check("state['update_norms']", norms, norms.size)
