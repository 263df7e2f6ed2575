"""Who is here: nodes that come and go are asked who they are, and enrolled as clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any

from flwr.common import log

from ..clients.reports import Report
from ..clients.roster import Roster
from .grids import clock_of
from .messages import lacks_handler, read_status, status_question

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from flwr.app import Message
    from flwr.serverapp import Grid
    from numpy.typing import NDArray

    from ..options import Deadlines, Polling

_FIRST_WORD, _NEXT_WORD = 5.0, 30.0  # s, after which waiting for clients is told, and told again
_LONGEST_PAUSE = 5.0  # s between two looks for clients that are away
_GHOST = 90.0
"""Seconds for which a killed node may count as online, with a margin (Flower: 48-60). Who claims the identity
of one that is online waits so long: it may be the same client, restarted."""
_PROBE = 30.0  # s that the first node asked may keep all others waiting


class NotEnoughClientsError(RuntimeError):
    """Fewer clients than needed were here by the deadline."""


@dataclass
class Attendance:
    """Keeps the roster in step with the nodes that are online.

    Attributes
    ----------
    min_available_clients : int
        `wait_for_first` waits until so many are here, ...
    clients_per_round : int
        ... and at the deadline goes on with so many or more.
    quorum : int
        `wait_for_quorum` waits until so many are available.
    deadlines : Deadlines
        How long to wait for clients and for their status.
    polling : Polling
        Whether to ask newcomers who they are, and how often to look.
    roster : Roster
        The clients enrolled so far.
    """

    min_available_clients: int
    clients_per_round: int
    quorum: int
    deadlines: Deadlines
    polling: Polling
    roster: Roster = field(default_factory=Roster)
    _registered: set[str] = field(default_factory=set)  # identities that the operator gave
    _silent: dict[int, tuple[float, float]] = field(default_factory=dict)  # node -> (ask again at, pause), s
    _unanswered: dict[str, int] = field(default_factory=dict)  # id of a question -> node that was asked
    _held: dict[int, tuple[Report, float]] = field(default_factory=dict)  # node -> (its claim, since when)
    _probed: bool = False  # whether a node was asked before all others
    _can_tell: bool = True  # whether the clients' app has a handler

    def wait_for_first(self, grid: Grid) -> None:
        """Wait for the first clients and enrol them together, so that who came first changes nothing.

        A resumed run waits for as many, that it may be the same run, but goes on with fewer.

        Raises
        ------
        NotEnoughClientsError
            If fewer than ``clients_per_round`` joined within ``deadlines.join``.
        """
        clock = clock_of(grid)
        end = clock.monotonic() + self.deadlines.join
        tell = clock.monotonic() + _FIRST_WORD
        reports: dict[int, Report] = {}
        while True:
            online = {node.node_id: node.name for node in grid.get_nodes()}
            known = [node for node in online if self.roster.client_at(node) is not None]  # of a resumed run
            reports |= self._ask(grid, [node for node in online if node not in {*known, *reports}])
            joined = {node: report for node, report in reports.items() if node in online}
            if len(joined) + len(known) >= self.min_available_clients:
                break
            if clock.monotonic() >= end:
                told = (
                    f"{len(joined)} of {self.min_available_clients} clients had joined after "
                    f"{self.deadlines.join:g} s (min_available_clients, deadlines.join); "
                    f"{len(online)} nodes were online"
                )
                if len(joined) + len(known) < self.clients_per_round and not len(self.roster):
                    raise NotEnoughClientsError(told)
                log(WARNING, "%s: going on with those", told)
                break
            if clock.monotonic() >= tell:
                tell = clock.monotonic() + _NEXT_WORD
                log(
                    INFO,
                    "%d of %d clients are here (min_available_clients); waiting up to %g s (deadlines.join)",
                    len(joined),
                    self.min_available_clients,
                    self.deadlines.join,
                )
            clock.sleep(self.polling.interval)
        self._enrol(joined, online, clock.monotonic())

    def wait_for_quorum(self, grid: Grid) -> NDArray[np.int64]:
        """Return who can train now, once they are ``quorum`` or more.

        Raises
        ------
        NotEnoughClientsError
            If fewer were available for ``deadlines.absence`` seconds.
        """
        clock = clock_of(grid)
        began = clock.monotonic()
        pause, tell = self.polling.interval, _FIRST_WORD
        while len(here := self.who_is_here(grid)) < self.quorum:
            waited = clock.monotonic() - began
            told = f"{len(here)} of the {self.quorum} clients that a round needs (quorum) are available"
            if waited >= self.deadlines.absence:
                raise NotEnoughClientsError(
                    f"{told}, and none came in {self.deadlines.absence:g} s (deadlines.absence)"
                )
            if waited >= tell:
                tell = waited + _NEXT_WORD
                log(WARNING, "%s; waiting up to %g s (deadlines.absence)", told, self.deadlines.absence)
            clock.sleep(min(pause, self.deadlines.absence - waited))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return here

    def who_is_here(self, grid: Grid) -> NDArray[np.int64]:
        """Return who can train now. Newcomers are enrolled; those who last said no are asked again."""
        online = {node.node_id: node.name for node in grid.get_nodes()}
        self._held = {node: held for node, held in self._held.items() if node in online}
        asked = [
            node
            for node in online
            if ((client := self.roster.client_at(node)) is None and node not in self._held)
            or (client is not None and not self.roster.is_available(client))
        ]
        held = {node: report for node, (report, _) in self._held.items()}
        self._enrol(self._ask(grid, asked) | held, online, clock_of(grid).monotonic())
        return self.roster.here(online)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run must know, as JSON has it."""
        return {
            "roster": self.roster.state(),
            "registered": sorted(self._registered),
            "probed": self._probed,
            "can_tell": self._can_tell,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.roster.load(state["roster"])
        self._registered = set(state["registered"])
        self._probed, self._can_tell = state["probed"], state["can_tell"]

    def _ask(self, grid: Grid, nodes: Iterable[int]) -> dict[int, Report]:
        """Return what the nodes say of themselves.

        A silent one is left alone for twice as long as it was waited for, then twice as long again: it must
        not hold up every round. An answer that comes meanwhile is taken. All nodes of a run have one app, so
        the first is asked alone: without a handler each would log a traceback.
        """
        nodes, deadline = list(nodes), self.deadlines.status
        reports: dict[int, Report] = {}
        if self.polling.ask_status and not self._probed and len(nodes) > 1:
            self._probed = True
            reports = self._answers(grid, nodes[:1], min(_PROBE, deadline))
            nodes = nodes[1:]
        if not self.polling.ask_status or not self._can_tell:
            return reports | {node: Report() for node in nodes}
        return reports | self._answers(grid, nodes, deadline)

    def _answers(self, grid: Grid, nodes: list[int], deadline: float) -> dict[int, Report]:
        """Return what those of the nodes say who answer in time."""
        # Other than send_and_receive, pull_messages does not wait.
        late = grid.pull_messages(list(self._unanswered)) if self._unanswered else []
        reports = {node: report for node, report in self._read(late).items() if node in nodes}
        now = clock_of(grid).monotonic()
        questions = [
            status_question(node, self.deadlines.status)
            for node in nodes
            if node not in reports and now >= self._silent.get(node, (0.0, 0.0))[0]
        ]
        if not questions:
            return reports
        answers = list(grid.send_and_receive(questions, timeout=deadline))
        asked = {question.metadata.message_id: question.metadata.dst_node_id for question in questions}
        self._unanswered = {
            message: node for message, node in self._unanswered.items() if node not in asked.values()
        } | asked
        reports |= self._read(answers)
        for node in set(asked.values()) - reports.keys():
            pause = 2 * max(self.deadlines.status, self._silent.get(node, (0.0, 0.0))[1])
            self._silent[node] = (clock_of(grid).monotonic() + pause, pause)
            log(WARNING, "Node %d did not tell its status; it is asked again in %g s", node, pause)
        return reports

    def _read(self, answers: Iterable[Message]) -> dict[int, Report]:
        """Return the report of each node that answered; one that failed has not."""
        reports = {}
        for answer in answers:
            node = self._unanswered.pop(answer.metadata.reply_to_message_id, None)
            if node is None:
                continue
            self._can_tell = self._can_tell and not lacks_handler(answer)
            try:
                report = read_status(answer)
            except ValueError as error:
                log(WARNING, "Status of node %d ignored: %s", node, error)
                report = Report()
            if report is not None:
                reports[node] = report
                self._silent.pop(node, None)
        return reports

    def _enrol(self, reports: Mapping[int, Report], online: Mapping[int, str], now: float) -> None:
        """Give the clients behind new nodes their indexes, and note what all these nodes reported."""
        strangers = {node: online[node] for node in reports if self.roster.client_at(node) is None}
        new = self.roster.enrol(self._identities(strangers, reports, online, now))
        for node, report in reports.items():
            client = self.roster.client_at(node)
            if client is not None:
                self.roster.note(client, report)
        unknown = sum(not name and reports[node] == Report() for node, name in strangers.items())
        if unknown and self.polling.ask_status:
            log(
                INFO,
                "%d nodes have no query.status handler: known by node id, their sizes are learned; "
                "Polling(ask_status=False) saves the question, and the error in the log of the client asked",
                unknown,
            )
        if new:
            log(INFO, "Enrolled %d clients: %s", len(new), ", ".join(map(self.roster.id_of, new)))

    def _identities(
        self, names: Mapping[int, str], reports: Mapping[int, Report], online: Iterable[int], now: float
    ) -> dict[str, int]:
        """Return the node of each identity: a registered name, a claim, or the node's own number.

        A registered name is authenticated, a claim is not: it takes nothing that is somebody else's. Of two
        nodes registered under one name the first to come has it while it is online. Who claims what another
        client has waits, left out, until that one is gone or has been proved to be a client of its own.
        """
        here = set(online)
        found: dict[str, int] = {}
        for node in sorted(names, key=lambda node: (not names[node], node)):  # registered names first
            name, claim = names[node], reports[node].client_id
            identity = name or claim or f"node-{node}"
            taken = found.get(identity, self.roster.node_of_id(identity)) in here
            if name:
                free = not (taken and name in self._registered)
                self._registered.add(name)
            else:
                ours = claim in self._registered or identity.startswith("node-")
                free = not claim or not (taken or ours)
                if taken and claim and not ours and identity not in found:
                    _, since = self._held.setdefault(node, (reports[node], now))
                    if now - since < _GHOST:
                        continue
            self._held.pop(node, None)
            if not free:
                log(WARNING, "Node %d says it is %s, which is not free: it is node-%d", node, identity, node)
                identity = f"node-{node}"
            found[identity] = node
        return found
