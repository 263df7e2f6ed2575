"""Marks a node as offline soon after its connection ends: the connection says that the node is there.

Stock Flower notices a dead node when the node's heartbeats have been missing for 40 to 60 s. Here a SuperNode
always has a heartbeat under way (`supernode.connection`), whose answer the SuperLink delays for minutes
(`held_requests.seconds`). Until then the node is online, and its state is not written. The request ends with
the node's connection:

- at once, if the SuperNode is killed;
- after `sockets.GONE` seconds, if its cable is pulled: the kernel asks the other end whether it is there;
- after `sockets.SILENCE` seconds, if the SuperNode hangs, or if a proxy keeps the connection to a dead one
  open: the gate misses the SuperNode's pings.

A stream for each device instead would take as much memory (20 kB, as a held request) and as little CPU while
nothing happens; it would only save the renewals, some 30 requests a second for 10,000 devices, and devices of
before do not know it.

Unless the node returns within `AWAY` seconds, the SuperLink marks it as offline, and a ServerApp that waits
for the node's reply receives Flower's error reply.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections.abc import Callable, Collection
from logging import getLogger
from typing import Any

from deploy.fleet import protocol, wire
from deploy.fleet.duties import held_requests
from deploy.fleet.sockets import forwarded, sender
from deploy.flower.deferred_answers import Later

HOLD = 20.0  # s that a heartbeat without `wire.LONG` is held, as devices with Flower 1.39 expect
# s between two heartbeats, as the state knows it: while a heartbeat is held, only this module marks its node
# as offline. So a jump of the clock takes no node offline.
FOREVER = 1e9
# s from the end of a node's connection until the node is marked as offline, unless it returns. The
# environment sets more where all connections may end together, because a balancer is started again.
AWAY = float(os.environ.get("COHORT_AWAY") or 2.0)
ENDING = 2.0  # s that a restarted node may wait until the end of its old connection is noticed
FIRST = 30.0  # s that a node may take to send its first heartbeat after its activation
LATE = 3.0  # s between two looks whether a node is connected whose last heartbeat was answered
# s that a connected node may take to send its next heartbeat. On a slow line, a heartbeat or its answer waits
# behind megabytes of a model.
OVERDUE = 600.0
# gRPC ends a connection if the answer to a ping takes longer than a minute, even while data arrives. But a
# device answers a ping only after its upload, and 4 MB at 40 kB/s take longer. So the answer may take ten
# minutes.
PATIENT = {"grpc.http2.ping_timeout_ms": 600_000}
SERVER_OPTIONS = {
    **PATIENT,
    "grpc.keepalive_permit_without_calls": 1,
    # gRPC also ends a connection whose peer pings too often. Devices with Flower 1.39 ping every 4 s.
    "grpc.http2.min_ping_interval_without_data_ms": 2000,
}
# s after a start of the SuperLink in which nodes may return before they count as offline: `RETURN`, and
# `RETURN_EACH` more for each node
RETURN, RETURN_EACH = 15.0, 0.01


class Presence:
    """Marks a node as offline when its connection has ended, and lets the node return at once.

    `left`: called when a node has left: it was marked as offline, or it had signed off.
    """

    def __init__(self, left: Callable[[], None] = lambda: None) -> None:
        self._left = left
        self._state: Any = None
        self._latest: dict[int, _Heartbeat] = {}  # the latest heartbeat of each node
        self._lock = threading.Lock()
        # The nodes from which a heartbeat is expected. For each: the time until which the heartbeat must come
        # (time.monotonic(), s), and the node's latest heartbeat.
        self._expected: dict[int, tuple[float, _Heartbeat]] = {}
        # A heap of the times and nodes in `_expected`. It may also hold times that are outdated.
        self._due: list[tuple[float, int]] = []
        self._expects = threading.Condition(self._lock)
        self._marker: threading.Thread | None = None
        self._closing = False
        self._offline: set[int] = set()  # nodes that were marked as offline and have not returned

    def begin(self, state: Any) -> None:
        """Give all nodes that were online before the SuperLink's start some seconds to come back.

        `state` is the SuperLink's state. Call this before the other methods.
        """
        self._state = state
        self._wait_for_return()

    def end(self) -> None:
        """Mark no node as offline from now on: the SuperLink itself ends."""
        self._closing = True
        try:
            self._wait_for_return()
        except Exception as error:  # such as a locked database
            getLogger("flwr").warning("The nodes stay online in the database: %s", error)

    def _wait_for_return(self) -> None:
        with self._state.session():  # one transaction for all
            nodes = self._state.online_nodes()
            seconds = RETURN + RETURN_EACH * len(nodes)
            for node in nodes:
                self._state.note_heartbeat(node, seconds / protocol.PATIENCE)

    def hold(self, answer: Any, node: int, context: Any) -> Later:
        """Keep a node online until its connection ends, and hold its heartbeat. This occupies no thread."""
        heartbeat = _Heartbeat(FOREVER, held_requests.seconds(context, HOLD), sender(context))
        heartbeat.moves = wire.MOVES in map(tuple, context.invocation_metadata())
        self._note(node, heartbeat)

        def answered(_: None) -> Any:
            heartbeat.answered = heartbeat.connected
            if heartbeat.answered:
                heartbeat.overdue = time.monotonic() + OVERDUE
            self._expect(node, heartbeat, LATE if heartbeat.answered else AWAY)
            return answer

        if not context.add_callback(heartbeat.end):  # the connection has ended already
            heartbeat.end()
        return heartbeat.over.then(answered)

    def heard(self, node: int, interval: float) -> None:
        """Note a heartbeat that is not held. As in stock Flower, missing ones show that a node is offline."""
        self._note(node, _Heartbeat(interval))

    def _note(self, node: int, heartbeat: _Heartbeat) -> None:
        with self._lock:
            if before := self._latest.get(node):
                before.over.wake()  # at most one heartbeat of each node is held
            self._latest[node] = heartbeat
            returned = node in self._offline
            self._offline.discard(node)
        if returned:
            getLogger("flwr").info("Node %d is back", node)
            # The node may have been marked as offline after the state had acknowledged this heartbeat.
            self._state.note_heartbeat(node, heartbeat.interval)

    def renew(self, nodes: Collection[int]) -> None:
        """Mark these nodes as online again, if they are connected: another front end has marked them."""
        with self._lock:
            latest = {node: self._latest[node] for node in nodes if node in self._latest}
            connected = {node: each.interval for node, each in latest.items() if each.connected}
        with self._state.session():
            for node, interval in connected.items():
                self._state.note_heartbeat(node, interval)

    def movable(self) -> set[int]:
        """Return the nodes that can be told to move to another front end: those whose heartbeats are held."""
        with self._lock:
            return {
                node
                for node, each in self._latest.items()
                if each.moves and each.connected and not each.answered
            }

    def connected(self) -> int:
        """Return how many nodes are connected here that keep heartbeats under way."""
        with self._lock:
            return sum(each.connected and bool(each.peer) for each in self._latest.values())

    def moved_away(self, node: int) -> None:
        """Note that a node is connected to another front end."""
        with self._lock:
            if latest := self._latest.get(node):
                latest.connected = False

    def answer(self, node: int) -> None:
        """Answer the heartbeat of a node that is held, if there is one."""
        if latest := self._latest.get(node):
            latest.over.wake()

    def wait_for_end(self, node: int) -> None:
        """Wait for up to `ENDING` seconds until the end of a node's connection is noticed."""
        end = time.monotonic() + ENDING
        while (latest := self._latest.get(node)) and latest.connected and time.monotonic() < end:
            time.sleep(ENDING / 20)

    def returns(self, node: int) -> bool:
        """Tell whether a node that may still count as online has come back: its connection has ended.

        Stock Flower refuses to activate a restarted node until its last heartbeat has expired. The front door
        has checked before that the request is signed with the node's key.

        `node`: the node that asks to be activated. Unless a heartbeat follows soon, it is marked as offline.
        """
        first = _Heartbeat(FIRST, connected=False)
        if self._take_over(node, first):
            self._expect(node, first, FIRST)
            return True
        return False

    def _take_over(self, node: int, heartbeat: _Heartbeat) -> bool:
        """If the node is not connected, note `heartbeat` as its latest one. Return whether this was done.

        From then on, the end of the node's earlier connection has no effect.
        """
        with self._lock:
            latest = self._latest.get(node)
            if latest is not None and latest.connected:
                return False
            self._latest[node] = heartbeat
            return True

    def _expect(self, node: int, heartbeat: _Heartbeat, seconds: float) -> None:
        """Mark the node as offline unless its next heartbeat after `heartbeat` arrives within `seconds`."""
        with self._expects:
            if self._latest.get(node) is not heartbeat:
                return
            if self._marker is None:  # one thread serves all nodes, however often they connect
                marker = threading.Thread(target=self._mark_absent, name="absence", daemon=True)
                marker.start()
                self._marker = marker
            until = time.monotonic() + seconds
            self._expected[node] = until, heartbeat
            heapq.heappush(self._due, (until, node))
            if self._due[0] == (until, node):
                self._expects.notify()

    def _mark_absent(self) -> None:
        while True:
            with self._expects:
                while not self._due or self._due[0][0] > time.monotonic():
                    wait = self._due[0][0] - time.monotonic() if self._due else None
                    self._expects.wait(None if wait is None else max(0.0, wait))
                until, node = heapq.heappop(self._due)
                if node not in self._expected or self._expected[node][0] != until:
                    continue  # a later heartbeat of the node is expected
                _, heartbeat = self._expected.pop(node)
            self._check(node, heartbeat)

    def _check(self, node: int, heartbeat: _Heartbeat) -> None:
        if heartbeat.peer in forwarded and time.monotonic() < heartbeat.overdue:
            self._expect(node, heartbeat, LATE)
            return
        with self._lock:
            if self._closing or self._latest.get(node) is not heartbeat:
                return
            heartbeat.connected = False
        try:
            if self._state.go_offline(node):  # false if the node has signed off or its key was revoked
                with self._lock:
                    latest = self._latest[node]
                    # During an activation, the latest heartbeat is the placeholder of `activate`, which
                    # is not connected. The node must stay offline, because Flower activates no online node.
                    returned = latest is not heartbeat and latest.connected
                    if not returned:
                        self._offline.add(node)
                if returned:  # the new heartbeat was acknowledged before `go_offline`
                    self._state.note_heartbeat(node, latest.interval)
                    return
                why = "it sends no heartbeat" if heartbeat.answered else "its connection has ended"
                getLogger("flwr").warning("Node %d is offline: %s", node, why)
            self._left()
        except Exception as error:  # such as a locked database
            if self._closing:  # the database may be gone
                return
            getLogger("flwr").warning("Node %d cannot be marked as offline yet: %s", node, error)
            self._expect(node, heartbeat, AWAY)


class _Heartbeat:
    """A heartbeat of a node."""

    def __init__(self, interval: float, held: float = 0.0, peer: str = "", *, connected: bool = True) -> None:
        # The seconds until the next one, as the state knows it; who sent it; whether its connection exists.
        self.interval, self.peer, self.connected = interval, peer, connected
        self.answered = self.moves = False  # whether its node can be told to move to another front end
        self.overdue = 0.0  # when the next heartbeat is overdue (time.monotonic(), s)
        # Woken when the heartbeat need not be held any longer.
        self.over = Later(time.monotonic() + held, lambda: None)

    def end(self) -> None:
        """Remember that the heartbeat's request was answered, or that its connection has ended."""
        self.connected = self.answered
        self.over.wake()
