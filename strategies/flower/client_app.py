"""ReportingClientApp, a ClientApp that answers the server's status, loss and norm queries for any app."""

from collections.abc import Callable
from math import isfinite, sqrt
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from ..clients.reports import IDENTITY, LOSS, NORM, PROPERTIES, STATUS, Report
from .arrays import of_kind
from .messages import read_loss, read_report, write_report

_MEMORY = "cohort"
"""Key of the ConfigRecord in the context's state that holds the data size of the last training."""


def report_partition(context: Context) -> Report:
    """Return the report of a client that is known by its partition, as in Flower's simulation."""
    partition = context.node_config.get("partition-id")
    return Report(client_id=None if partition is None else f"partition-{partition}")


class ReportingClientApp(ClientApp):
    """A ClientApp that answers ``query.status``, ``query.loss`` and ``query.norm`` for any app.

    It takes the place of Flower's ClientApp. The loss comes from the app's evaluate function, the norm from
    an update by the app's train function. TRAIN replies also hold the client's identity and properties. While
    a client reports that it is not available, these questions and TRAIN messages do not call the app.

    This class is not a mod, because a mod could not answer queries: Flower refuses a query without a handler
    before it calls any mod.

    Parameters
    ----------
    report : callable, optional
        Takes the context, and returns the client's `Report`: its identity, data size, group, properties, and
        whether it is available. Default: the identity is ``partition-`` and the partition's number in the
        node config. If the report has no data size, the ``num-examples`` of the last training takes its
        place.
    loss_metric : str, optional
        The name of the metric that holds the loss in the reply of the evaluate function. Default: "loss", or
        else the only metric whose name contains "loss".
    **options
        The parameters of Flower's ClientApp.

    Examples
    --------
    >>> app = ReportingClientApp(report=lambda context: Report(client_id="hospital-3", num_examples=1200))
    """

    def __init__(
        self,
        *,
        report: Callable[[Context], Report] = report_partition,
        loss_metric: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._report, self._loss_metric = report, loss_metric
        self._own_queries: set[str] = set()  # the types of queries that the app itself answers

    def query(self, action: str = "default", **options: Any) -> Any:
        """Register a query function, as in Flower's ClientApp. It replaces this class's own answer."""
        self._own_queries.add(f"query.{action}")
        return super().query(action, **options)

    def __call__(self, message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        is_question = kind in (STATUS, LOSS, NORM) and kind not in self._own_queries
        if not is_question and kind != MessageType.TRAIN:
            return super().__call__(message, context)
        report = self._report(context)
        if report.num_examples is None and _MEMORY in context.state.config_records:
            remembered = context.state.config_records[_MEMORY]["num-examples"]
            report = report.model_copy(update={"num_examples": remembered})
        if kind == STATUS or not report.available:
            return Message(write_report(report), reply_to=message)
        if kind == LOSS:
            loss = read_loss(self._called(MessageType.EVALUATE, message, context).content, self._loss_metric)
            report = report.model_copy(update={"loss": loss if isfinite(loss) else None})
            return Message(write_report(report), reply_to=message)
        sent = _arrays(message.content) if kind == NORM else []
        reply = self._called(MessageType.TRAIN, message, context)
        if reply.has_error():
            return reply
        size = read_report(reply.content).num_examples
        if size is not None:
            context.state[_MEMORY] = ConfigRecord({"num-examples": float(size)})
        if kind == NORM:
            moves = [new - old for new, old in zip(_arrays(reply.content), sent, strict=True)]
            norm = sqrt(sum(float(np.vdot(move, move)) for move in moves))
            known = {} if size is None else {"num_examples": size}
            report = report.model_copy(update={"update_norm": norm, **known})
            return Message(write_report(report), reply_to=message)
        own = write_report(report)
        for name in (IDENTITY, PROPERTIES):
            if name in own and name not in reply.content:
                reply.content[name] = own[name]
        return reply

    def _called(self, kind: str, message: Message, context: Context) -> Message:
        """Let the app answer the message as if its type were `kind`, and return the reply."""
        asked = message.metadata.message_type
        message.metadata.message_type = kind
        try:
            return super().__call__(message, context)
        finally:
            message.metadata.message_type = asked


def _arrays(content: RecordDict) -> list[NDArray[np.float64]]:
    """Return copies of all arrays in a message, since an app may change the arrays that it received."""
    return [
        np.array(array.numpy(), dtype=np.float64)
        for record in of_kind(content, ArrayRecord).values()
        for array in record.values()
    ]
