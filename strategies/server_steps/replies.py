"""What a Flower strategy is shown of a round: replies as clients would have sent them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

if TYPE_CHECKING:
    from flwr.serverapp.strategy import FedAvg
    from numpy.typing import NDArray

    from ..rounds.stages import Outcome

NORM_BIT = "norm_bit"
"""Flower's name for the bit of its adaptive clipping on clients."""


@dataclass(frozen=True)
class Contribution:
    """What one client contributes to a step.

    Attributes
    ----------
    arrays : mapping of str to array
        w_m. It may have been clipped, but not by other clients' values where there is differential privacy.
    weight : float
        c_m, given the clients that replied.
    count : int
        How often it was drawn.
    loss : float
        Its mean training loss; NaN = not reported.
    """

    arrays: Mapping[str, NDArray[Any]]
    weight: float
    count: int = 1
    loss: float = nan


def contributions_of(outcome: Outcome) -> Iterator[Contribution]:
    """Yield the contribution of each client that is part of a round's step, in selection order."""
    record = outcome.record
    for i, sent in outcome.client_models():
        counts, losses = record.selection.counts, record.feedback.losses
        yield Contribution(sent, float(record.weights[i]), int(counts[i]), float(losses[i]))


@dataclass(frozen=True)
class Asked:
    """A Flower strategy that is asked for its step.

    Attributes
    ----------
    strategy : Strategy
        Takes the step.
    base : FedAvg
        Names the records of a message: the strategy itself, or the inner one of differential privacy.
    """

    strategy: Any
    base: FedAvg

    def step(self, round: int, replies: list[Message]) -> dict[str, NDArray[Any]] | None:
        """Return the new model, None if the strategy made none."""
        stepped, _ = self.strategy.aggregate_train(round, replies)
        return None if stepped is None else {name: array.numpy() for name, array in stepped.items()}

    def reply(
        self, message: Message, arrays: Mapping[str, NDArray[Any]], *, weight: int = 1, **metrics: float
    ) -> Message:
        """Return a new reply to a message; some strategies take its records apart."""
        numbers: dict[str, Any] = {self.base.weighted_by_key: weight}
        if isinstance(self.strategy, flower.QFedAvg):
            numbers[self.strategy.train_loss_key] = metrics["loss"]
        elif NORM_BIT in metrics:
            numbers[NORM_BIT] = int(metrics[NORM_BIT])
        content = RecordDict({self.base.arrayrecord_key: record(arrays), "metrics": MetricRecord(numbers)})
        return Message(content, reply_to=message)


def record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return arrays as Flower's record."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
