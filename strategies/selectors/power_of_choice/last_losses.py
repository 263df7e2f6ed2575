"""The base of the selectors that remember the mean loss of each client's last local training."""

import numpy as np

from ...numerics.arrays import Array, Bools, Floats
from ..base import Selector
from ..records import Feedback, Selection
from .plain_mean import PlainMeanSelector

_NOT_REPORTED = -np.inf  # instead of a loss: the client was selected, and has never reported a finite loss


class LastLossSelector(PlainMeanSelector):
    """Remembers the mean loss of each client's last local training.

    The loss of a client that was never selected is infinite. A client that was selected, and has never
    reported a finite loss, has the median of the known losses: with an infinite loss it would be selected in
    every round.

    The loss comes with the reply to a training message, so it costs no extra message. With dropout, such a
    training loss is larger than an evaluation loss, so do not compare the two.
    """

    report_used = "train-loss"
    state_axes = Selector.state_axes | {"losses": ("clients",)}

    def _initial_state(self) -> dict[str, Array]:
        return super()._initial_state() | {"losses": np.full(self.num_clients, np.inf)}

    def _last_losses(self) -> Floats:
        """Return (M,) the losses by which clients are selected."""
        return self._cached("last_losses", ("losses",), self._compute_last_losses)

    def _compute_last_losses(self) -> Floats:
        losses: Floats = self._array("losses")
        unknown = losses == _NOT_REPORTED
        if not unknown.any():
            return losses
        known = losses[np.isfinite(losses)]
        # The median of two numbers is half their sum, which must not overflow.
        return np.where(unknown, 2 * np.median(known / 2) if known.size else np.inf, losses)

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, _, reported = self._usable(selection, feedback, feedback.losses)
        losses = self._array("losses").copy()
        losses[clients] = reported
        asked = selection.clients[self._registered[selection.clients]]
        losses[asked[losses[asked] == np.inf]] = _NOT_REPORTED
        return {"losses": losses}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        return {"losses": self._extended("losses", registered.size, np.inf)}
