"""Examines the replies of a round: finds the usable replies, and computes norms and the weighted sum.

The replies are either one `Reply` for each client, which are decoded in groups of 64, or one batch
(`TrainedClients`) for all clients. A batch usually needs no pass over its clients.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite, nan
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..clients.reports import Report
from ..numerics import sketches
from ..numerics.arrays import Bools, Floats, Ints
from ..selectors import Selection
from .aggregation import TOGETHER, Arrays, Model, UnusableError, Update
from .control_variates import ClientVariates
from .trained_clients import TrainedClients, TrainedModel, spread


@dataclass(frozen=True)
class Reply:
    """The reply of one selected client: its trained model, or the reason why there is none."""

    arrays: Mapping[str, NDArray[Any]] | None = None  # w_m; each access may decode an array
    report: Report = field(default_factory=Report)
    metrics: Mapping[str, Any] = field(default_factory=dict)  # all metrics of the client, unchanged
    failure: str = ""  # why there are no arrays; "" if there are arrays
    sent: bool = False  # if there is a failure: whether the client sent a reply that cannot be used


class _Sum(Protocol):
    """Returns Σ c_m s_m (w_m - w_t - y_m) over updates by position, in new flat arrays.

    c_m is the update's coefficient, s_m its `scale`, and y_m the client's baseline (`ClientVariates`), which
    is 0 without variates.
    """

    def __call__(self, updates: Mapping[int, Update], coefficients: Floats) -> Arrays: ...


@dataclass
class ExaminedReplies:
    """The replies of a round after `examine`. The keys of all mappings are positions in the selection.

    After `examine`, the guard changes this object: it clips updates and numbers, and rejects replies. In all
    arrays, NaN = not known.
    """

    model: Model  # w_t
    updates: dict[int, Update]  # the usable updates, in selection order
    norms: Floats  # (S,) ‖g_m‖ of each usable update: the norm divided by the learning rate
    losses: Floats  # (S,) the training losses that the clients reported
    gradient_variances: Floats  # (S,) the gradient variances that the clients reported
    num_steps: Floats  # (S,) the numbers of local steps that the clients reported
    reported_norms: Floats  # (S,) ‖w_m - w_t‖ that the clients reported
    measured_norms: Floats  # (S,) ‖w_m - w_t‖ that the server measured, if the client reported it too
    failures: dict[int, str]  # why a reply is missing or cannot be used
    at_fault: list[int]  # the positions of failures whose cause is the content of a reply
    summed: _Sum
    part_norms: Floats | None = None  # (S, P) the reported norm of each part of each update
    sketches: Floats | None = None  # (S, D) the sketch of each usable update, see `numerics.sketches`
    clipped: Mapping[int, str] = field(default_factory=dict)  # which values were clipped

    def usable(self) -> Bools:
        """Return (S,) whether each client's update can be used."""
        usable = np.zeros(self.norms.size, dtype=np.bool_)
        usable[list(self.updates)] = True
        return usable

    def sum(self, coefficients: Floats) -> Arrays:
        """Return Σ c_m s_m (w_m - w_t - y_m) over the usable updates, in the form of `Model.fold`."""
        return self.summed(self.updates, coefficients)

    def distances(self, coefficients: Floats, step: Arrays, *, plain: bool) -> list[float]:
        """Return the L2 distance of each usable update from the mean of the usable updates.

        Parameters
        ----------
        coefficients : ndarray, shape (S,)
            The weights of the mean. If their sum over the usable updates is not positive, the mean is not
            weighted.
        step : dict of arrays
            The result of `sum` with these coefficients.
        plain : bool
            Whether the mean is never weighted.
        """
        total = sum(coefficient for coefficient, _ in _weighted(self.updates, coefficients))
        if plain or not total > 0:
            total = float(len(self.updates))
            step = self.model.fold((1.0, update) for update in self.updates.values())
        return [self.model.distance(update, step, 1 / total) for update in self.updates.values()]


