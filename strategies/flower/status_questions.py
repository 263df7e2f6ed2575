"""Asks nodes for their status, and limits how long all rounds together wait for the answers."""

from collections.abc import Iterable, Mapping, Sequence
from logging import WARNING
from math import nan
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.common import log
from flwr.serverapp import Grid

from ..clients.printable import printable
from ..clients.reports import Report
from ..options import Deadlines, Polling
from ..rounds.waiting.wait_time import Pace, Wait
from .exchanges import ExchangeGrid, LateReplies, clock_of
from .messages import ENOUGH, lacks_handler, read_status, status_question, why_failed

_PROBE = 5.0  # s, the longest wait for the answers of the first three nodes, before the other nodes are asked
_CREDIT, _CREDIT_SHARE = 10.0, 0.05
"""How long all rounds together wait for the status of all nodes: this many seconds, plus this share of the
time since the first node was asked."""
_AFTER_ERROR = 10.0  # s, the longest pause after a node's first error before the node is asked again
_NO_STATUS = (
    "The clients' app has no query.status handler, so the error in that client's log was to be expected, "
    "and no other client is asked. Clients are known by registered name or node id, and their sizes are "
    "learned from their replies. To report identities, sizes and groups, make the client app a "
    "flwr_cohort.ReportingClientApp; Polling(ask_status=False) asks nobody"
)


