"""Converts between Flower's messages and the reports and replies that `RoundLogic` takes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite, nan

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from ..clients.printable import printable
from ..clients.reports import IDENTITY, METRICS, PROPERTIES, STATUS, Report
from ..rounds.aggregation import Model, UnusableError, Update
from ..rounds.record import RoundRecord
from ..rounds.replies import Reply
from ..rounds.stages import Chosen
from ..rounds.waiting.wait_time import ENOUGH_REPLIED, LATE
from .arrays import ReceivedArrays, of_kind
from .exchanges import Clock

_APP_RAISED = 2  # flwr.common.constant.ErrorCode.CLIENT_APP_RAISED_EXCEPTION
_NO_HANDLER = "function registered with name"  # from Flower's error about a message type without a handler
ENOUGH = 3
"""If this many clients answer that the app lacks a handler, the server believes them. A single client may be
wrong, or lie."""
_TAIL = 250  # how many characters at the end of a client's error are kept
CLOCKS_DIFFER = 300.0
"""Seconds between the deadline of a message and its expiry. The margin is needed because a device's clock may
be wrong. The margin is short because late clients should not work on messages whose replies are not used."""


def write_report(report: Report) -> RecordDict:
    """Return a report as the content of a reply."""
    content = RecordDict({METRICS: MetricRecord({**report.metrics()})})
    if identity := report.identity():
        content[IDENTITY] = ConfigRecord({**identity})
    if report.properties:
        content[PROPERTIES] = ConfigRecord({**report.properties})
    return content


def read_report(content: RecordDict, size_key: str = "num-examples") -> Report:
    """Read a client's report from all metric and config records of a reply, whatever the records' names are.

    The data size is the metric ``size_key``; without it, ``num-examples`` or ``num_examples``.

    Raises a ValueError if the data size is invalid, see `Report.parse`.
    """
    fields: dict[str, object] = {}
    for metrics in of_kind(content, MetricRecord).values():
        fields.update(metrics)
    for name, config in of_kind(content, ConfigRecord).items():
        if name == PROPERTIES:
            fields[PROPERTIES] = dict(config)
        else:
            fields.update(config)
    if size_key in fields:
        fields["num-examples"] = fields[size_key]
    for name in ("num_examples", "train_loss"):  # train_loss: the name in Flower's own templates
        if name in fields:
            fields.setdefault(name.replace("_", "-"), fields[name])
    return Report.parse(fields)


def question(
    kind: str, node_id: int, deadline: float, content: RecordDict | None = None, round: int | None = None
) -> Message:
    """Return a message of type ``kind`` to a node; it expires ``deadline`` + 300 seconds from now."""
    group = "" if round is None else str(round)
    return Message(content or RecordDict(), node_id, kind, ttl=deadline + CLOCKS_DIFFER, group_id=group)


def status_question(node_id: int, deadline: float) -> Message:
    """Return the message that asks for a client's identity, data size and availability."""
    return question(STATUS, node_id, deadline)


def lacks_handler(reply: Message) -> bool:
    """Return whether a reply is the error of an app that has no handler for the question."""
    return reply.has_error() and reply.error.code == _APP_RAISED and _NO_HANDLER in str(reply.error.reason)


def why_failed(reply: Message) -> str:
    """Return the error of a failed reply in one line. Of a long traceback, the last words are kept."""
    reason = " ".join(str(reply.error.reason)[-10 * _TAIL :].split())
    tail = reason
    if len(reason) > _TAIL:
        kept = reason[-_TAIL:]
        tail = f"… {kept.partition(' ')[2] or kept}"  # begin with a whole word
    return printable(f"error {reply.error.code}: {tail}")


def read_status(reply: Message) -> Report | None:
    """Read the answer to `status_question`: empty without a handler, None after any other error."""
    if reply.has_error():
        return Report() if lacks_handler(reply) else None
    return read_report(reply.content)


def loss_name(metrics: Iterable[str], wanted: str | None) -> str | None:
    """Return the name of the metric that holds the loss; None if no metric does.

    The name is ``wanted``, if it is given. Otherwise it is "loss", or else the only name that contains
    "loss", such as "eval_loss".

    Examples
    --------
    >>> loss_name(["accuracy", "eval_loss"], None)
    'eval_loss'
    """
    names = list(metrics)
    if wanted is not None or "loss" in names:
        return next((name for name in names if name == (wanted or "loss")), None)
    similar = [name for name in names if "loss" in name.lower()]
    return similar[0] if len(similar) == 1 else None


def read_loss(content: RecordDict, wanted: str | None) -> float:
    """Return the loss among the metrics of a reply; NaN if it is missing or not a finite number."""
    records = of_kind(content, MetricRecord).values()
    metrics = {name: value for each in records for name, value in each.items()}
    value = metrics.get(loss_name(metrics, wanted) or "")
    return float(value) if isinstance(value, int | float) and isfinite(value) else nan


