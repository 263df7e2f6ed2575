"""The replies of a round: which of them can be used, the norm of each update, and their weighted sum.

There is either one reply per client, decoded one after another, or one batch with the training of all
clients, which needs no pass over them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..clients.reports import Report
from ..numerics.arrays import Bools, Floats, Ints
from ..selectors import Selection
from .aggregation import Arrays, Model, UnusableError, Update
from .trained_clients import TrainedClients, TrainedModel, spread
from .variates import ClientVariates


@dataclass(frozen=True)
class Reply:
    """The reply of one selected client: its trained arrays, or the reason why there are none."""

    arrays: Mapping[str, NDArray[Any]] | None = None  # w_m; may decode an array on each access
    report: Report = field(default_factory=Report)
    metrics: Mapping[str, Any] = field(default_factory=dict)  # everything the client measured, passed through
    failure: str = ""  # why there are no arrays
    sent: bool = False  # with a failure: the client did send something, which cannot be used


class _Sum(Protocol):
    """Returns Σ c s (w_m - w_t - y_m) over updates by position, as flat arrays of the caller."""

    def __call__(self, updates: Mapping[int, Update], coefficients: Floats) -> Arrays: ...


@dataclass
class ExaminedReplies:
    """The replies of a round after one look at each; keys are positions in the selection.

    `examine` makes them; the guard may clip updates and numbers, and reject replies.
    """

    model: Model  # w_t
    updates: dict[int, Update]  # the usable ones, in selection order
    norms: Floats  # (S,) ‖g_m‖; NaN without a usable update
    losses: Floats  # (S,) as reported
    gradient_variances: Floats  # (S,) as reported
    num_steps: Floats  # (S,) as reported
    failures: dict[int, str]
    at_fault: list[int]  # positions of failures caused by what the client sent
    summed: _Sum
    clipped: Mapping[int, str] = field(default_factory=dict)

    def usable(self) -> Bools:
        """Return (S,) whether each client's update can be used."""
        usable = np.zeros(self.norms.size, dtype=np.bool_)
        usable[list(self.updates)] = True
        return usable

    def sum(self, coefficients: Floats) -> Arrays:
        """Return Σ c s (w_m - w_t - y_m) over the usable updates, in selection order, as of `Model.fold`."""
        return self.summed(self.updates, coefficients)

    def distances(self, coefficients: Floats, step: Arrays, *, plain: bool) -> list[float]:
        """Return the distance of each usable update from their mean.

        Parameters
        ----------
        coefficients : ndarray, shape (S,)
            The weights of the mean; if they sum to 0, the plain mean is taken.
        step : dict of arrays
            The `sum` with these coefficients.
        plain : bool
            Take the plain mean in any case.
        """
        total = sum(coefficient for coefficient, _ in _weighted(self.updates, coefficients))
        if plain or not total > 0:
            total = float(len(self.updates))
            step = self.model.fold((1.0, update) for update in self.updates.values())
        return [self.model.distance(update, step, 1 / total) for update in self.updates.values()]


class SpeculativeSum:
    """Sums updates while they are examined, with the weights that hold if all of them prove usable.

    This saves a second pass over the models of most rounds. If a reply could not be used, or the guard
    clipped or rejected one, the sum is taken anew.
    """

    def __init__(self, model: Model, coefficients: Floats) -> None:
        self._model, self._coefficients = model, coefficients
        self._total: Arrays | None = model.nothing()
        self._count = 0

    def examine(self, position: int, update: Update) -> float:
        """Return the norm of an update, and add the update to the sum.

        Raises
        ------
        UnusableError
            If the update cannot be used.
        """
        try:
            norm = self._model.examine(update, self._total, float(self._coefficients[position]))
        except UnusableError:
            self._total = None  # a part of the update may be in it
            raise
        self._count += 1
        return norm

    def __call__(self, updates: Mapping[int, Update], coefficients: Floats) -> Arrays:
        """Return the sum over ``updates``; the first call returns the speculative sum if it still holds."""
        total, self._total = self._total, None
        if (
            total is not None
            and len(updates) == self._count
            and all(update.scale == 1 for update in updates.values())
            and np.array_equal(coefficients, self._coefficients)
        ):
            return total
        del total  # it is as large as the model
        return self._model.fold(_weighted(updates, coefficients))


@dataclass(frozen=True)
class _BatchSum:
    """Sums the updates of a batch, without a pass over clients."""

    trained: TrainedClients

    def __call__(self, updates: Mapping[int, Update], coefficients: Floats) -> Arrays:
        scaled = np.zeros(coefficients.size)
        scaled[list(updates)] = [c * update.scale for c, update in _weighted(updates, coefficients)]
        combined = self.trained.updates.combined(scaled[self.trained.positions])
        return {name: array.reshape(-1) for name, array in combined.items()}


