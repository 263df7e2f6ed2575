"""Logs which clients are eligible, selected, failed or quarantined in each round."""

from collections.abc import Callable
from logging import ERROR, INFO, WARNING

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from ..clients.printable import counted, listed
from ..clients.roster import Roster
from ..options import Eligibility
from ..rounds.record import RoundRecord, no_report
from ..selectors import Selection
from .settings import RunSettings


class RoundLog:
    """Logs the rounds of one run, with the clients' identities."""

    def __init__(self, settings: RunSettings, roster: Roster) -> None:
        self._roster, self._kind, self._name = roster, settings.kind, settings.selector
        self._declared_sizes = settings.overrides.sizes
        self._rounds = self._skipped = 0  # the rounds that have ended, and how many of them were skipped
        self._has_replies = False  # whether a usable reply has come
        self._eligible: tuple[str, int, int] | None = None  # the last logged conditions and numbers
        self._told_of_report = False  # whether the warning `no_report` was logged

    def eligible(self, round: int, conditions: Eligibility, count: int, others: int) -> None:
        """Log how many clients are eligible, whenever the conditions or these numbers change.

        ``count`` clients are available, and ``others`` are online and willing to train, but not eligible.
        Without conditions, nothing is logged.
        """
        now = (str(conditions), count, others)
        if not conditions or now == self._eligible:
            return
        self._eligible = now
        target = {
            "round": "the aggregate is an unbiased estimate of the mean update of the eligible clients",
            "long-run": "over the rounds, the aggregate is an unbiased estimate of the mean update of the "
            "eligible clients",
            "none": f"{self._name} selects among the eligible clients, and is biased on purpose",
        }[self._kind.unbiased]
        log(
            INFO,
            "From round %d on, %d of %d clients that are online and willing to train are eligible (%s): %s",
            round,
            count,
            count + others,
            conditions,
            target,
        )

    def released(self, round: int, clients: NDArray[np.int64], back_in: Callable[[int, int], int]) -> None:
        """Log which clients may be selected although they are quarantined; ``back_in`` is as in `ended`."""
        if clients.size:
            names = [f"{self._roster.id_of(each)} (until round {back_in(round, each)})" for each in clients]
            log(
                WARNING,
                "Round %d: too few clients are left for a quorum. So these may be selected although they are "
                "quarantined for offences: %s",
                round,
                listed(names),
            )

    def selected(self, selection: Selection) -> None:
        drawn = zip(selection.clients, selection.counts, selection.probabilities, strict=True)
        names = [
            f"{self._roster.id_of(client)}{f' x{count}' if count > 1 else ''} (p={probability:.3g})"
            for client, count, probability in drawn
        ]
        log(INFO, "Selected %s", listed(names) or "no client")

    def ended(self, record: RoundRecord, back_in: Callable[[int, int], int]) -> None:
        """Log the failures, the clipped values and the quarantined clients of a round.

        ``back_in`` takes the round and a quarantined client, and returns the first later round in which the
        client is not quarantined (`RoundLogic.end_of_quarantine`).

        Two warnings are logged at most once: that no client reports what the selector learns from, and, after
        the first round with a usable reply, that no client has reported its data size.
        """
        self._rounds += 1
        self._skipped += bool(record.skipped)
        name = self._roster.id_of
        for client, reason in record.failures.items():
            log(WARNING, "Round %d without %s: %s", record.round, name(client), reason)
        for client, line in record.clipped.items():
            log(WARNING, "Round %d, %s: %s", record.round, name(client), line)
        if record.quarantined:
            quarantined = [
                f"{name(client)} ({'silence or errors' if client in record.silent else 'offences'}, back in "
                f"round {back_in(record.round, client)})"
                for client in record.quarantined
            ]
            log(WARNING, "Quarantined in round %d: %s", record.round, listed(quarantined))
        if record.skipped:
            log(WARNING, "Round %d is skipped: %s", record.round, record.skipped)
        if not self._told_of_report and record.lacks(self._kind.report_used):
            self._told_of_report = True
            log(WARNING, no_report(self._kind))
        if not self._has_replies and record.feedback.responded.any():
            self._has_replies = True
            declared = not self._declared_sizes.keys().isdisjoint(self._roster.ids())
            if not declared and np.isnan(self._roster.sizes()).all():
                log(WARNING, "No client reports num-examples: all count equally")

    def finished(self, unchanged: str) -> None:
        """Log why no round has changed the model (``unchanged``), or how many rounds were skipped, if any."""
        if unchanged:
            log(ERROR, "%s%s", unchanged[0].upper(), unchanged[1:])
        elif self._skipped:
            were = "was" if self._skipped == 1 else "were"
            log(WARNING, "%d of %s %s skipped", self._skipped, counted(self._rounds, "round"), were)
