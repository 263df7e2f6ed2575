"""The replies of a round: what the clients sent, which of it is usable, and the weighted sum of the updates.

`Received` is made of one `Reply` for each client, or of one batch (`TrainedClients`) for all clients.
`examine` reads the models in groups of 64; a batch usually needs no pass over its clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import isfinite, nan
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..clients.reports import Report
from ..numerics import sketches
from ..numerics.arrays import Bools, Floats
from ..selectors import Selection
from .aggregation import TOGETHER, Arrays, Model, UnusableError, Update
from .trained_clients import TrainedClients, TrainedModel


@dataclass(frozen=True)
class Reply:
    """The reply of one selected client: its trained model, or the reason why there is none."""

    arrays: Mapping[str, NDArray[Any]] | None = None  # w_m; each access may decode an array
    report: Report = field(default_factory=Report)
    metrics: Mapping[str, Any] = field(default_factory=dict)  # all metrics of the client, unchanged
    failure: str = ""  # why there are no arrays; "" if there are arrays
    sent: bool = False  # if there is a failure: whether the client sent a reply that cannot be used


@dataclass(frozen=True)
class Received:
    """What the S selected clients sent. Keys are positions in the selection; in arrays, NaN = not known."""

    models: Mapping[int, Mapping[str, NDArray[Any]]]  # w_m, in selection order
    losses: Floats  # (S,) the training losses that the clients reported
    gradient_variances: Floats  # (S,) as reported
    num_steps: Floats  # (S,) the numbers of local steps, as reported
    reported_norms: Floats  # (S,) ‖w_m - w_t‖, as reported
    failures: Mapping[int, str]  # why a reply is missing or cannot be used
    at_fault: frozenset[int] = frozenset()  # the failures whose cause is the content of a reply
    part_norms: Floats | None = None  # (S, P) the reported norm of each part of each update
    batch: TrainedClients | None = None  # computes norms and sums without a pass over its clients

    @classmethod
    def of(cls, replies: Sequence[Reply] | TrainedClients, selection: Selection) -> "Received":
        """Return the replies (S,) to the clients of a selection, in its order."""
        size = selection.clients.size
        if isinstance(replies, TrainedClients):
            norms = replies.norms
            return cls(
                {at: TrainedModel(replies.updates, row) for row, at in enumerate(replies.positions.tolist())},
                replies.spread(replies.losses, size),
                replies.spread(replies.gradient_variances, size),
                replies.spread(replies.num_steps.astype(np.float64), size),
                replies.spread(np.where(np.isfinite(norms), norms, nan), size),
                replies.failures,
                batch=replies,
            )
        failures = {i: reply.failure for i, reply in enumerate(replies) if reply.failure}
        part_norms = None
        if selection.parts is not None:
            each = [_reported(replies, name) for name in ("model_norm", "personal_norm")]
            part_norms = np.stack(each, axis=1)
            for i, reply in enumerate(replies):
                if reply.report.num_parts != selection.parts.shape[1]:
                    failures.setdefault(i, "the client's app does not scale the parts of an update")
        return cls(
            {i: reply.arrays or {} for i, reply in enumerate(replies) if i not in failures},
            _reported(replies, "train_loss"),
            _reported(replies, "gradient_variance"),
            _reported(replies, "num_steps"),
            _reported(replies, "update_norm"),
            failures,
            frozenset(i for i, reply in enumerate(replies) if reply.failure and reply.sent),
            part_norms,
        )

    @property
    def sent(self) -> Bools:
        """(S,) whether each client sent a model, usable or not."""
        return _marked(self.models, self.losses.size)


class _FirstPass(Protocol):
    """Examines updates, and returns Σ c_m s_m (w_m - w_t - y_m) over those that are used."""

    def examine(
        self, updates: Mapping[int, Update], sketched: Floats | None
    ) -> Mapping[int, float | UnusableError]:
        """Return position -> the norm of the update or why it cannot be used; write the sketches (R, D)."""

    def __call__(self, updates: Mapping[int, Update], coefficients: Floats) -> Arrays:
        """Return the sum over these updates, in new flat arrays."""


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
        coefficients = [float(self._coefficients[position]) for position in updates]
        norms = self._model.examine_together(list(updates.values()), self._total, coefficients, sketched)
        if any(isinstance(norm, UnusableError) for norm in norms):
            self._total = None  # some arrays of an unusable update may have been added to the sum
        self._count += len(updates)
        return dict(zip(updates, norms, strict=True))

    def __call__(self, updates: Mapping[int, Update], coefficients: Floats) -> Arrays:
        total, self._total = self._total, None  # the sum can be taken once: its memory becomes the model
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

    model: Model
    trained: TrainedClients

    def examine(
        self, updates: Mapping[int, Update], sketched: Floats | None
    ) -> dict[int, float | UnusableError]:
        if sketched is not None:
            self.model.examine_together(list(updates.values()), sketched=sketched)
        overflow = UnusableError("the norm of the update is not finite")
        norms = {position: self._norms[position] for position in updates}
        return {position: norm if isfinite(norm) else overflow for position, norm in norms.items()}

    @cached_property
    def _norms(self) -> dict[int, float]:
        return dict(zip(self.trained.positions.tolist(), self.trained.norms.tolist(), strict=True))

    def __call__(self, updates: Mapping[int, Update], coefficients: Floats) -> Arrays:
        scaled = np.zeros(coefficients.size)
        scaled[list(updates)] = [c * update.scale for c, update in _weighted(updates, coefficients)]
        combined = self.trained.updates.combined(scaled[self.trained.positions])
        return {name: array.reshape(-1) for name, array in combined.items()}


@dataclass(frozen=True)
class ExaminedReplies:
    """The replies of a round after `examine`, or after the guard. Keys are positions in the selection."""

    model: Model  # w_t
    received: Received
    updates: Mapping[int, Update]  # the usable updates, in selection order; none in a skipped round
    norms: Floats  # (S,) ‖g_m‖ of each usable update, the norm divided by the learning rate; NaN = not usable
    losses: Floats  # (S,) as reported; NaN = not known
    gradient_variances: Floats  # (S,) as reported; NaN = not known
    measured_norms: Floats  # (S,) ‖w_m - w_t‖ that the server measured, if the client reported it too
    failures: Mapping[int, str]  # why a reply is missing or cannot be used
    at_fault: frozenset[int]  # the failures whose cause is the content of a reply
    summed: _FirstPass
    sketches: Floats | None = None  # (S, D) the sketch of each usable update, see `numerics.sketches`
    clipped: Mapping[int, str] = field(default_factory=dict)  # which values were clipped
    weights: Floats = field(default_factory=lambda: np.empty(0))  # (S,) c_m, see `RoundLogic`
    diversities: Floats | None = None  # (S,) of the usable updates, if the selector uses them
    skipped: str = ""  # why the round does not change the model

    @cached_property
    def usable(self) -> Bools:
        return _marked(self.updates, self.norms.size)

    def sum(self, coefficients: Floats) -> Arrays:
        """Return Σ c_m s_m (w_m - w_t - y_m) over the usable updates, in the form of `Model.fold`."""
        return self.summed(self.updates, coefficients)

    def distances(self, coefficients: Floats, step: Arrays, *, plain: bool) -> list[float]:
        """Return the L2 distance of each usable update from the mean of the usable updates.

        ``step`` is the result of `sum` with these weights (S,) of the mean. The mean is not weighted if
        ``plain``, or if the sum of the weights over the usable updates is not positive.
        """
        total = sum(coefficient for coefficient, _ in _weighted(self.updates, coefficients))
        if plain or not total > 0:
            total = float(len(self.updates))
            step = self.model.fold((1.0, update) for update in self.updates.values())
        return [self.model.distance(update, step, 1 / total) for update in self.updates.values()]


def examine(
    model: Model,
    received: Received,
    expected: Floats,
    learning_rate: float,
    baselines: Mapping[int, Arrays | None] | None = None,
    *,
    masked: bool = False,
    sketched: bool = False,
) -> ExaminedReplies:
    """Examine the replies of a round in one pass.

    ``model``: the model w_t. ``received``: what the S clients sent. ``expected`` (S,): the coefficients of
    the sum if every model is usable. ``learning_rate``: the number by which norms are divided, > 0.
    ``baselines``: Position -> the baseline y_m of the client (default: y_m = 0). ``masked`` (default: False):
    whether updates are masked. Then the norms are those that the clients report. ``sketched`` (default:
    False): whether to compute a sketch of each update. With True, a batch needs a pass over its clients.
    """
    size, batch = received.losses.size, received.batch if baselines is None else None
    first: _FirstPass = SpeculativeSum(model, expected) if batch is None else _BatchSum(model, batch)
    baselines = baselines or {}
    updates: dict[int, Update] = {}
    norms, measured = np.full((2, size), nan)
    each = np.full((size, model.sketch_width), nan) if sketched else None
    failures, at_fault = dict(received.failures), set(received.at_fault)
    rest = iter([(i, Update(sent, baseline=baselines.get(i))) for i, sent in received.models.items()])
    while some := dict(islice(rest, TOGETHER)):
        found = np.zeros((len(some), sketches.WIDTH)) if sketched else None
        for row, (position, norm) in enumerate(first.examine(some, found).items()):
            update, reported = some[position], float(received.reported_norms[position])
            try:
                if isinstance(norm, UnusableError):
                    raise norm
                if batch is None and not masked and isfinite(reported):  # a batch reports what is measured
                    measured[position] = (
                        norm if update.baseline is None else model.examine(Update(update.sent))
                    )
            except UnusableError as error:
                failures[position] = str(error)
                at_fault.add(position)
                continue
            norms[position] = (reported if masked else norm) / learning_rate
            updates[position] = update
            if each is not None and found is not None:
                each[position] = found[row, : model.sketch_width]
    return ExaminedReplies(
        model,
        received,
        updates,
        norms,
        received.losses,
        received.gradient_variances,
        measured,
        failures,
        frozenset(at_fault),
        first,
        each,
    )


def _weighted(updates: Mapping[int, Update], coefficients: Floats) -> list[tuple[float, Update]]:
    return [(float(coefficients[position]), update) for position, update in updates.items()]


def _marked(positions: Mapping[int, Any], size: int) -> Bools:
    marked = np.zeros(size, dtype=np.bool_)
    marked[list(positions)] = True
    return marked


def _reported(replies: Sequence[Reply], name: str) -> Floats:
    """Return (S,) one field of the clients' reports; NaN if it was not reported or there is a failure."""
    reported = [None if reply.failure else getattr(reply.report, name) for reply in replies]
    return np.array([nan if value is None else float(value) for value in reported])