def _weighted(updates: Mapping[int, Update], coefficients: Floats) -> list[tuple[float, Update]]:
    return [(float(coefficients[position]), update) for position, update in updates.items()]


def sent_arrays(replies: Sequence[Reply] | TrainedClients, size: int) -> Bools:
    """Return (S,) whether each client sent arrays, which is known before any reply is examined."""
    if isinstance(replies, TrainedClients):
        sent = np.zeros(size, dtype=np.bool_)
        sent[replies.positions] = True
        return sent
    return np.array([not reply.failure for reply in replies], dtype=np.bool_)


def examine(
    model: Model,
    selection: Selection,
    replies: Sequence[Reply] | TrainedClients,
    expected: Floats,
    learning_rate: float,
    *,
    variates: ClientVariates | None = None,
    masked: bool = False,
) -> ExaminedReplies:
    """Look at each reply once.

    Parameters
    ----------
    model : Model
        w_t.
    selection : Selection
        The selected clients.
    replies : sequence of Reply, or TrainedClients
        (S,) aligned with the selection.
    expected : ndarray, shape (S,)
        The coefficients of the sum if every reply with arrays proves usable.
    learning_rate : float
        Divides the norms.
    variates : ClientVariates, optional
        Holds each client's y_m.
    masked : bool (default: False)
        Norms are those that the clients report.
    """
    if isinstance(replies, TrainedClients):
        if variates is None:
            return _examine_batch(model, selection.clients.size, replies, learning_rate)
        replies = _one_by_one(replies, selection.clients)
    first_pass = SpeculativeSum(model, expected)
    examined = ExaminedReplies(
        model=model,
        updates={},
        norms=np.full(len(replies), nan),
        losses=_reported(replies, "train_loss"),
        gradient_variances=_reported(replies, "gradient_variance"),
        num_steps=_reported(replies, "num_steps"),
        failures={},
        at_fault=[],
        summed=first_pass,
    )
    for position, (client, reply) in enumerate(zip(selection.clients, replies, strict=True)):
        if reply.failure:
            examined.failures[position] = reply.failure
            examined.at_fault += [position] * reply.sent
            continue
        baseline = None if variates is None else variates.baseline(int(client))
        update = Update(reply.arrays or {}, baseline=baseline)
        try:
            norm = first_pass.examine(position, update)
        except UnusableError as error:
            examined.failures[position] = str(error)
            examined.at_fault.append(position)
        else:
            if masked:
                reported = reply.report.update_norm
                norm = nan if reported is None else reported
            examined.norms[position] = norm / learning_rate
            examined.updates[position] = update
    return examined


def _examine_batch(model: Model, size: int, trained: TrainedClients, learning_rate: float) -> ExaminedReplies:
    positions, norms = trained.positions, trained.updates.norms()
    finite = np.isfinite(norms)
    bad = [int(position) for position in positions[~finite]]
    return ExaminedReplies(
        model=model,
        updates={
            position: Update(TrainedModel(trained.updates, row))
            for row, position in enumerate(positions.tolist())
            if finite[row]
        },
        norms=spread(np.where(finite, norms, nan) / learning_rate, positions, size),
        losses=spread(trained.losses, positions, size),
        gradient_variances=spread(trained.gradient_variances, positions, size),
        num_steps=spread(trained.num_steps.astype(np.float64), positions, size),
        failures={**trained.failures, **dict.fromkeys(bad, "the norm of the update is not finite")},
        at_fault=bad,
        summed=_BatchSum(trained),
    )


def _one_by_one(trained: TrainedClients, clients: Ints) -> list[Reply]:
    """Split a batch into one reply per client, for code that needs each client's update."""
    replies = [Reply(failure=trained.failures.get(i, "no answer")) for i in range(clients.size)]
    for row, position in enumerate(trained.positions.tolist()):
        loss, variance = float(trained.losses[row]), float(trained.gradient_variances[row])
        report = Report(
            num_steps=int(trained.num_steps[row]),
            train_loss=loss if isfinite(loss) else None,
            gradient_variance=variance if isfinite(variance) else None,
        )
        replies[position] = Reply(TrainedModel(trained.updates, row), report)
    return replies


def _reported(replies: Sequence[Reply], name: str) -> Floats:
    """Return (S,) a number that clients report with their update, NaN where they do not."""
    reported = [None if reply.failure else getattr(reply.report, name) for reply in replies]
    return np.array([nan if value is None else float(value) for value in reported])
