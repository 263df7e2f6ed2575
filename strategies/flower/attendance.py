"""Nodes come and go: new ones are asked for their status and registered as clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any

from flwr.common import log

from ..clients.overrides import Removals
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

_FIRST_LOG, _NEXT_LOG = 5.0, 30.0  # s of waiting for clients until the first log line, and between two
_LONGEST_PAUSE = 5.0  # s between two looks for absent clients
_GHOST = 90.0
"""Seconds for which a killed node may count as online, with a margin (Flower: 48-60). A node that claims the
identity of an online client waits that long, because it may be the same client after a restart."""
_PROBE = 30.0  # s that the first question may delay all others


class NotEnoughClientsError(RuntimeError):
    """Fewer clients than needed were available by the deadline."""


@dataclass
class Attendance:
    """Keeps the roster in step with the online nodes.

    Attributes
    ----------
    min_available_clients : int
        `wait_for_first` waits for this many clients, ...
    clients_per_round : int
        ... and continues at the deadline with this many or more.
    quorum : int
        `wait_for_quorum` waits for this many available clients.
    deadlines : Deadlines
        How long to wait for clients and for their status.
    polling : Polling
        Whether to ask new nodes for their status, and how often to look.
    removals : Removals
        The identities that are not, or no longer, clients of the run.
    roster : Roster
        The clients registered so far.
    """

    min_available_clients: int
    clients_per_round: int
    quorum: int
    deadlines: Deadlines
    polling: Polling
    removals: Removals = field(default_factory=Removals)
    roster: Roster = field(default_factory=Roster)
    _registered_names: set[str] = field(default_factory=set)  # given by the operator to keys
    _refused: dict[int, str] = field(default_factory=dict)  # node -> the removed identity that it claimed
    _silent: dict[int, tuple[float, float]] = field(default_factory=dict)  # node -> (when to ask, pause), s
    _unanswered: dict[str, int] = field(default_factory=dict)  # id of a question -> node that was asked
    _held: dict[int, tuple[Report, float]] = field(default_factory=dict)  # node -> (its claim, since when)
    _probed: bool = False  # whether a node was asked before all others
    _has_status_handler: bool = True  # of the clients' app

    def wait_for_first(self, grid: Grid) -> None:
        """Wait for the first clients and register them together: their order of arrival does not matter.

        A resumed run waits for the same number, so that it can repeat the original run, but goes on with
        fewer at the deadline.

        Raises
        ------
        NotEnoughClientsError
            If fewer than ``clients_per_round`` joined within ``deadlines.join``.
        """
        clock = clock_of(grid)
        end = clock.monotonic() + self.deadlines.join
        log_at = clock.monotonic() + _FIRST_LOG
        reports: dict[int, Report] = {}
        while True:
            online = self._online(grid)
            known = [node for node in online if self.roster.client_at(node) is not None]  # of a resumed run
            reports |= self._ask(grid, [node for node in online if node not in {*known, *reports}])
            joined = self._admitted(reports, online)
            present = len(joined) + len(known)
            if present >= self.min_available_clients:
                break
            if clock.monotonic() >= end:
                outcome = (
                    f"{present} of {self.min_available_clients} clients (min_available_clients) joined "
                    f"within {self.deadlines.join:g} s (deadlines.join); {len(online)} nodes were online"
                )
                if present < self.clients_per_round and not len(self.roster):
                    raise NotEnoughClientsError(outcome)
                log(WARNING, "%s: the run continues with them", outcome)
                break
            if clock.monotonic() >= log_at:
                log_at = clock.monotonic() + _NEXT_LOG
                log(
                    INFO,
                    "%d of %d clients (min_available_clients) joined; waiting up to %g s (deadlines.join)",
                    present,
                    self.min_available_clients,
                    self.deadlines.join,
                )
            clock.sleep(self.polling.interval)
        self._register(joined, online, clock.monotonic())

    def wait_for_quorum(self, grid: Grid) -> NDArray[np.int64]:
        """Return the available clients, once there are ``quorum`` or more.

        Raises
        ------
        NotEnoughClientsError
            If fewer were available for ``deadlines.absence`` seconds.
        """
        clock = clock_of(grid)
        began = clock.monotonic()
        pause, log_at, limit = self.polling.interval, _FIRST_LOG, self.deadlines.absence
        while len(available := self.available(grid)) < self.quorum:
            waited = clock.monotonic() - began
            shortage = f"{len(available)} of the {self.quorum} clients of a quorum are available"
            if waited >= limit:
                raise NotEnoughClientsError(f"{shortage} after {limit:g} s (deadlines.absence)")
            if waited >= log_at:
                log_at = waited + _NEXT_LOG
                log(WARNING, "%s; waiting up to %g s (deadlines.absence)", shortage, limit)
            clock.sleep(min(pause, limit - waited))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return available

    def available(self, grid: Grid) -> NDArray[np.int64]:
        """Return the available clients, after registering new ones and asking unavailable ones again."""
        online = self._online(grid)
        self._held = {node: held for node, held in self._held.items() if node in online}
        asked = [
            node
            for node in online
            if ((client := self.roster.client_at(node)) is None and node not in self._held)
            or (client is not None and not self.roster.is_available(client))
        ]
        held = {node: report for node, (report, _) in self._held.items()}
        reports = self._admitted(self._ask(grid, asked) | held, online)
        self._register(reports, online, clock_of(grid).monotonic())
        return self.roster.available(online)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as a JSON object."""
        return {
            "roster": self.roster.state(),
            "registered": sorted(self._registered_names),
            "probed": self._probed,
            "can_tell": self._has_status_handler,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.roster.load(state["roster"])
        self._registered_names = set(state["registered"])
        self._probed, self._has_status_handler = state["probed"], state["can_tell"]

    def _online(self, grid: Grid) -> dict[int, str]:
        """Return the registered name ("" if none) of each online node; removed clients are left out."""
        removed = self.removals.current()
        for client_id in self.roster.remove(removed):
            log(WARNING, "%s is removed from the run (overrides.removed)", client_id)
        names = {node.node_id: node.name for node in grid.get_nodes()}
        self._refused = {
            node: client_id
            for node, client_id in self._refused.items()
            if node in names and client_id in removed
        }
        return {node: names[node] for node in names if not (names[node] in removed or node in self._refused)}

    def _admitted(self, reports: Mapping[int, Report], online: Mapping[int, str]) -> dict[int, Report]:
        """Return the reports of online nodes, without those of nodes that claim a removed identity."""
        removed, admitted = self.removals.current(), {}
        for node in [node for node in reports if node in online]:
            identity = online[node] or reports[node].client_id or f"node-{node}"
            if identity in removed:
                self._refused[node] = identity  # and is not asked again
            else:
                admitted[node] = reports[node]
        return admitted

    def _ask(self, grid: Grid, nodes: list[int]) -> dict[int, Report]:
        """Return the status reports of the nodes.

        A silent node is asked again after twice the deadline, then after twice that, and so on, so that it
        does not delay every round. An answer that arrives meanwhile counts. All nodes of a run have the same
        app, so the first is asked alone: without a handler each of them would log a traceback.
        """
        deadline = self.deadlines.status
        reports: dict[int, Report] = {}
        if self.polling.ask_status and not self._probed and len(nodes) > 1:
            self._probed = True
            reports = self._answers(grid, nodes[:1], min(_PROBE, deadline))
            nodes = nodes[1:]
        if not self.polling.ask_status or not self._has_status_handler:
            return reports | {node: Report() for node in nodes}
        return reports | self._answers(grid, nodes, deadline)

    def _answers(self, grid: Grid, nodes: list[int], deadline: float) -> dict[int, Report]:
        """Return the reports of the nodes that answer in time."""
        # Unlike send_and_receive, pull_messages does not wait.
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
            log(WARNING, "Node %d did not report its status; it is asked again in %g s", node, pause)
        return reports

    def _read(self, answers: Iterable[Message]) -> dict[int, Report]:
        """Return the report of each node that answered; a failure is no answer."""
        reports = {}
        for answer in answers:
            node = self._unanswered.pop(answer.metadata.reply_to_message_id, None)
            if node is None:
                continue
            self._has_status_handler = self._has_status_handler and not lacks_handler(answer)
            try:
                report = read_status(answer)
            except ValueError as error:
                log(WARNING, "The status of node %d is ignored: %s", node, error)
                report = Report()
            if report is not None:
                reports[node] = report
                self._silent.pop(node, None)
        return reports

    def _register(self, reports: Mapping[int, Report], online: Mapping[int, str], now: float) -> None:
        """Register the clients behind new nodes, and note the reports of all these nodes."""
        strangers = {node: online[node] for node in reports if self.roster.client_at(node) is None}
        new = self.roster.register(self._identities(strangers, reports, online, now))
        for node, report in reports.items():
            client = self.roster.client_at(node)
            if client is not None:
                self.roster.note(client, report)
        unknown = sum(not name and reports[node] == Report() for node, name in strangers.items())
        if unknown and self.polling.ask_status:
            log(
                INFO,
                "%d nodes have no query.status handler: they are known by node id, their sizes are learned "
                "from replies; Polling(ask_status=False) saves the question and the error in a client's log",
                unknown,
            )
        if new:
            log(INFO, "%d new clients: %s", len(new), ", ".join(map(self.roster.id_of, new)))

    def _identities(
        self, names: Mapping[int, str], reports: Mapping[int, Report], online: Iterable[int], now: float
    ) -> dict[str, int]:
        """Return the node of each identity: a registered name, a claim, or the node's id.

        A registered name is authenticated. A claim is not, so it takes nothing that another client has. If
        two nodes are registered under one name, the first keeps the name while it is online. A node that
        claims the identity of another client is held back until that client has gone offline, or has stayed
        online long enough to be a different one.
        """
        connected = set(online)
        found: dict[str, int] = {}
        for node in sorted(names, key=lambda node: (not names[node], node)):  # registered names first
            name, claim = names[node], reports[node].client_id
            identity = name or claim or f"node-{node}"
            taken = found.get(identity, self.roster.node_of_id(identity)) in connected
            if name:
                free = not (taken and name in self._registered_names)
                self._registered_names.add(name)
            else:
                ours = claim in self._registered_names or identity.startswith("node-")
                free = not claim or not (taken or ours)
                if taken and claim and not ours and identity not in found:
                    _, since = self._held.setdefault(node, (reports[node], now))
                    if now - since < _GHOST:
                        continue
            self._held.pop(node, None)
            if not free:
                log(WARNING, "Node %d claims %s, which is taken: it becomes node-%d", node, identity, node)
                identity = f"node-{node}"
            found[identity] = node
        return found
