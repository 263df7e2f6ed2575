"""Decides whether a run ends before its last round: when the model reaches the target accuracy."""

from typing import NamedTuple


class EarlyStop(NamedTuple):
    """The condition under which a run ends early.

    Attributes
    ----------
    target_accuracy : float
        Accuracy on the test data, in [0, 1]. 0: the run trains all rounds.
    """

    target_accuracy: float

    def is_due(self, accuracy: float) -> bool:
        """Return whether a run whose model has this test accuracy ends now."""
        return 0 < self.target_accuracy <= accuracy

    @property
    def reason(self) -> str:
        """The text with which the history says why the run ended early."""
        return f"target-accuracy = {self.target_accuracy:g} is reached"