class StatusQuestions:
    """Asks nodes for their status, and remembers which nodes owe an answer or have sent an error.

    A node that does not answer is asked again after twice ``deadlines.status``. After each further question
    without an answer, this pause doubles, so that the node does not delay every round. A late answer counts,
    too.

    A node that answers with an error, for example because its ClientApp was killed, is asked again after
    10 s, or after twice ``deadlines.status`` if that is less. This pause doubles after each further error.

    If ``needs_status``, the run needs what only a status report says, such as groups: then nodes are asked
    unless ``polling.ask_status`` is False. ``declared`` are the identities that the operator declared.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        polling: Polling,
        needs_status: bool = False,
        declared: frozenset[str] = frozenset(),
    ) -> None:
        self.answered = False
        self._deadlines, self._polling = deadlines, polling
        self._needs_status, self._declared = needs_status, declared
        self._heard = False  # whether a reply held an identity that was not asked for
        self._probed = False  # whether the first few nodes have been asked
        self._lacking = 0  # how many answers stated that the app has no status handler
        # node that did not answer, or sent an error -> (when to ask it again, the pause until then), in s
        self._silent: dict[int, tuple[float, float]] = {}
        self._errors: dict[int, int] = {}  # node -> how many errors it has sent in a row
        self._unanswered: dict[str, int] = {}  # message id of a question -> node
        self._late = LateReplies()  # finds late answers to `_unanswered`
        self._pace = Pace()  # how long nodes take to report their status
        self._began: float | None = None  # when the first node was asked, s
        self._waited = 0.0  # how long answers were awaited, s

    def asks(self, online: Mapping[int, str]) -> bool:
        """Return whether nodes are asked for their status; ``online``: node -> registered name, "" = none."""
        if self._polling.ask_status is not None:
            return self._polling.ask_status
        if self.answered or self._lacking:
            return self.answered
        if self._heard or self._needs_status:
            return True
        return bool(self._declared.difference(online.values(), (f"node-{node}" for node in online)))

    def may_ask_later(self, online: Mapping[int, str]) -> bool:
        """Return whether nodes are not asked now, but will be asked once a reply holds an identity."""
        return self._polling.ask_status is None and not self._lacking and not self.asks(online)

    def begin(self, now: float) -> None:
        """Note that the first round begins at the time ``now`` in s: no earlier wait delayed a round."""
        self._began, self._waited = now, 0.0

    def note_identity(self) -> None:
        """Note that a reply held an identity that was not asked for."""
        self._heard = True

    def hurry(self) -> None:
        """Allow the next look for late answers at once, for a caller that has to wait anyway."""
        self._late.hurry()

    def state(self) -> dict[str, Any]:
        return {
            "probed": self._probed,
            "answered": self.answered,
            "lacking": self._lacking,
            "heard": self._heard,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self._probed, self.answered = state["probed"], state["answered"]
        self._lacking = state["lacking"]
        self._heard = state.get("heard", False)  # checkpoints of 2026-11-22 and before lack it

    def ask(self, grid: Grid, nodes: list[int], online: Mapping[int, str]) -> dict[int, Report]:
        """Ask nodes for their status, and return the reports of the nodes that answered.

        The report of a node that is not asked, because `asks` is False or the app has no status handler, is
        empty. A node whose pause is not over has no report, unless its late answer has arrived.

        An unavailable client is asked again in each round. Once the rounds have waited for all nodes together
        for long enough (`_CREDIT`), they no longer wait for any answer, but an answer that arrives later
        counts. Without this rule, clients that call themselves unavailable, or nodes that come in turn and
        answer nothing, could delay every round. Nobody waits for a node that has gone offline.

        All nodes of a run have the same app. So three nodes are asked first: if the app has no status
        handler, only these three nodes log an error. If ``polling.ask_status`` is None, one node is asked
        first.

        ``online`` is as for `asks`.
        """
        deadline = self._deadlines.status
        reports: dict[int, Report] = {}
        rest = nodes
        asks = self.asks(online)
        if asks and not self._probed and len(nodes) > 1:
            self._probed = True
            first, wait = ENOUGH, min(_PROBE, deadline)
            if self._polling.ask_status is None:
                first, wait = 1, deadline  # one node decides for all: it gets the time to import its app
            reports = self._answers(grid, nodes[:first], wait)
            rest = nodes[first:]
            asks = self.asks(online)
        now = clock_of(grid).monotonic()
        has_handler = self.answered or self._lacking < ENOUGH
        if not asks or not has_handler:
            return reports | {node: Report() for node in rest if self._is_due(node, now)}
        self._began = now if self._began is None else self._began
        credit = _CREDIT + _CREDIT_SHARE * (now - self._began) - self._waited
        if credit <= 0:
            self._ask_without_waiting(grid, rest)
            rest = []
        return reports | self._answers(grid, rest, min(deadline, credit), late_from=nodes)

    def _is_due(self, node: int, now: float) -> bool:
        """Return whether a node is in no pause at the time ``now``, in seconds."""
        return now >= self._silent.get(node, (0.0, 0.0))[0]

    def _questions(self, nodes: Iterable[int], now: float) -> list[Message]:
        return [status_question(node, self._deadlines.status) for node in nodes if self._is_due(node, now)]

    def _expect(self, asked: Mapping[str, int]) -> None:
        """Accept the answers to new questions (message id -> node), and to each node's last one before."""
        nodes = set(asked.values())
        last = {node: each for each, node in self._unanswered.items()}  # of each node: its newest question
        self._unanswered = {
            each: node for each, node in self._unanswered.items() if node not in nodes or each == last[node]
        }
        self._unanswered.update(asked)

    def _owe(self, node: int, now: float) -> float:
        """Begin the pause of a node that has not answered; return the length of the pause in seconds."""
        pause = 2 * max(self._deadlines.status, self._silent.get(node, (0.0, 0.0))[1])
        self._silent[node] = (now + pause, pause)
        return pause

    def _ask_without_waiting(self, grid: Grid, nodes: list[int]) -> None:
        """Ask nodes without waiting for their answers, except nodes whose pause is not over."""
        now = clock_of(grid).monotonic()
        questions = self._questions(nodes, now)
        if not questions:
            return
        message_ids = ExchangeGrid.of(grid, self._polling.interval).send(questions)
        sent = zip(message_ids, questions, strict=False)
        asked = {message_id: each.metadata.dst_node_id for message_id, each in sent if message_id}
        for node in asked.values():
            self._owe(node, now)
        self._expect(asked)

    def _answers(
        self, grid: Grid, nodes: list[int], deadline: float, late_from: Sequence[int] = ()
    ) -> dict[int, Report]:
        """Ask ``nodes``; return the reports by the deadline, and late answers of the nodes ``late_from``."""
        late = self._late.look(grid, self._unanswered)
        clock = clock_of(grid)
        began = clock.monotonic()
        reports = {node: report for node, report in self._read(late, began).items() if node in late_from}
        questions = self._questions((node for node in nodes if node not in reports), began)
        if not questions:
            return reports
        wait = Wait(
            self._pace,
            np.full(len(questions), nan),
            np.array([question.metadata.dst_node_id in self._silent for question in questions]),
            self._deadlines.shortest,
            deadline,
        )
        polling = ExchangeGrid.of(grid, self._polling.interval)
        answers = polling.send_and_receive(questions, timeout=deadline, wait=wait, only_online=True)
        asked = {question.metadata.message_id: question.metadata.dst_node_id for question in questions}
        self._expect(asked)
        now = clock.monotonic()
        self._waited += now - began
        reports |= self._read(answers, now)
        for node in [asked[each] for each in self._unanswered if each in asked]:
            pause = self._owe(node, now)
            log(WARNING, "Node %d has not reported its status yet; it is asked again in %g s", node, pause)
        return reports

    def _read(self, answers: Iterable[Message], now: float) -> dict[int, Report]:
        """Return the report of each node that answered. A node that sent an error is left out.

        ``now`` is the time in seconds, from which the pause of a node that sent an error counts.

        An error that states that the app has no status handler counts as an answer with an empty report.
        """
        reports = {}
        for answer in answers:
            node = self._unanswered.pop(answer.metadata.reply_to_message_id, None)
            if node is None:
                continue
            lacks = lacks_handler(answer)
            if lacks and not self._lacking and self._polling.ask_status is None:
                log(WARNING, _NO_STATUS)
            self._lacking += lacks
            try:
                report = read_status(answer)
            except Exception as error:  # an answer may cause any error, and must not end the run
                log(WARNING, "The status of node %d is ignored: %s", node, printable(error))
                report = Report()
            self.answered |= report is not None and not lacks
            if report is not None:
                reports[node] = report
                self._unanswered = {each: one for each, one in self._unanswered.items() if one != node}
                self._silent.pop(node, None)
                self._errors.pop(node, None)
                continue
            self._errors[node] = self._errors.get(node, 0) + 1
            pause = min(_AFTER_ERROR, 2 * self._deadlines.status) * 2.0 ** (self._errors[node] - 1)
            self._silent[node] = (now + pause, pause)
            log(
                WARNING,
                "Node %d cannot report its status (%s); it is asked again in %g s",
                node,
                why_failed(answer),
                pause,
            )
        return reports
