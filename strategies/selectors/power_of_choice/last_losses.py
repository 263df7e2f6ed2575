"""The mean loss of each client's last local training."""

import numpy as np

from ...numerics.arrays import Array, Bools, Floats
from ..base import Selector
from ..records import Feedback, Selection
from .plain_mean import PlainMeanSelector

_NEVER_ANSWERED = -np.inf  # in the place of a loss


class LastLossSelector(PlainMeanSelector):
    """Remembers the mean loss of each client's last local training; infinite until it was selected once.

    A client that was selected and never responded counts as typical: if its loss stayed infinite, it would be
    selected for ever.

    The loss comes with the update and costs no message. It is a training loss: where the model has dropout,
    it is larger than an evaluation loss, so the two are not to be compared.
    """

    state_axes = Selector.state_axes | {"losses": ("clients",)}

    def _initial_state(self) -> dict[str, Array]:
        return super()._initial_state() | {"losses": np.full(self.num_clients, np.inf)}

    def _last_losses(self) -> Floats:
        """Return (M,) the losses to select by."""
        return self._cached("last_losses", ("losses",), self._compute_last_losses)

    def _compute_last_losses(self) -> Floats:
        losses: Floats = self._array("losses")
        never = losses == _NEVER_ANSWERED
        if not never.any():
            return losses
        known = losses[np.isfinite(losses)]
        return np.where(never, np.median(known) if known.size else np.inf, losses)

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, _, reported = self._usable(selection, feedback, feedback.losses)
        losses = self._array("losses").copy()
        losses[clients] = reported
        silent = selection.clients[~feedback.responded]
        losses[silent[losses[silent] == np.inf]] = _NEVER_ANSWERED
        return {"losses": losses}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        return {"losses": self._extended("losses", registered.size, np.inf)}
