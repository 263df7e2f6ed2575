"""Counts why rounds were skipped, for a run in which no round has changed the model."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..clients.printable import printable
from .record import RoundRecord

_MOST_KINDS = 100  # the most kinds of reasons that are counted: clients choose the texts of their errors


class SkippedRounds:
    """The skipped rounds of a run, until a round changes the model.

    Such a run has trained nothing, although it reaches its last round.

    ``changed``: whether a round has changed the model. Then nothing is counted any more.
    """

    def __init__(self) -> None:
        self.changed = False
        self._count = 0
        # A kind of reasons, in which all numbers count as equal -> how many rounds were skipped for it.
        self._kinds: Counter[str] = Counter()
        self._examples: dict[str, str] = {}  # kind -> the first reason of this kind

    def count(self, record: RoundRecord) -> None:
        """Count a round. The reason of a skipped round is the commonest failure of its clients, if any."""
        if self.changed:
            return
        if not record.skipped:
            self.changed, self._count = True, 0
            self._kinds.clear()
            self._examples.clear()
            return
        self._count += 1
        reason = record.skipped
        if record.failures and not record.feedback.responded.any():
            reason = Counter(record.failures.values()).most_common(1)[0][0]
        self._add(reason, 1)

    def _add(self, reason: str, rounds: int) -> None:
        kind = re.sub(r"\d+", "0", reason)
        if kind in self._kinds or len(self._kinds) < _MOST_KINDS:
            self._kinds[kind] += rounds
            self._examples.setdefault(kind, reason)

    @property
    def reason(self) -> str:
        """Why the model is unchanged, in one line; "" if a round has changed it or none was counted."""
        if not self._count:
            return ""
        kind, count = self._kinds.most_common(1)[0]
        return (
            f"no round changed the model: all {self._count} were skipped. The commonest reason, in {count}: "
            f"{printable(self._examples[kind])}"
        )

    def state(self) -> dict[str, Any]:
        reasons = [[self._examples[kind], count] for kind, count in self._kinds.items()]
        return {"changed": self.changed, "count": self._count, "reasons": reasons}

    def load(self, state: Mapping[str, Any]) -> None:
        self.changed, self._count = state["changed"], state["count"]
        for reason, rounds in state["reasons"]:
            self._add(reason, rounds)