class SpeculativeSum:
    """Sums updates while they are examined, with the weights that are right if all updates are usable.

    If an update is unusable, or the guard clips or rejects it, a second pass computes the sum again.
    """

    def __init__(self, model: Model, coefficients: Floats) -> None:
        self._model, self._coefficients = model, coefficients
        self._total: Arrays | None = model.nothing()
        self._count = 0

    def examine(
        self, updates: Mapping[int, Update], sketched: Floats | None
    ) -> dict[int, float | UnusableError]:
        """Return position -> the norm of the update or why it cannot be used; add the updates to the sum.

        Parameters
        ----------
        updates : mapping of int to Update
            Position in the selection -> update, in selection order.
        sketched : ndarray, shape (R, `sketches.WIDTH`), optional
            See `Model.examine_together`.
        """
        coefficients = [float(self._coefficients[position]) for position in updates]
        norms = self._model.examine_together(list(updates.values()), self._total, coefficients, sketched)
        if any(isinstance(norm, UnusableError) for norm in norms):
            self._total = None  # some arrays of an unusable update may have been added to the sum
        self._count += len(updates)
        return dict(zip(updates, norms, strict=True))

    def __call__(self, updates: Mapping[int, Update], coefficients: Floats) -> Arrays:
        """Return the sum over ``updates``.

        The first call returns the sum that `examine` computed, if that sum is over the same updates with the
        same coefficients.
        """
        total, self._total = self._total, None
        if (
            total is not None
            and len(updates) == self._count
            and all(update.scale == 1 for update in updates.values())
            and np.array_equal(coefficients, self._coefficients)
        ):
            return total
        del total  # frees memory of the model's size
        return self._model.fold(_weighted(updates, coefficients))


@dataclass(frozen=True)
class _BatchSum:
    """Sums the updates of a batch without a pass over its clients."""

    trained: TrainedClients

    def __call__(self, updates: Mapping[int, Update], coefficients: Floats) -> Arrays:
        scaled = np.zeros(coefficients.size)
        scaled[list(updates)] = [c * update.scale for c, update in _weighted(updates, coefficients)]
        combined = self.trained.updates.combined(scaled[self.trained.positions])
        return {name: array.reshape(-1) for name, array in combined.items()}


def _weighted(updates: Mapping[int, Update], coefficients: Floats) -> list[tuple[float, Update]]:
    return [(float(coefficients[position]), update) for position, update in updates.items()]


def sent_arrays(replies: Sequence[Reply] | TrainedClients, size: int) -> Bools:
    """Return (S,) whether each client sent arrays. This does not examine the replies."""
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
    sketched: bool = False,
) -> ExaminedReplies:
    """Examine the replies of a round in one pass.

    Parameters
    ----------
    model : Model
        The model w_t.
    selection : Selection
        The selected clients.
    replies : sequence of Reply, or TrainedClients
        The replies (S,) aligned with the selection, or one batch.
    expected : ndarray, shape (S,)
        The coefficients of the sum if every reply with arrays is usable.
    learning_rate : float
        The number by which norms are divided, > 0.
    variates : ClientVariates, optional
        Returns the baseline y_m of each client (default: y_m = 0).
    masked : bool (default: False)
        Whether updates are masked. Then the norms are those that the clients report.
    sketched : bool (default: False)
        Whether to compute a sketch of each update. With True, a batch needs a pass over its clients.
    """
    if isinstance(replies, TrainedClients):
        if variates is None:
            return _examine_batch(model, selection.clients.size, replies, learning_rate, sketched)
        replies = _one_by_one(replies, selection.clients)
    first_pass = SpeculativeSum(model, expected)
    examined = ExaminedReplies(
        model=model,
        updates={},
        norms=np.full(len(replies), nan),
        losses=_reported(replies, "train_loss"),
        gradient_variances=_reported(replies, "gradient_variance"),
        num_steps=_reported(replies, "num_steps"),
        reported_norms=_reported(replies, "update_norm"),
        measured_norms=np.full(len(replies), nan),
        failures={},
        at_fault=[],
        summed=first_pass,
        sketches=np.full((len(replies), model.sketch_width), nan) if sketched else None,
    )
    if selection.parts is not None:
        each = [_reported(replies, name) for name in ("model_norm", "personal_norm")]
        examined.part_norms = np.stack(each, axis=1) / learning_rate
    updates: dict[int, Update] = {}
    for position, (client, reply) in enumerate(zip(selection.clients, replies, strict=True)):
        if reply.failure:
            examined.failures[position] = reply.failure
            examined.at_fault += [position] * reply.sent
        elif selection.parts is not None and reply.report.num_parts != selection.parts.shape[1]:
            examined.failures[position] = "the client's app does not scale the parts of an update"
        else:
            baseline = None if variates is None else variates.baseline(int(client))
            updates[position] = Update(reply.arrays or {}, baseline=baseline)
    for some in _groups(updates):
        _examine_some(examined, first_pass, some, learning_rate, masked)
    examined.at_fault.sort()
    return examined


