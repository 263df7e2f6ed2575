"""Notices that the training diverges or stands still, and warns once that the learning rate may be wrong."""

from math import inf, isfinite, isnan, nan

from strategies import RoundRecord
from strategies.selectors.settings import Schedule
from tasks.base import Metrics

FACTOR = 10.0
"""The training diverges if the test loss is more than this many times the first test loss of the process."""
ABOVE = 10
"""The training diverges if this many test losses in a row are above that of the untrained model."""
STILL = 30
LOWER = 0.97
"""The training stands still if, by round `STILL`, no test loss was as low as `LOWER` times that of the
untrained model."""


class Divergence:
    """Watches the test losses of a run of a task with the clients' learning rates and the task's default."""

    def __init__(self, task: str, learning_rates: Schedule, default: float) -> None:
        self._task, self._rates, self._default = task, learning_rates, default
        self._first = nan  # the first test loss of this process
        self._untrained = nan  # the test loss of the untrained model; not known after a resume
        self._lowest = inf
        self._above = 0  # in how many evaluations in a row the test loss was above the untrained model's
        self._warned = False

    def warning(self, number: int, metrics: Metrics, record: RoundRecord | None = None) -> str:
        """Return a warning if the training diverges or stands still, but only one per process; "" otherwise.

        A network whose units have all died stands still: its test loss stays near the loss of the untrained
        model. After a resume, this loss is not known, so `ABOVE` and `STILL` have no effect.

        Parameters
        ----------
        number : int
            The round.
        metrics : Metrics
            The metrics of the model on the test data.
        record : RoundRecord, optional
            The record of the round; None before training.
        """
        loss = metrics.loss
        if number == 0:
            self._untrained = loss
        if isnan(self._first):
            self._first = loss
        self._lowest = min(self._lowest, loss)
        self._above = self._above + 1 if loss > self._untrained else 0
        symptom, likely = "", "too large"
        if not isfinite(loss):
            symptom = f"diverges: the test loss is {loss}"
        elif loss > FACTOR * self._first:
            symptom = f"diverges: the test loss is {loss:.4g}, and was {self._first:.4g}"
        elif record is not None and _without_finite_update(record):
            symptom = "diverges: no client's update is finite, or their sum is not"
        elif self._above >= ABOVE:
            symptom = f"diverges: in {ABOVE} evaluations the test loss was above the untrained model's"
        elif number >= STILL and self._lowest > LOWER * self._untrained:
            symptom = f"stands still: no test loss was lower than {self._lowest:.4g}"
            likely = "too large, or too small"
        if not symptom or self._warned:
            return ""
        self._warned = True
        untrained = "" if isnan(self._untrained) else f"; untrained: {self._untrained:.4g}"
        return (
            f"the training {symptom} (round {number}{untrained}). learning-rate = "
            f"{self._rates.at(number):g} may be {likely}; the default of {self._task} is {self._default:g}"
        )


def _without_finite_update(record: RoundRecord) -> bool:
    failures = record.failures.values()
    all_failed = len(failures) == record.selection.clients.size > 0
    return bool(record.skipped) and all_failed and all("finite" in why or "NaN" in why for why in failures)
