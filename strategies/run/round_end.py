"""The end of a round: aggregate the replies, let the server strategy step, and make the record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..flower.arrays import ReceivedArrays
from ..flower.messages import timed
from ..rounds.record import with_remarks
from ..server_steps.replies import contributions_of
from ..server_steps.step import ServerStep, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from flwr.app import Message
    from numpy.typing import NDArray

    from ..clients.eligible_clients import EligibleClients
    from ..flower.attendance import Attendance
    from ..flower.messages import TrainingRound
    from ..rounds.aggregation import Arrays
    from ..rounds.record import RoundRecord
    from ..rounds.replies import Reply
    from ..rounds.stages import Outcome
    from .round_log import RoundLog
    from .selector_clients import SelectorClients


class RoundEnding:
    """Ends the rounds of a run.

    Parameters
    ----------
    attendance : Attendance
        Learns what clients report in their replies.
    eligible : EligibleClients
        The conditions of the round, which are part of the record.
    clients : SelectorClients
        Its `RoundLogic` aggregates and learns.
    step : ServerStep
        Takes the server step.
    log : RoundLog
        Logs the failures.
    """

    def __init__(
        self,
        attendance: Attendance,
        eligible: EligibleClients,
        clients: SelectorClients,
        step: ServerStep,
        log: RoundLog,
    ) -> None:
        self._attendance, self._eligible, self._clients = attendance, eligible, clients
        self._step, self._log = step, log

    def end(
        self, training: TrainingRound, replies: Sequence[Reply], seconds: NDArray[np.float64], arrived: float
    ) -> tuple[Step, RoundRecord]:
        """Aggregate the replies; return the new model and the record of the round.

        Parameters
        ----------
        training : TrainingRound
            The round.
        replies : sequence of Reply
            The replies (S,) of the selected clients.
        seconds : ndarray, shape (S,)
            The seconds until the server had each reply; NaN: no reply. Empty if no time is known.
        arrived : float
            When the wait for replies ended, in seconds on the grid's clock.
        """
        for client, reply in zip(training.chosen.selection.clients, replies, strict=True):
            if not reply.failure or not reply.report.available:
                self._attendance.hear(int(client), reply.report)
        self._clients.update()
        received = ReceivedArrays(training.arrays)
        before: Arrays = {name: received[name] for name in received}
        measured = seconds if seconds.size else None
        outcome = self._clients.logic.finish(training.chosen, before, replies, measured)
        stepped = self._stepped(outcome, before, training.messages)
        now = training.clock.monotonic()
        phases = {
            "poll": training.asked - training.began,
            "train": arrived - training.asked,
            "aggregate": now - arrived,
        }
        record = outcome.closed(
            stepped.skipped,
            now - training.began,
            phases,
            eligible=str(self._eligible.conditions),
            num_ineligible=self._attendance.num_ineligible,
        )
        record = timed(record, replies, seconds)
        self._log.ended(record, self._clients.logic.end_of_quarantine)
        # These remarks would repeat themselves in the log: `SelectorClients` has logged them.
        return stepped, with_remarks(record, self._clients.sizes.remarks)

    def _stepped(self, outcome: Outcome, arrays: Arrays, messages: Sequence[Message]) -> Step:
        """Let the server strategy take its step, from the aggregate or from the models of single clients."""
        if outcome.arrays is None:
            return Step(None, outcome.record.skipped)
        each = contributions_of(outcome)
        return self._step.step(outcome.record.round, arrays, outcome.arrays, each, messages)