def _examine_some(
    examined: ExaminedReplies,
    first_pass: SpeculativeSum,
    updates: Mapping[int, Update],
    learning_rate: float,
    masked: bool,
) -> None:
    """Examine a few updates together, and enter the results into ``examined``."""
    sketched = None if examined.sketches is None else np.zeros((len(updates), sketches.WIDTH))
    for row, (position, norm) in enumerate(first_pass.examine(updates, sketched).items()):
        update = updates[position]
        try:
            if isinstance(norm, UnusableError):
                raise norm
            if not masked and isfinite(examined.reported_norms[position]):
                plain = norm if update.baseline is None else examined.model.examine(Update(update.sent))
                examined.measured_norms[position] = plain
        except UnusableError as error:
            examined.failures[position] = str(error)
            examined.at_fault.append(position)
        else:
            if masked:
                norm = float(examined.reported_norms[position])
            examined.norms[position] = norm / learning_rate
            examined.updates[position] = update
            if sketched is not None and examined.sketches is not None:
                examined.sketches[position] = sketched[row, : examined.model.sketch_width]


def _groups(updates: Mapping[int, Update]) -> Iterator[dict[int, Update]]:
    """Yield the updates by position in groups that are examined together, in their order."""
    rest = iter(updates.items())
    while some := dict(islice(rest, TOGETHER)):
        yield some


def _examine_batch(
    model: Model, size: int, trained: TrainedClients, learning_rate: float, sketched: bool
) -> ExaminedReplies:
    positions, norms = trained.positions, trained.updates.norms()
    finite = np.isfinite(norms)
    bad = [int(position) for position in positions[~finite]]
    updates = {
        position: Update(TrainedModel(trained.updates, row))
        for row, position in enumerate(positions.tolist())
        if finite[row]
    }
    each = np.full((size, model.sketch_width), nan) if sketched else None
    if each is not None:
        for some in _groups(updates):
            found = np.zeros((len(some), sketches.WIDTH))
            model.examine_together(list(some.values()), sketched=found)
            each[list(some)] = found[:, : model.sketch_width]
    return ExaminedReplies(
        model=model,
        updates=updates,
        norms=spread(np.where(finite, norms, nan) / learning_rate, positions, size),
        losses=spread(trained.losses, positions, size),
        gradient_variances=spread(trained.gradient_variances, positions, size),
        num_steps=spread(trained.num_steps.astype(np.float64), positions, size),
        reported_norms=spread(np.where(finite, norms, nan), positions, size),
        measured_norms=np.full(size, nan),  # not needed: the reported norms of a batch are measured
        failures={**trained.failures, **dict.fromkeys(bad, "the norm of the update is not finite")},
        at_fault=bad,
        summed=_BatchSum(trained),
        sketches=each,
    )


def _one_by_one(trained: TrainedClients, clients: Ints) -> list[Reply]:
    """Split a batch into one reply per client, for code that needs each client's update."""
    replies = [Reply(failure=trained.failures.get(i, "no answer")) for i in range(clients.size)]
    norms = trained.updates.norms()
    for row, position in enumerate(trained.positions.tolist()):
        loss, variance = float(trained.losses[row]), float(trained.gradient_variances[row])
        report = Report(
            num_steps=int(trained.num_steps[row]),
            update_norm=float(norms[row]) if isfinite(norms[row]) else None,
            train_loss=loss if isfinite(loss) else None,
            gradient_variance=variance if isfinite(variance) else None,
        )
        replies[position] = Reply(TrainedModel(trained.updates, row), report)
    return replies


def _reported(replies: Sequence[Reply], name: str) -> Floats:
    """Return (S,) one field of the clients' reports; NaN if it was not reported or there is a failure."""
    reported = [None if reply.failure else getattr(reply.report, name) for reply in replies]
    return np.array([nan if value is None else float(value) for value in reported])
