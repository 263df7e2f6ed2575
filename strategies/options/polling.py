"""How the server asks clients for their status and for reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .types import boolean, choice, seconds


@dataclass(frozen=True, kw_only=True)
class Polling:
    """How the server asks clients for their status and for reports.

    Attributes
    ----------
    interval : float (default: 0.1)
        The seconds between two requests of the server to Flower for replies that have arrived, > 0.
    ask_status : bool (default: True)
        Whether the server asks new clients for identity, data size and availability, with a ``query.status``
        message. With False, or if the app has no handler for this message, a client is identified by its
        registered name or its node id. The server then learns the client's data size from the
        ``num-examples`` of its replies.
    poll_with : {"query", "evaluate"} (default: "query")
        The message that asks candidates for their loss: ``query.loss`` or EVALUATE. EVALUATE suits an app
        without a handler for ``query.loss``.
    loss_metric : str (default: "loss")
        The name of the metric that holds the loss in an EVALUATE reply.

    Raises
    ------
    TypeError, ValueError
        If a value has a wrong type or is out of range.
    """

    interval: float = 0.1
    ask_status: bool = True
    poll_with: Literal["query", "evaluate"] = "query"
    loss_metric: str = "loss"

    def __post_init__(self) -> None:
        seconds("polling.interval", self.interval)
        boolean("polling.ask_status", self.ask_status)
        choice("polling.poll_with", self.poll_with, ("query", "evaluate"))
        if not self.loss_metric:
            raise ValueError("polling.loss_metric = '': must be the name of a metric")
