"""Makes the messages that a Flower strategy aggregates. They have the form of clients' replies."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from ..rounds.stages import Outcome

NORM_BIT = "norm_bit"
"""Flower's name for the bit that a client sends with adaptive clipping: whether its update was clipped."""


@dataclass(frozen=True)
class Contribution:
    """The contribution of one client to a server step."""

    # The client's model w_m. The guard may have clipped its update. With differential privacy, the guard does
    # not clip, because its limit would disclose other clients' values.
    arrays: Mapping[str, NDArray[Any]]
    weight: float  # c_m, corrected for the clients that did not reply
    count: int = 1  # how often the client was drawn, >= 1
    loss: float = nan  # the client's mean training loss; NaN = not reported


def contributions_of(outcome: Outcome) -> Iterator[Contribution]:
    """Yield the contributions of the clients with a usable reply in a round, in selection order."""
    record = outcome.record
    for i, sent in outcome.client_models():
        counts, losses = record.selection.counts, record.feedback.losses
        yield Contribution(sent, float(record.weights[i]), int(counts[i]), float(losses[i]))


@dataclass(frozen=True)
class Asked:
    """A Flower strategy, with methods to make replies for it and to let it step."""

    strategy: Any  # the strategy that takes the step
    # Its keys name the records in a message: the inner strategy if `strategy` adds differential privacy to
    # another one, and otherwise `strategy` itself.
    base: FedAvg

    def step(self, round: int, replies: list[Message]) -> dict[str, NDArray[Any]] | None:
        stepped, _ = self.strategy.aggregate_train(round, replies)
        return None if stepped is None else {name: array.numpy() for name, array in stepped.items()}

    def reply(
        self, message: Message, arrays: Mapping[str, NDArray[Any]], *, weight: int = 1, **metrics: float
    ) -> Message:
        """Return a new reply with the model `arrays`, ``num-examples`` = `weight`, and `metrics`."""
        numbers: dict[str, Any] = {self.base.weighted_by_key: weight}
        if isinstance(self.strategy, flower.QFedAvg):
            numbers[self.strategy.train_loss_key] = metrics["loss"]
        elif NORM_BIT in metrics:
            numbers[NORM_BIT] = int(metrics[NORM_BIT])
        content = RecordDict({self.base.arrayrecord_key: record(arrays), "metrics": MetricRecord(numbers)})
        return Message(content, reply_to=message)


def record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return the arrays as a Flower ArrayRecord."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
