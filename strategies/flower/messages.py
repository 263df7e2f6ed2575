"""Flower messages <-> the reports and replies of the round's logic."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from ..clients.reports import IDENTITY, METRICS, STATUS, Report
from ..rounds.replies import Reply
from .arrays import ReceivedArrays
from .grids import has_arrays

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flwr.app import ArrayRecord

    from ..rounds.stages import Chosen
    from .grids import Clock

_APP_RAISED = 2  # flwr.common.constant.ErrorCode.CLIENT_APP_RAISED_EXCEPTION
_NO_HANDLER = "function registered with name"  # from Flower's error about a message type without a handler
_TAIL = 250  # characters that are kept of a client's error
CLOCKS_DIFFER = 300.0
"""Seconds by which a message outlives its deadline, since a device's clock may be wrong. Not much more: a
late client should not work on messages whose replies are no longer awaited."""


def write_report(report: Report) -> RecordDict:
    """Return a report as the records of a reply."""
    content = RecordDict({METRICS: MetricRecord({**report.metrics()})})
    if identity := report.identity():
        content[IDENTITY] = ConfigRecord({**identity})
    return content


def read_report(content: RecordDict, size_key: str = "num-examples") -> Report:
    """Read a client's report, whatever the names of its records.

    Parameters
    ----------
    content : RecordDict
        The content of the client's message.
    size_key : str (default: "num-examples")
        The name under which the app sends its data size.

    Raises
    ------
    ValueError
        If a field of the report is wrong.
    """
    fields: dict[str, object] = {}
    for metrics in content.metric_records.values():
        fields.update(metrics)
    for config in content.config_records.values():
        fields.update(config)
    if size_key in fields:
        fields["num-examples"] = fields[size_key]
    return Report.parse(fields)


def question(
    kind: str, node_id: int, deadline: float, content: RecordDict | None = None, round: int | None = None
) -> Message:
    """Return a question to a node, to be answered within ``deadline`` seconds."""
    group = "" if round is None else str(round)
    return Message(content or RecordDict(), node_id, kind, ttl=deadline + CLOCKS_DIFFER, group_id=group)


def status_question(node_id: int, deadline: float) -> Message:
    """Return the question for a client's identity, data size and availability."""
    return question(STATUS, node_id, deadline)


def lacks_handler(reply: Message) -> bool:
    """Return whether the client's app has no handler for the message type that this reply answers."""
    return reply.has_error() and reply.error.code == _APP_RAISED and _NO_HANDLER in str(reply.error.reason)


def why_failed(reply: Message) -> str:
    """Return the error of a failed reply in one line; of a traceback the end, which names the error."""
    reason = " ".join(str(reply.error.reason).split())
    return f"error {reply.error.code}: {f'… {reason[-_TAIL:]}' if len(reason) > _TAIL else reason}"


def read_status(reply: Message) -> Report | None:
    """Read the answer to `status_question`.

    An app without a status handler gives an empty report; a node that was not reached or failed gives None.

    Raises
    ------
    ValueError
        If a field of the report is wrong.
    """
    if reply.has_error():
        return Report() if lacks_handler(reply) else None
    return read_report(reply.content)


def read_metric(reply: Message, name: str) -> float:
    """Return one of the client's metrics; NaN if it is missing or not finite."""
    for metrics in reply.content.metric_records.values():
        value = metrics.get(name)
        if isinstance(value, int | float) and isfinite(value):
            return float(value)
    return nan


def _read_reply(message: Message, size_key: str) -> Reply:
    """Read a TRAIN reply; an error becomes its failure. Arrays are decoded on access."""
    if message.has_error():
        return Reply(failure=why_failed(message))
    records = list(message.content.array_records.values())
    try:
        report = read_report(message.content, size_key)
        if not records and not report.available:
            return Reply(report=report, failure="it does not want to train now")
        if len(records) != 1:
            return Reply(failure=f"{len(records)} array records in the reply: must be 1", sent=True)
        metrics = {k: v for record in message.content.metric_records.values() for k, v in record.items()}
    except Exception as error:  # whatever a client sends, the round goes on
        return Reply(failure=f"unreadable reply: {error}", sent=True)
    return Reply(arrays=ReceivedArrays(records[0]), report=report, metrics=metrics)


@dataclass(frozen=True)
class TrainingRound:
    """A round whose TRAIN messages are out."""

    chosen: Chosen
    arrays: ArrayRecord  # w_t
    messages: list[Message]  # (S,) aligned with the selected clients
    began: float  # s, of the clock
    clock: Clock

    def match(self, replies: Iterable[Message], size_key: str) -> list[Reply]:
        """Return (S,) the reply of each selected client.

        Replies are matched by the id of the message that they answer: the error reply for a dead node does
        not come from it. Of several replies to one message the first counts.
        """
        first: dict[str, Message] = {}
        for reply in replies:
            first.setdefault(reply.metadata.reply_to_message_id, reply)
        answers = [first.get(message.metadata.message_id) for message in self.messages]
        models = sum(answer is not None and has_arrays(answer) for answer in answers)
        enough = self.chosen.enough
        cut = enough < len(answers) and models >= enough
        missing = Reply(failure="enough others had answered" if cut else "no answer by the deadline")
        return [missing if answer is None else _read_reply(answer, size_key) for answer in answers]
