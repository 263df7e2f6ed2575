"""The base of the selectors that remember the mean loss of each client's last local training."""

import numpy as np

from ...numerics.arrays import Array, Bools, Floats
from ..base import Selector
from ..records import Feedback, Selection
from .plain_mean import PlainMeanSelector

_NEVER_ANSWERED = -np.inf  # instead of a loss: the client was selected, and never responded


class LastLossSelector(PlainMeanSelector):
    """Remembers the mean loss of each client's last local training.

    The loss of a client that was never selected is infinite. It stays infinite as long as the client's
    replies have no finite loss. A client that was selected and never responded has the median of the known
    losses: with an infinite loss it would be selected in every round.

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
        never = losses == _NEVER_ANSWERED
        if not never.any():
            return losses
        known = losses[np.isfinite(losses)]
        # The median of two numbers is half their sum, which must not overflow.
        return np.where(never, 2 * np.median(known / 2) if known.size else np.inf, losses)

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, _, reported = self._usable(selection, feedback, feedback.losses)
        losses = self._array("losses").copy()
        losses[clients] = reported
        silent = selection.clients[~feedback.responded]
        losses[silent[losses[silent] == np.inf]] = _NEVER_ANSWERED
        return {"losses": losses}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        return {"losses": self._extended("losses", registered.size, np.inf)}
