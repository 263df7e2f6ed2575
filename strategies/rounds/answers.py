"""What came back in a round, looked at: what can be used, how long each update is, and their weighted sum.

Either one reply of each client, decoded one after the other, or a whole cohort's training in one piece, which
needs no pass over clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..clients.reports import Report
from ..numerics.arrays import Bools, Floats
from ..selectors import Selection
from .aggregation import Arrays, Model, UnusableError, Update
from .trained_clients import TrainedClients, TrainedModel, spread
from .variates import ClientVariates


@dataclass(frozen=True)
class Reply:
    """What came back from one chosen client: its trained arrays, or the reason why there are none."""

    arrays: Mapping[str, NDArray[Any]] | None = None  # w_m; may decode an array each time it is asked for
    report: Report = field(default_factory=Report)
    metrics: Mapping[str, Any] = field(default_factory=dict)  # all that it measured, passed through
    failure: str = ""  # why there are no arrays, for the log
    sent: bool = False  # beside a failure: the client did send something, and it cannot be used


@dataclass
class Answers:
    """A round's answers. Updates, failures and bounds are by position in the selection.

    `examine` makes them; the guard may shorten updates, take some out, and bound the numbers.
    """

    model: Model  # w_t
    updates: dict[int, Update]  # those that can be used, in selection order
    norms: Floats  # (S,) ‖g_m‖; NaN where there is none
    losses: Floats  # (S,) as reported
    gradient_variances: Floats  # (S,) as reported
    num_steps: Floats  # (S,) as reported
    failures: dict[int, str]
    at_fault: list[int]  # positions of failures that are the client's own: it sent something
    clipped: Mapping[int, str] = field(default_factory=dict)
    cohort: TrainedClients | None = None  # where they came in one piece
    step: Arrays | None = None  # the sum with the coefficients of `examine`; None if some are not usable

    def usable(self) -> Bools:
        """Return (S,) whose update can be used."""
        usable = np.zeros(self.norms.size, dtype=np.bool_)
        usable[list(self.updates)] = True
        return usable

    def combined(self, coefficients: Floats, *, as_examined: bool) -> Arrays:
        """Return Σ c s (w_m - w_t - y_m) over the usable ones, in selection order, as `Model.fold` does.

        Parameters
        ----------
        coefficients : ndarray, shape (S,)
            c.
        as_examined : bool
            Whether `examine` was given the same: then the sum may be there. It is handed out once.
        """
        step, self.step = self.step, None
        if step is not None and as_examined and all(update.scale == 1 for update in self.updates.values()):
            return step
        step = None  # not two at a time
        parts = self._parts(coefficients)
        if self.cohort is None:
            return self.model.fold(parts)
        scaled = np.zeros(self.norms.size)
        scaled[list(self.updates)] = [coefficient * update.scale for coefficient, update in parts]
        return _flat(self.cohort.updates.combined(scaled[self.cohort.positions]))

    def distances(self, coefficients: Floats, step: Arrays, *, plain: bool) -> list[float]:
        """Return how far each usable update is from their mean.

        Parameters
        ----------
        coefficients : ndarray, shape (S,)
            What the mean weighs each with; if they sum to 0 it is the plain one.
        step : dict of arrays
            What `combined` returned for them.
        plain : bool
            Weigh all alike instead.
        """
        parts = self._parts(coefficients)
        total = sum(coefficient for coefficient, _ in parts)
        if plain or not total > 0:
            total = float(len(parts))
            step = self.model.fold((1.0, update) for _, update in parts)
        return [self.model.distance(update, step, 1 / total) for _, update in parts]

    def _parts(self, coefficients: Floats) -> list[tuple[float, Update]]:
        return [(float(coefficients[position]), update) for position, update in self.updates.items()]


def who_sent(replies: Sequence[Reply] | TrainedClients, selection: Selection) -> Bools:
    """Return (S,) whether there are arrays: known before any is looked at."""
    if isinstance(replies, TrainedClients):
        sent = np.zeros(selection.clients.size, dtype=np.bool_)
        sent[replies.positions] = True
        return sent
    return np.array([not reply.failure for reply in replies], dtype=np.bool_)


def examine(
    model: Model,
    selection: Selection,
    replies: Sequence[Reply] | TrainedClients,
    coefficients: Floats,
    learning_rate: float,
    *,
    variates: ClientVariates | None = None,
    masked: bool = False,
) -> Answers:
    """Look at what came back, and sum it on the way while all of it is usable.

    Parameters
    ----------
    model : Model
        w_t.
    selection : Selection
        Who was chosen.
    replies : sequence of Reply, or TrainedClients
        (S,) aligned with the selection.
    coefficients : ndarray, shape (S,)
        What the sum would weigh each update with.
    learning_rate : float
        What divides the length of an update.
    variates : ClientVariates, optional
        Knows each client's y_m.
    masked : bool (default: False)
        Lengths are the clients' word.
    """
    if isinstance(replies, TrainedClients):
        if variates is None:
            return _examine_cohort(model, selection, replies, coefficients, learning_rate)
        replies = _one_by_one(replies, selection)
    answers = Answers(
        model=model,
        updates={},
        norms=np.full(len(replies), nan),
        losses=_reported(replies, "train_loss"),
        gradient_variances=_reported(replies, "gradient_variance"),
        num_steps=_reported(replies, "num_steps"),
        failures={},
        at_fault=[],
        step=model.nothing(),
    )
    for position, (client, reply) in enumerate(zip(selection.clients, replies, strict=True)):
        if reply.failure:
            answers.failures[position] = reply.failure
            answers.at_fault += [position] * reply.sent
            continue
        baseline = None if variates is None else variates.baseline(int(client))
        update = Update(reply.arrays or {}, baseline=baseline)
        try:
            length = model.examine(update, answers.step, float(coefficients[position]))
        except UnusableError as error:
            answers.failures[position] = str(error)
            answers.at_fault.append(position)
            answers.step = None
        else:
            said = reply.report.update_norm
            if masked:
                length = nan if said is None else said
            answers.norms[position] = length / learning_rate
            answers.updates[position] = update
    return answers


def _examine_cohort(
    model: Model, selection: Selection, cohort: TrainedClients, coefficients: Floats, learning_rate: float
) -> Answers:
    """Look at a cohort in one piece; what it is asked to sum is finite."""
    size, positions = selection.clients.size, cohort.positions
    norms = cohort.updates.norms()
    finite = np.isfinite(norms)
    bad = [int(position) for position in positions[~finite]]
    return Answers(
        model=model,
        updates={
            position: Update(TrainedModel(cohort.updates, row))
            for row, position in enumerate(positions.tolist())
            if finite[row]
        },
        norms=spread(np.where(finite, norms, nan) / learning_rate, positions, size),
        losses=spread(cohort.losses, positions, size),
        gradient_variances=spread(cohort.gradient_variances, positions, size),
        num_steps=spread(cohort.num_steps.astype(np.float64), positions, size),
        failures={**cohort.failures, **dict.fromkeys(bad, "the norm of the update is not finite")},
        at_fault=bad,
        cohort=cohort,
        step=_flat(cohort.updates.combined(coefficients[positions])) if finite.all() else None,
    )


def _one_by_one(cohort: TrainedClients, selection: Selection) -> list[Reply]:
    """Return a cohort's replies, for what works on each client's update."""
    replies = [Reply(failure=cohort.failures.get(i, "no answer")) for i in range(selection.clients.size)]
    for row, position in enumerate(cohort.positions.tolist()):
        variance = float(cohort.gradient_variances[row])
        report = Report(
            num_steps=int(cohort.num_steps[row]),
            train_loss=float(cohort.losses[row]) if isfinite(cohort.losses[row]) else None,
            gradient_variance=variance if isfinite(variance) else None,
        )
        replies[position] = Reply(TrainedModel(cohort.updates, row), report)
    return replies


def _reported(replies: Sequence[Reply], name: str) -> Floats:
    """Return (S,) a number that clients report with their update, NaN where they do not."""
    said = [None if reply.failure else getattr(reply.report, name) for reply in replies]
    return np.array([nan if value is None else float(value) for value in said])


def _flat(arrays: Arrays) -> Arrays:
    return {name: array.reshape(-1) for name, array in arrays.items()}
