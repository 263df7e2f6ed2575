"""The end of a round: aggregate the replies, let the server strategy step, and make the record."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from ..flower.arrays import ReceivedArrays
from ..flower.attendance import Attendance
from ..flower.messages import TrainingRound, timed
from ..rounds.aggregation import Arrays
from ..rounds.record import RoundRecord, with_remarks
from ..rounds.replies import Reply
from ..rounds.stages import Outcome
from ..server_steps.replies import contributions_of
from ..server_steps.step import ServerStep, Step
from .round_log import RoundLog
from .selector_clients import SelectorClients


@dataclass(frozen=True)
class RoundEnding:
    """Ends the rounds of a run."""

    attendance: Attendance
    clients: SelectorClients
    step: ServerStep
    log: RoundLog

    def end(
        self, training: TrainingRound, replies: Sequence[Reply], seconds: NDArray[np.float64], arrived: float
    ) -> tuple[Step, RoundRecord]:
        """Aggregate the replies (S,) of the selected clients; return the new model and the record.

        ``seconds`` (S,) holds the seconds until the server had each reply, NaN for none; it is empty if no
        time is known. The wait for replies ended at ``arrived``, in seconds on the grid's clock.
        """
        for client, reply in zip(training.chosen.selection.clients, replies, strict=True):
            if not reply.failure or not reply.report.available:
                self.attendance.hear(int(client), reply.report)
        self.clients.update()
        before: Arrays = dict(ReceivedArrays(training.arrays))
        measured = seconds if seconds.size else None
        outcome = self.clients.logic.finish(training.chosen, before, replies, measured)
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
            eligible=str(self.attendance.eligible.conditions),
            num_ineligible=self.attendance.num_ineligible,
        )
        record = timed(record, replies, seconds)
        self.log.ended(record, self.clients.logic.end_of_quarantine)
        # These remarks would repeat themselves in the log: `SelectorClients` has logged them.
        return stepped, with_remarks(record, self.clients.sizes.remarks)

    def _stepped(self, outcome: Outcome, arrays: Arrays, messages: Sequence[Message]) -> Step:
        """Let the server strategy take its step, from the aggregate or from the models of single clients."""
        if outcome.arrays is None:
            return Step(None, outcome.record.skipped)
        each = contributions_of(outcome)
        return self.step.step(outcome.record.round, arrays, outcome.arrays, each, messages)
