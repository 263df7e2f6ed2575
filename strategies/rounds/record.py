"""RoundRecord: everything that happened in a round, for the history, the log and the reporters."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import nan

import numpy as np
from numpy.typing import NDArray

from ..selectors import Feedback, Selection, Selector


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round. Arrays (S,) are aligned with ``selection.clients``.

    A selected client that is not in ``failures`` sent a usable update.

    A skipped round does not change the model. In its record, all weights are 0, and ``feedback.responded`` is
    False for all clients, so the selector learns from no client. There is one exception: if the server
    strategy could not take its step, the record holds the weights that the server strategy received, and the
    selector has learned from the replies.
    """

    round: int
    num_available: int  # the number of selectable clients
    selection: Selection
    weights: NDArray[np.float64]  # (S,) c_m, the coefficient of each update in the aggregate
    feedback: Feedback  # the measurements that the selector learned from
    failures: Mapping[int, str] = field(default_factory=dict)  # client -> why its reply was not used
    # Client -> which of its values were clipped or ignored, its claimed data size included.
    clipped: Mapping[int, str] = field(default_factory=dict)
    skipped: str = ""  # why the round did not change the model; "" if it changed the model
    quarantined: tuple[int, ...] = ()  # available clients that were quarantined
    silent: tuple[int, ...] = ()  # the clients in ``quarantined`` that are quarantined for silence or errors
    # (S,) ‖g_m‖ as the clients report it; NaN = not reported. ``feedback`` has the norms that are used.
    reported_norms: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    # (S,) seconds from the TRAIN messages until the server had each reply; NaN = no reply in time. This array
    # and the next two are empty if no client has such a number, as in a simulation without response times.
    reply_seconds: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    training_seconds: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # as clients report
    batteries: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # %, as clients report
    # (S,) how many rounds ended while each client trained, in a buffered round; empty in any other round.
    staleness: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    num_stale: int = 0  # the updates that were rejected because of their staleness; ``failures`` lists them
    in_flight: tuple[
        int, ...
    ] = ()  # the first 1000 of the clients that are in flight when a buffered round ends
    train_loss: float = nan  # the mean of the clients' losses, weighted by ``weights``
    seconds: float = nan  # the time from the poll to the new model, waiting included
    # The seconds of each part of the round: "poll" (the poll and the selection), "train" (the wait for the
    # replies) and "aggregate" (from the replies to the new model). Empty in a simulation without messages.
    phases: Mapping[str, float] = field(default_factory=dict)
    # The clients that were not selectable, removed clients included, ascending; None if there are over 1000.
    absent: NDArray[np.int64] | None = None
    eligible: str = ""  # the conditions of `Eligibility`; "" if every client is eligible
    num_ineligible: int = 0  # the clients that are online and willing to train, but not eligible

    def lacks(self, report: str) -> bool:
        """Return whether usable replies came, none with ``report`` (`Selector.report_used`); False for ""."""
        if not report:
            return False
        values = self.feedback.losses if report == "train-loss" else self.feedback.gradient_variances
        responded = self.feedback.responded
        return bool(responded.any() and np.isnan(values[responded]).all())


def with_remarks(record: RoundRecord, remarks: Mapping[int, str]) -> RoundRecord:
    """Return the record with the remarks (client -> one line) about selected clients in ``clipped``."""
    clipped = dict(record.clipped)
    for client in record.selection.clients.tolist() if remarks else ():
        if client in remarks:
            clipped[client] = "; ".join(filter(None, (clipped.get(client), remarks[client])))
    return replace(record, clipped=clipped) if remarks else record


def no_report(kind: type[Selector]) -> str:
    """Return the warning that no client has the report from which a kind of selector learns."""
    effect = "learns from diversities alone" if "diversity" in kind.feedback_used else "has learned nothing"
    return (
        f"selector {kind.name} learns from {kind.report_used}, and no client has reported it: the selector "
        f"{effect}. Clients report it in the metrics of their replies (docs/your-own-app.md)"
    )
