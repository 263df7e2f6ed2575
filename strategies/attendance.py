"""Who is here: nodes that come and go are asked who they are, and enrolled as clients."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import TYPE_CHECKING

from flwr.common import log

from .messages import read_status, status_question
from .reports import Report
from .roster import Roster

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from flwr.serverapp import Grid
    from numpy.typing import NDArray

_FIRST_WORD, _NEXT_WORD = 5.0, 30.0  # s, after which waiting for clients is told, and told again


class NotEnoughClientsError(RuntimeError):
    """Fewer clients than wanted had joined by the deadline."""


@dataclass
class Attendance:
    """Keeps the roster in step with the nodes that are online.

    Attributes
    ----------
    min_available_clients : int
        `wait_for_first` waits until so many are here, ...
    clients_per_round : int
        ... and at the deadline goes on with so many or more.
    join_deadline, status_deadline, poll_interval : float
        s; see `SelectionStrategy`.
    ask_status : bool
        Whether to ask newcomers who they are.
    roster : Roster
        The clients enrolled so far.
    """

    min_available_clients: int
    clients_per_round: int
    join_deadline: float
    status_deadline: float
    poll_interval: float
    ask_status: bool
    roster: Roster = field(default_factory=Roster)
    _registered: set[str] = field(default_factory=set)  # identities that the operator gave
    _silent: dict[int, tuple[float, float]] = field(default_factory=dict)  # node -> (ask again at, pause), s

    def wait_for_first(self, grid: Grid) -> None:
        """Wait for the first clients and enrol them together, so that who came first changes nothing.

        Raises
        ------
        NotEnoughClientsError
            If fewer than ``clients_per_round`` joined within ``join_deadline``.
        """
        end = time.monotonic() + self.join_deadline
        tell = time.monotonic() + _FIRST_WORD
        reports: dict[int, Report] = {}
        while True:
            online = {node.node_id: node.name for node in grid.get_nodes()}
            if len(online) >= self.min_available_clients:
                reports |= self._ask(grid, [node for node in online if node not in reports])
            joined = {node: report for node, report in reports.items() if node in online}
            if len(joined) >= self.min_available_clients:
                break
            if time.monotonic() >= end:
                told = (
                    f"{len(joined)} of {self.min_available_clients} clients had joined after "
                    f"{self.join_deadline:g} s (min_available_clients, join_deadline); "
                    f"{len(online)} nodes were online"
                )
                if len(joined) < self.clients_per_round:
                    raise NotEnoughClientsError(told)
                log(WARNING, "%s: going on with those", told)
                break
            if time.monotonic() >= tell:
                tell = time.monotonic() + _NEXT_WORD
                log(
                    INFO,
                    "%d of %d clients are here (min_available_clients); waiting up to %g s (join_deadline)",
                    len(joined),
                    self.min_available_clients,
                    self.join_deadline,
                )
            time.sleep(self.poll_interval)
        self._enrol(joined, online)

    def who_is_here(self, grid: Grid) -> NDArray[np.int64]:
        """Return who can train now. Newcomers are enrolled; those who last said no are asked again."""
        online = {node.node_id: node.name for node in grid.get_nodes()}
        clients = {node: self.roster.client_at(node) for node in online}
        asked = [
            node for node, client in clients.items() if client is None or not self.roster.is_available(client)
        ]
        self._enrol(self._ask(grid, asked), online)
        return self.roster.here(online)

    def _ask(self, grid: Grid, nodes: Iterable[int]) -> dict[int, Report]:
        """Return what the nodes say of themselves.

        A silent one is left alone for twice as long as it was waited for, then twice as long again: it must
        not hold up every round.
        """
        if not self.ask_status:
            return {node: Report() for node in nodes}
        now = time.monotonic()
        questions = [
            status_question(node, self.status_deadline)
            for node in nodes
            if now >= self._silent.get(node, (0.0, 0.0))[0]
        ]
        if not questions:
            return {}
        answers = list(grid.send_and_receive(questions, timeout=self.status_deadline))
        node_asked = {question.metadata.message_id: question.metadata.dst_node_id for question in questions}
        reports = {}
        for answer in answers:
            node = node_asked.get(answer.metadata.reply_to_message_id)
            if node is None:
                continue
            try:
                report = read_status(answer)
            except ValueError as error:
                log(WARNING, "Status of node %d ignored: %s", node, error)
                report = Report()
            if report is not None:
                reports[node] = report
                self._silent.pop(node, None)
        for node in set(node_asked.values()) - reports.keys():
            pause = 2 * max(self.status_deadline, self._silent.get(node, (0.0, 0.0))[1])
            self._silent[node] = (time.monotonic() + pause, pause)
            log(WARNING, "Node %d did not tell its status; it is asked again in %g s", node, pause)
        return reports

    def _enrol(self, reports: Mapping[int, Report], online: Mapping[int, str]) -> None:
        """Give the clients behind new nodes their indexes, and note what all these nodes reported."""
        strangers = {node: online[node] for node in reports if self.roster.client_at(node) is None}
        new = self.roster.enrol(self._identities(strangers, reports, online))
        for node, report in reports.items():
            client = self.roster.client_at(node)
            if client is not None:
                self.roster.note(client, report)
        unknown = sum(not name and reports[node] == Report() for node, name in strangers.items())
        if unknown and self.ask_status:
            log(
                INFO,
                "%d nodes have no query.status handler: known by node id, their sizes are learned; "
                "ask_status=False saves the question, and the client's error that it causes",
                unknown,
            )
        if new:
            log(INFO, "Enrolled %d clients: %s", len(new), ", ".join(map(self.roster.id_of, new)))

    def _identities(
        self, names: Mapping[int, str], reports: Mapping[int, Report], online: Iterable[int]
    ) -> dict[str, int]:
        """Return the node of each identity: a registered name, a claim, or the node's own number.

        A registered name is authenticated, a claim is not: it takes nothing that is somebody else's. Of two
        nodes registered under one name the first to come has it while it is online.
        """
        here = set(online)
        found: dict[str, int] = {}
        for node in sorted(names, key=lambda node: not names[node]):  # registered names first
            name, claim = names[node], reports[node].client_id
            identity = name or claim or f"node-{node}"
            taken = found.get(identity, self.roster.node_of_id(identity)) in here
            if name:
                free = not (taken and name in self._registered)
                self._registered.add(name)
            else:
                free = not claim or not (taken or claim in self._registered or claim.startswith("node-"))
            if not free:
                log(WARNING, "Node %d says it is %s, which is not free: it is node-%d", node, identity, node)
                identity = f"node-{node}"
            found[identity] = node
        return found
