"""Notices that the training diverges, and warns once, with the learning rate as the probable cause."""

from math import inf, isfinite, isnan, nan

from strategies import RoundRecord
from strategies.selectors.settings import Schedule
from tasks.base import Metrics

FACTOR = 10.0
"""The training diverges if the test loss is more than this many times the first test loss."""
ROUNDS = 10
"""The training diverges if the test loss is above the untrained model's for this many rounds in a row."""


class Divergence:
    """Watches the test losses of a run.

    Parameters
    ----------
    task : str
        The name of the task.
    learning_rates : Schedule
        The clients' learning rate in each round.
    default : float
        The default learning rate of the task.
    """

    def __init__(self, task: str, learning_rates: Schedule, default: float) -> None:
        self._task, self._rates, self._default = task, learning_rates, default
        self._first = nan  # the first test loss
        # Rounds in a row with a test loss above the untrained model's loss; -inf if this loss is not known.
        self._above = -inf
        self._warned = False

    def warning(self, number: int, metrics: Metrics, record: RoundRecord | None = None) -> str:
        """Return a warning if the training diverges; "" otherwise, or if there was a warning before.

        The training diverges in four cases:

        - The test loss is not finite.
        - The test loss is more than `FACTOR` times the first test loss of this process.
        - The test loss has been above the loss of the untrained model for `ROUNDS` rounds in a row. After a
          resume, the loss of the untrained model is not known, so this case does not occur.
        - The round was skipped because no update was finite.

        Parameters
        ----------
        number : int
            The round.
        metrics : Metrics
            The metrics of the model on the test data.
        record : RoundRecord, optional
            The record of the round; None before training.
        """
        if isnan(self._first):
            self._first, self._above = metrics.loss, 0 if number == 0 else -inf
        self._above = self._above + 1 if metrics.loss > self._first else min(self._above, 0)
        symptom = ""
        if not isfinite(metrics.loss):
            symptom = f"the test loss is {metrics.loss}"
        elif metrics.loss > FACTOR * self._first:
            symptom = f"the test loss is {metrics.loss:.4g}, and was {self._first:.4g}"
        elif self._above >= ROUNDS:
            symptom = (
                f"for {ROUNDS} rounds the test loss has been above {self._first:.4g}, the untrained model's"
            )
        elif record is not None and _without_finite_update(record):
            symptom = "no client's update is finite"
        if not symptom or self._warned:
            return ""
        self._warned = True
        return (
            f"the training diverges: {symptom} (round {number}). learning-rate = {self._rates.at(number):g} "
            f"may be too large; the default of {self._task} is {self._default:g}"
        )


def _without_finite_update(record: RoundRecord) -> bool:
    failures = record.failures.values()
    return bool(record.skipped and failures) and all("finite" in why or "NaN" in why for why in failures)
