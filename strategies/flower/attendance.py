"""Follows which nodes are online, registers them as clients, and waits until enough clients are available."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from logging import INFO, WARNING
from math import inf
from typing import Any

import numpy as np
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from ..clients.eligible_clients import EligibleClients
from ..clients.overrides import Groups, Removals
from ..clients.printable import counted, listed, printable
from ..clients.reports import Report
from ..clients.roster import Roster
from ..options import Deadlines, Polling
from .exchanges import clock_of
from .status_questions import StatusQuestions

_FIRST_LOG, _NEXT_LOG = 5.0, 30.0  # s of waiting for clients before the first log line, and between two lines
_LONGEST_PAUSE = 5.0  # s, the longest pause between two looks for available clients
_GHOST = 90.0
"""Seconds for which a killed node may count as online: 40 to 60 in Flower, and a margin. A node that claims
the identity of an online client waits for this time, because it may be the same client after a restart."""
_NOT_ASKED = (
    "Clients are not asked for their status: they are known by registered name or node id, and their sizes "
    "are learned from their replies. If the client app is a flwr_cohort.ReportingClientApp, or has a "
    "query.status handler, Polling(ask_status=True) asks them before round 1"
)
_NOBODY_IS_BACK = (
    "None of the %d clients of the checkpoint is here: what was learned about them is not used. Clients "
    "without an identity are known by node id, which is new in each Flower simulation: make the app a "
    "flwr_cohort.ReportingClientApp, or register names"
)
_SETTLED = 5.0  # s without a further client, after which a resumed run goes on if a quorum is online


class NotEnoughClientsError(RuntimeError):
    """Fewer clients than needed were available by the deadline."""


@dataclass
class Attendance:
    """Updates the roster as nodes come online and go offline."""

    min_available_clients: int  # for how many clients `wait_for_first` waits
    clients_per_round: int  # the least number of clients with which it continues at its deadline in a new run
    quorum: int  # for how many available clients `wait_for_quorum` waits
    deadlines: Deadlines
    polling: Polling
    removals: Removals = field(default_factory=Removals)
    roster: Roster = field(default_factory=Roster)
    groups: Groups = field(default_factory=Groups)
    # whether the run needs what only a status report says, see `StatusQuestions`
    needs_status: InitVar[bool] = False
    declared: frozenset[str] = frozenset()  # the identities that the operator declared
    # who may be selected; others: unavailable
    eligible: EligibleClients = field(default_factory=lambda: EligibleClients(None))
    num_ineligible: int = 0  # at the last look: online and willing to train, but not eligible
    _registered_names: set[str] = field(default_factory=set)  # names that the operator gave to keys
    _refused: dict[int, str] = field(default_factory=dict)  # node -> the removed identity that it claimed
    # node that claims the identity of an online client, and is not registered yet -> (its report, the time of
    # its first claim in s)
    _claimants: dict[int, tuple[Report, float]] = field(default_factory=dict)
    _groupless: set[int] = field(default_factory=set)  # nodes that were refused because of their group
    _unasked: set[int] = field(default_factory=set)  # nodes whose clients were registered without a question
    _questions: StatusQuestions = field(init=False)

    def __post_init__(self, needs_status: bool) -> None:
        self._questions = StatusQuestions(self.deadlines, self.polling, needs_status, self.declared)

    @property
    def answered(self) -> bool:
        """Whether any node has reported its status."""
        return self._questions.answered

    def wait_for_first(self, grid: Grid) -> None:
        """Wait for the first clients, and then register them together, so that their order does not matter.

        Both a new run and a resumed run wait for ``min_available_clients`` clients. If a checkpoint has fewer
        clients than that, not counting removed clients, the resumed run waits for all of them, but at least
        for a quorum. A resumed run also goes on if a quorum is online and no further client has come for 5
        seconds. A warning is logged if all clients of a resumed run are new.

        Raises a NotEnoughClientsError if fewer than ``clients_per_round`` clients joined a new run within
        ``deadlines.join``.
        """
        clock = clock_of(grid)
        resumed = len(self.roster) > 0
        best, settled = 0, inf
        end = clock.monotonic() + self.deadlines.join
        log_at = clock.monotonic() + _FIRST_LOG
        reports: dict[int, Report] = {}
        while True:
            online = self._online(grid)
            known = [node for node in online if self.roster.client_at(node) is not None]  # if resumed
            new = [node for node in online if node not in {*known, *reports}]
            reports |= self._ask(grid, new, online)
            joined = self._admitted(reports, online)
            present = len(joined) + len(known)
            left = len(self.roster) - len(self.roster.removed()) if resumed else self.min_available_clients
            if present >= min(self.min_available_clients, max(left, self.quorum)):
                break
            if resumed and present > best:
                best, settled = present, clock.monotonic() + _SETTLED
            if best >= self.quorum and clock.monotonic() >= settled:
                log(WARNING, "%d of %s are back: the run continues", present, counted(left, "client"))
                break
            if clock.monotonic() >= end:
                outcome = (
                    f"{present} of {counted(self.min_available_clients, 'client')} joined within "
                    f"{self.deadlines.join:g} s (join deadline); "
                    f"{counted(len(online), 'node is', 'nodes are')} online"
                )
                if present < self.clients_per_round and not resumed:
                    raise NotEnoughClientsError(
                        f"{outcome}. A new run needs clients_per_round = {self.clients_per_round} of them: "
                        "let more clients join, or lower clients_per_round and min_available_clients"
                    )
                log(WARNING, "%s: the run continues with the clients that joined", outcome)
                break
            if clock.monotonic() >= log_at:
                log_at = clock.monotonic() + _NEXT_LOG
                log(
                    INFO,
                    "%d of %s joined; waiting up to %g s (join deadline)",
                    present,
                    counted(self.min_available_clients, "client"),
                    self.deadlines.join,
                )
            clock.sleep(self.polling.interval)
            self._questions.hurry()
        known_before = range(len(self.roster))
        self._register(joined, online, clock.monotonic())
        self._questions.begin(clock.monotonic())
        if resumed and online and not any(self.roster.client_at(node) in known_before for node in online):
            log(WARNING, _NOBODY_IS_BACK, left)

    def wait_for_quorum(self, grid: Grid) -> NDArray[np.int64]:
        """Wait until at least ``quorum`` clients are available, and return all available clients, ascending.

        Raises a NotEnoughClientsError if fewer than ``quorum`` clients were available for
        ``deadlines.absence`` seconds.
        """
        clock = clock_of(grid)
        began = clock.monotonic()
        pause, log_at, limit = self.polling.interval, _FIRST_LOG, self.deadlines.absence
        while len(available := self.available(grid)) < self.quorum:
            waited = clock.monotonic() - began
            here = counted(len(available), "client is", "clients are")
            shortage = f"the quorum is {self.quorum}, and {here} available"
            if self.eligible.conditions:
                shortage += f" and eligible ({self.eligible.conditions})"
                if why := self.eligible.why_nobody(self.roster):
                    raise NotEnoughClientsError(why)
            if waited >= limit:
                raise NotEnoughClientsError(f"{shortage} after {limit:g} s (absence deadline)")
            if waited >= log_at:
                log_at = waited + _NEXT_LOG
                log(WARNING, "%s; waiting up to %g s (absence deadline)", shortage, limit)
            clock.sleep(min(pause, limit - waited))
            pause = min(2 * pause, _LONGEST_PAUSE)
            self._questions.hurry()
        return available

    def available(self, grid: Grid) -> NDArray[np.int64]:
        """Register new clients, ask unavailable ones again, and return the available clients, ascending."""
        online = self._online(grid)
        self._claimants = {node: claim for node, claim in self._claimants.items() if node in online}
        asked = [
            node
            for node in self.roster.without_available(online)
            if self.roster.client_at(node) is not None
            or not (node in self._claimants and self._claimants[node][0].available)
        ]
        unasked: set[int] = set()
        if self.eligible.conditions.needs_properties:  # a property may have changed
            here = self.roster.available(online)
            others = np.setdiff1d(here, self.eligible.among(self.roster, here))
            asked += [self.roster.node_of(int(client)) for client in others]
        if self._unasked and self._questions.asks(online):  # by now, nodes are asked: so ask these, too
            unasked = {
                node for node in online if node in self._unasked and not self._is_left_out(online[node])
            }
            asked += sorted(unasked.difference(asked))
        known = {node: report for node, (report, _) in self._claimants.items()}
        reports = self._admitted(known | self._ask(grid, asked, online), online)
        self._register(reports, online, clock_of(grid).monotonic())
        self._unasked -= unasked & reports.keys()  # one question is enough
        return self.eligible_among(self.roster.available(online))

    def eligible_among(self, available: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the eligible clients among the available clients, ascending."""
        eligible = self.eligible.among(self.roster, available)
        self.num_ineligible = available.size - eligible.size
        return eligible

    def warn_of_absent(self) -> None:
        """Log which declared clients are not registered, and the identities of two that are registered."""
        here = self.roster.ids()
        absent = sorted(self.declared.difference(here))
        if absent:
            log(
                WARNING,
                "%d declared %s here: %s. What is declared for %s has no effect until %s. The ids here look "
                "like %s",
                len(absent),
                "client is not" if len(absent) == 1 else "clients are not",
                listed([printable(each) for each in absent], 3),
                "it" if len(absent) == 1 else "them",
                "it comes" if len(absent) == 1 else "they come",
                listed(here, 2),
            )

    def hear(self, client: int, report: Report) -> None:
        """Note what a client reported in a reply to a message that did not ask for its status.

        With ``polling.ask_status`` = None, the identity in a report has two effects. A client that was never
        asked for its status gets this identity, if it is free. The other clients are asked for their status
        from the next round on.
        """
        self.roster.note(client, report)
        if report.client_id is not None and self.polling.ask_status is None:
            self._questions.note_identity()
            self._log_identities([self._identify(client, report)])

    def _identify(self, client: int, report: Report) -> str:
        """Give a client known by its node id the identity that it claims, if free; return a log line."""
        node, claim = self.roster.node_of(client), report.client_id
        if node not in self._unasked or claim is None:
            return ""
        self._unasked.discard(node)
        if self.roster.id_of(client) != f"node-{node}":  # a registered name takes precedence
            return ""
        free = self.roster.node_of_id(claim) is None and claim not in self._registered_names
        if not free or claim.startswith("node-"):
            return ""
        before = self.roster.id_of(client)
        self.roster.rename(client, claim)
        return f"{before} is {claim}"

    def _log_identities(self, found: Sequence[str]) -> None:
        if named := list(filter(None, found)):
            log(INFO, "Clients reported their identities: %s", listed(named))

    def state(self) -> dict[str, Any]:
        return {
            "roster": self.roster.state(),
            "registered": sorted(self._registered_names),
            "unasked": sorted(self._unasked),
            **self._questions.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.roster.load(state["roster"])
        self._registered_names = set(state["registered"])
        # Checkpoints of 2026-11-22 and before lack "unasked": their runs asked all clients.
        self._unasked = set(state.get("unasked", ()))
        self._questions.load(state)

    def _online(self, grid: Grid) -> dict[int, str]:
        """Return the registered name of each online node ("": none) that is neither removed nor refused."""
        removed = self.removals.current()
        for client_id in self.roster.remove(removed):
            log(WARNING, "%s is removed from the run, as the operator declared", client_id)
        names = {node.node_id: printable(node.name, None) if node.name else "" for node in grid.get_nodes()}
        self._refused = {
            node: client_id
            for node, client_id in self._refused.items()
            if node in names and client_id in removed
        }
        self._groupless &= names.keys()
        refused = self._refused.keys() | self._groupless
        if not removed and not refused:
            return names
        return {node: names[node] for node in names if names[node] not in removed and node not in refused}

    def _admitted(self, reports: Mapping[int, Report], online: Mapping[int, str]) -> dict[int, Report]:
        """Return the reports of online nodes whose identity is not removed and whose group is not refused."""
        removed, admitted = self.removals.current(), {}
        for node in [node for node in reports if node in online]:
            identity = online[node] or reports[node].client_id or f"node-{node}"
            if identity in removed:
                self._refused[node] = identity  # this node is not asked again
            elif not self._refuses_group(node, identity, reports[node]):
                admitted[node] = reports[node]
        return admitted

    def _refuses_group(self, node: int, identity: str, report: Report) -> bool:
        """Return whether a node is a new client whose group is refused; if so, log the reason."""
        if self.roster.client_at(node) is not None:
            return False
        refusal = self.groups.refusal(identity, report.group)
        if refusal:
            self._groupless.add(node)  # this node is not asked again
            log(WARNING, "%s is refused: %s", identity, refusal)
        return bool(refusal)

    def _ask(self, grid: Grid, nodes: list[int], online: Mapping[int, str]) -> dict[int, Report]:
        """Ask as `StatusQuestions.ask` does, without names that are not eligible; note who is not asked."""
        new = [node for node in nodes if self.roster.client_at(node) is None]
        if self._questions.may_ask_later(online):
            self._unasked.update(new)
        left_out = {node for node in nodes if self._is_left_out(online[node])}
        self._unasked.update(left_out.intersection(new))
        reports = self._questions.ask(grid, [node for node in nodes if node not in left_out], online)
        return reports | {node: Report() for node in new if node in left_out}

    def _is_left_out(self, name: str) -> bool:
        """Return whether no report of a node with this name ("" = none) can make it eligible or refused."""
        return self.eligible.excludes(name) and not self.groups.refusal(name, None)

    def _register(self, reports: Mapping[int, Report], online: Mapping[int, str], now: float) -> None:
        """Register the clients at new nodes, and note the reports of all nodes that reported."""
        new_nodes = {node: online[node] for node in reports if self.roster.client_at(node) is None}
        identities = self._identities(new_nodes, reports, online, now)
        new = self.roster.register(
            {
                each: node
                for each, node in identities.items()
                if not self._refuses_group(node, each, reports[node])
            }
        )
        identified = []
        for node, report in reports.items():
            client = self.roster.client_at(node)
            if client is None:
                continue
            identified.append(self._identify(client, report))
            if node not in self._unasked:  # an unasked node has no report until its first reply
                self.roster.note(client, report)
        self._log_identities(identified)
        unknown = sum(not name and reports[node] == Report() for node, name in new_nodes.items())
        if unknown and self.polling.ask_status:
            log(
                INFO,
                "%s without a query.status handler: known by node id, and by the sizes in replies; with "
                "Polling(ask_status=False), clients are not asked, and log no error",
                counted(unknown, "node"),
            )
        elif unknown and self._unasked and len(self.roster) == len(new):
            log(INFO, _NOT_ASKED)
        if new:
            names = listed([self.roster.id_of(client) for client in new])
            log(INFO, "%s: %s", counted(len(new), "new client"), names)

    def _identities(
        self, names: Mapping[int, str], reports: Mapping[int, Report], online: Iterable[int], now: float
    ) -> dict[str, int]:
        """Return the identity and the node of each new node's client.

        The identity is the node's registered name if it has one, otherwise the identity that the client
        claims, otherwise ``node-`` and the node id. Flower authenticates a registered name. Nothing
        authenticates a claim, so a claim cannot take the identity of another client:

        - If two nodes have the same registered name, the first keeps the name while it is online.
        - A claim to a registered name, or to a name that begins with ``node-``, is refused.
        - A node that claims the identity of an online client is not registered at first, since the node may
          be the same client after a restart. Once the client is offline, the node gets the identity. If the
          client is still online after 90 seconds, the claim is refused.

        A node whose claim is refused gets the identity ``node-`` and its node id.
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
                reserved = claim in self._registered_names or identity.startswith("node-")
                free = not claim or not (taken or reserved)
                if taken and claim and not reserved and identity not in found:
                    _, since = self._claimants.setdefault(node, (reports[node], now))
                    if now - since < _GHOST:
                        continue
            self._claimants.pop(node, None)
            if not free:
                log(WARNING, "Node %d claims %s, which is taken: it becomes node-%d", node, identity, node)
                identity = f"node-{node}"
            found[identity] = node
        return found