def read_reply(message: Message, size_key: str) -> Reply:
    """Read a TRAIN reply. An error becomes the result's ``failure``. Arrays are decoded later."""
    if message.has_error():
        return Reply(failure=why_failed(message))
    records = list(of_kind(message.content, ArrayRecord).values())
    try:
        report = read_report(message.content, size_key)
        if not records and not report.available:
            return Reply(report=report, failure="it does not want to train now")
        if len(records) != 1:
            return Reply(failure=f"{len(records)} array records in the reply: must be 1", sent=True)
        parts = of_kind(message.content, MetricRecord).values()
        metrics = {name: value for part in parts for name, value in part.items()}
    except Exception as error:  # a reply may cause any error, and must not end the round
        return Reply(failure=printable(f"unreadable reply: {error}"), sent=True)
    return Reply(arrays=ReceivedArrays(records[0]), report=report, metrics=metrics)


def read_usable(message: Message, model: ArrayRecord, size_key: str) -> Reply:
    """Read a TRAIN reply and examine its arrays against ``model``, which was sent; a failure drops them."""
    reply = read_reply(message, size_key)
    if reply.arrays is None:
        return reply
    try:
        Model(dict(ReceivedArrays(model))).examine(Update(reply.arrays))
    except UnusableError as error:
        return replace(reply, arrays=None, failure=printable(error), sent=True)
    return reply


def timed(record: RoundRecord, replies: Sequence[Reply], reply_seconds: NDArray[np.float64]) -> RoundRecord:
    """Return the record with reply times (S,), and training times and batteries that ``replies`` report."""
    return replace(
        record,
        reply_seconds=reply_seconds,
        training_seconds=_known([reply.report.training_seconds for reply in replies]),
        batteries=_known([reply.report.battery for reply in replies]),
    )


@dataclass(frozen=True)
class TrainingRound:
    """A round whose TRAIN messages have been made."""

    chosen: Chosen
    arrays: ArrayRecord  # w_t
    # (S,) one for each selected client. In a buffered round: at most one, which only the server step uses.
    messages: list[Message]
    began: float  # when enough clients were available, before the poll; s on the clock
    # When the TRAIN messages were made, s on the clock. In a buffered round: when places were first filled.
    asked: float
    clock: Clock
    size_key: str = "num-examples"  # the name of the metric that holds a client's data size
    arrivals: dict[str, float] = field(default_factory=dict)  # see `ExchangeGrid.arrivals`
    missing: dict[int, str] = field(default_factory=dict)  # see `ExchangeGrid.missing`
    _usable: dict[str, bool] = field(default_factory=dict)  # id of the TRAIN message -> is its reply usable

    @cached_property
    def _model(self) -> Model:
        return Model(dict(ReceivedArrays(self.arrays)))

    def is_usable(self, reply: Message) -> bool:
        """Return whether a reply holds a model with the right names and shapes, and finite real numbers.

        Only the first reply to a message is examined. Its result also holds for later replies to the message.
        """
        answered = reply.metadata.reply_to_message_id
        if answered not in self._usable:
            self._usable[answered] = self._can_be_used(reply)
        return self._usable[answered]

    def _can_be_used(self, message: Message) -> bool:
        reply = read_reply(message, self.size_key)
        if reply.arrays is None:
            return False
        try:
            self._model.examine(Update(reply.arrays))
        except UnusableError:
            return False
        return True

    def match(self, replies: Iterable[Message]) -> list[Reply]:
        """Return (S,) the reply of each selected client.

        A reply is matched by the id of the message that it answers, and not by its sender, because the error
        reply for an offline node comes from the SuperLink. Only the first reply to each message is used. For
        a client without a reply, ``failure`` states why there is none.
        """
        first: dict[str, Message] = {}
        for reply in replies:
            first.setdefault(reply.metadata.reply_to_message_id, reply)
        matched = [first.get(message.metadata.message_id) for message in self.messages]
        enough = self.chosen.enough
        cut = enough < len(matched) and enough <= sum(
            reply is not None and self.is_usable(reply) for reply in matched
        )
        missing = ENOUGH_REPLIED if cut else LATE
        return [
            Reply(failure=self.missing.get(position, missing))
            if reply is None
            else read_reply(reply, self.size_key)
            for position, reply in enumerate(matched)
        ]

    def reply_seconds(self) -> NDArray[np.float64]:
        """Return (S,) the seconds until the server had each reply, NaN for none; empty if all are NaN."""
        return _known([self.arrivals.get(each.metadata.message_id) for each in self.messages])


def _known(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Return the numbers as an array, None as NaN. The array is empty if all numbers are NaN."""
    array = np.array(values, dtype=np.float64)
    return array if np.isfinite(array).any() else np.empty(0)
