"""How the server asks clients for their status and for reports."""

from dataclasses import dataclass
from typing import Literal

from ..selectors import checks


@dataclass(frozen=True, kw_only=True)
class Polling:
    """How the server asks clients for their status and for reports.

    Attributes
    ----------
    interval : float (default: 0.1)
        The longest pause between two requests of the server to Flower for replies, in seconds, > 0.
    ask_status : bool, optional
        Whether the server asks new clients for identity, data size and availability, with a ``query.status``
        message. With False, or if the app has no handler for this message, a client is identified by its
        registered name or its node id. The server then learns the client's data size from the
        ``num-examples`` of its replies. Default (None): the server asks in four cases: the run needs groups,
        costs, energies or properties (`Eligibility`) that the operator does not declare; the selector polls
        for something else than losses; the operator declared an identity that is neither the registered name
        nor the node id of an online client; a reply held a ``client-id``. The server asks one client first.
        If this client has no handler, no other client is asked, because each question would log an error in
        the client.
    poll_with : {"query", "evaluate"}, optional
        The message that asks candidates for their loss: ``query.loss`` or EVALUATE. EVALUATE suits an app
        without a handler for ``query.loss``. Default (None): ``query.loss`` if clients have reported their
        status, or if the selector needs the loss of a mini-batch; otherwise EVALUATE.
    loss_metric : str, optional
        The name of the metric that holds the loss in an EVALUATE reply. Default (None): "loss", or else the
        only metric whose name contains "loss".
    """

    interval: float = 0.1
    ask_status: bool | None = None
    poll_with: Literal["query", "evaluate"] | None = None
    loss_metric: str | None = None

    def __post_init__(self) -> None:
        checks.seconds("polling.interval", self.interval)
        if self.ask_status is not None:
            checks.boolean("polling.ask_status", self.ask_status)
        if self.poll_with is not None:
            checks.choice("polling.poll_with", self.poll_with, ("query", "evaluate"))
        if self.loss_metric is not None and not isinstance(self.loss_metric, str):
            raise TypeError(f"polling.loss_metric = {self.loss_metric!r}: must be the name of a metric")
        if self.loss_metric == "":
            raise ValueError("polling.loss_metric = '': must be the name of a metric")
