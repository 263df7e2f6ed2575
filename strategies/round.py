"""A round on arrays: choose, weigh, aggregate, learn. It knows no Message and no network.

The Flower strategy translates messages to and from this; a simulator calls it directly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reports import Report
from .selectors import Feedback, Selection, Selector

Arrays = dict[str, NDArray[Any]]
"""A model: its parameters by name."""


@dataclass(frozen=True)
class Reply:
    """What came back from one chosen client: its trained arrays, or the reason why there are none."""

    arrays: Mapping[str, NDArray[Any]] | None = None  # w_m; names and shapes must be the model's
    report: Report = field(default_factory=Report)
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


def why_unusable(update: Mapping[str, NDArray[Any]], arrays: Arrays) -> str:
    """Return what is wrong with a client's arrays, "" if nothing is."""
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
            answered.
        RoundRecord
            What happened.
        """
        failures = {}
        for client, reply in zip(selection.clients, replies, strict=True):
            reason = reply.failure or (
                "no arrays in the reply" if reply.arrays is None else why_unusable(reply.arrays, arrays)
            )
            if reason:
                failures[int(client)] = reason
        responded = np.array([int(client) not in failures for client in selection.clients], dtype=bool)
        weights = self.selector.finalize(selection, responded)

        total = {name: np.zeros(a.shape, np.result_type(a, np.float32)) for name, a in arrays.items()}
        norms = np.full(len(replies), nan)
        for position, reply in enumerate(replies):
            if reply.arrays is None or not responded[position]:
                continue
            squares = 0.0
            for name, array in arrays.items():
                delta = np.subtract(reply.arrays[name], array, dtype=total[name].dtype)
                squares += float(np.square(delta, dtype=np.float64).sum())
                delta *= weights[position]
                total[name] += delta
            norms[position] = sqrt(squares) / self.local_learning_rate

        told = [
            reply.report.train_loss if usable else None
            for reply, usable in zip(replies, responded, strict=True)
        ]
        losses = np.array([nan if loss is None else loss for loss in told], dtype=np.float64)
        unknown = np.full(len(replies), nan)
        feedback = Feedback(
            update_norms=norms,
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
        if not responded.any():
            return None, record
        return {name: _step(array, total[name]) for name, array in arrays.items()}, record


def _step(array: NDArray[Any], delta: NDArray[Any]) -> NDArray[Any]:
    """Return array + delta in the array's own type; counters (integers) are rounded, not cut off."""
    moved: NDArray[Any] = array + delta
    return np.rint(moved).astype(array.dtype) if array.dtype.kind in "iub" else moved.astype(array.dtype)
