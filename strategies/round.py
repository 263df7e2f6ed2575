"""A round on arrays: choose, weigh, aggregate, learn. It knows no Message and no network.

The Flower strategy translates messages to and from this; a simulator calls it directly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reports import Report
from .selectors import Feedback, Selection, Selector

Arrays = dict[str, NDArray[Any]]
"""A model: its parameters by name."""
_LONGEST_REASON = 300  # characters of a failure's reason that are kept; a client writes part of it


@dataclass(frozen=True)
class Reply:
    """What came back from one chosen client: its trained arrays, or the reason why there are none."""

    arrays: Mapping[str, NDArray[Any]] | None = None  # w_m; names and shapes must be the model's
    report: Report = field(default_factory=Report)
    metrics: Mapping[str, Any] = field(default_factory=dict)  # all that it measured, passed through
    failure: str = ""  # why there are no arrays, for the log


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round, aligned with ``selection.clients`` where (S,)."""

    round: int
    num_available: int
    selection: Selection
    weights: NDArray[np.float64]  # (S,) c_m with which each update went into the pseudo-gradient
    feedback: Feedback
    failures: Mapping[int, str] = field(default_factory=dict)  # client index -> why it was left out
    train_loss: float = nan  # of the clients that answered, weighted as their updates
    seconds: float = nan  # from the choice to the new model, waiting included


def why_unusable(update: Mapping[str, NDArray[Any]] | None, arrays: Arrays) -> str:
    """Return what is wrong with a client's arrays, "" if nothing is."""
    if update is None:
        return "no arrays in the reply"
    if update.keys() != arrays.keys():
        return f"arrays are named {sorted(update)}, the model's are {sorted(arrays)}"
    for name, array in arrays.items():
        if update[name].shape != array.shape:
            return f"array {name!r} has shape {update[name].shape}, the model's has {array.shape}"
        if update[name].dtype.kind not in "fiub":
            return f"array {name!r} is of type {update[name].dtype}: must be of real numbers"
        if not np.isfinite(update[name]).all():
            return f"array {name!r} holds NaN or infinite values"
    return ""


class RoundLogic:
    """The rounds of one run.

    Parameters
    ----------
    selector : Selector
        Decides who trains and what each update weighs; learns from the feedback.
    local_learning_rate : float (default: 1.0)
        What divides an update's norm, so that ‖g_m‖ is that of the summed local gradients. Selectors that
        only compare clients with each other are indifferent to it.
    """

    def __init__(self, selector: Selector, local_learning_rate: float = 1.0) -> None:
        self.selector = selector
        self.local_learning_rate = local_learning_rate

    def choose(self, round: int, here: NDArray[np.int64] | None = None) -> Selection:
        """Return this round's cohort, out of the clients ``here`` (dense indexes; None = everyone)."""
        return self.selector.select(round, available=here)

    def finish(
        self, round: int, selection: Selection, arrays: Arrays, replies: Sequence[Reply], num_available: int
    ) -> tuple[Arrays | None, RoundRecord]:
        """Aggregate what came back and let the selector learn from it.

        A reply that cannot be used counts as none: the round goes on without it, and `finalize` corrects
        the weights of the others.

        Parameters
        ----------
        round : int
            The number of the round.
        selection : Selection
            What `choose` returned.
        arrays : dict of arrays
            w_t, the model that was sent out; stays as it is.
        replies : sequence of Reply
            (S,) aligned with ``selection.clients``.
        num_available : int
            How many clients there were to choose from.

        Returns
        -------
        dict of arrays or None
            w_t + Δ with the pseudo-gradient Δ = Σ_m c_m (w_m − w_t), summed in selection order, since
            addition of floats is not associative and a resumed run must be the same run. None when nobody
            answered, or the sum is not finite: the model then stays as it is.
        RoundRecord
            What happened.
        """
        updates: list[Mapping[str, NDArray[Any]] | None] = []  # None: nothing usable
        norms = np.full(len(replies), nan)
        failures = {}
        for position, (client, reply) in enumerate(zip(selection.clients, replies, strict=True)):
            reason = reply.failure or why_unusable(reply.arrays, arrays)
            if not reason and reply.arrays is not None:
                norms[position] = _norm(reply.arrays, arrays) / self.local_learning_rate
                reason = "" if isfinite(norms[position]) else "the norm of the update is not finite"
            if reason:
                failures[int(client)] = reason[:_LONGEST_REASON]
            updates.append(None if reason else reply.arrays)
        responded = np.array([update is not None for update in updates], dtype=bool)
        weights = self.selector.finalize(selection, responded)
        moved = _moved(arrays, updates, weights) if responded.any() else None
        if moved is None:  # a sum that is not finite is nobody's in particular: all are left out
            for client in selection.clients[responded]:
                failures[int(client)] = "the step with this update is not finite"
            responded = np.zeros(len(replies), dtype=bool)
            weights = self.selector.finalize(selection, responded)

        losses = np.full(len(replies), nan)
        for position, reply in enumerate(replies):
            if responded[position] and reply.report.train_loss is not None:
                losses[position] = reply.report.train_loss
        unknown = np.full(len(replies), nan)
        feedback = Feedback(
            update_norms=np.where(responded, norms, nan),
            losses=losses,
            gradient_variances=unknown,
            diversities=unknown,
            responded=responded,
        )
        self.selector.update(round, selection, feedback)

        known = np.isfinite(losses) & (weights > 0)
        record = RoundRecord(
            round=round,
            num_available=num_available,
            selection=selection,
            weights=weights,
            feedback=feedback,
            failures=failures,
            train_loss=float(np.average(losses[known], weights=weights[known])) if known.any() else nan,
        )
        return moved, record


def _delta(sent: NDArray[Any], array: NDArray[Any]) -> NDArray[Any]:
    """Return sent - array in the type in which updates are summed: float32 or wider."""
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found by its norm
        difference: NDArray[Any] = np.subtract(sent, array, dtype=np.result_type(array, np.float32))
    return difference


def _norm(sent: Mapping[str, NDArray[Any]], arrays: Arrays) -> float:
    """Return ‖w_m − w_t‖, L2 over all arrays; inf or NaN if it overflows."""
    squares = [float(np.square(_delta(sent[name], a), dtype=np.float64).sum()) for name, a in arrays.items()]
    return sqrt(sum(squares)) if isfinite(sum(squares)) else nan


def _moved(
    arrays: Arrays, updates: Sequence[Mapping[str, NDArray[Any]] | None], weights: NDArray[np.float64]
) -> Arrays | None:
    """Return w_t + Σ c_m (w_m − w_t), summed in the order given; None if that is not finite."""
    moved = {}
    for name, array in arrays.items():
        total = np.zeros(array.shape, np.result_type(array, np.float32))
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            for sent, weight in zip(updates, weights, strict=True):
                if sent is not None:
                    delta = _delta(sent[name], array)
                    delta *= weight
                    total += delta
            total += array
            # Counters (integers) are rounded, not cut off.
            moved[name] = (np.rint(total) if array.dtype.kind in "iub" else total).astype(array.dtype)
        if not np.isfinite(total).all() or not np.isfinite(moved[name]).all():
            return None
    return moved
