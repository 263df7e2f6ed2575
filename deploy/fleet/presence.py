"""Marks a node as offline soon after its connection ends: the SuperLink holds one heartbeat of each node.

Stock Flower notices a dead node when the node's heartbeats have been missing for 40 to 60 s. Here a SuperNode
always has a heartbeat under way (`deploy.fleet.connection`), whose answer the SuperLink delays. The
heartbeat's request ends with the node's connection: at once if the SuperNode is killed, after `SILENCE`
seconds if its cable is pulled. Unless the node returns within `AWAY` seconds, the SuperLink marks it as
offline, and a ServerApp that waits for the node's reply receives Flower's error reply.
"""

from __future__ import annotations

import contextlib
import heapq
import importlib
import socket
import struct
import sys
import threading
import time
from logging import getLogger
from typing import TYPE_CHECKING, Any

from deploy.fleet.sockets import forwarded, sender
from deploy.flower.deferred_answers import Later
from deploy.flower.patches.shared import LOOK

if TYPE_CHECKING:
    from collections.abc import Callable

HELD = ("cohort-held", "1")  # metadata that asks to hold a heartbeat; a stock SuperLink ignores it
HOLD = 20.0  # s that a heartbeat is held: the mean interval between two heartbeats in stock Flower
AWAY = 2.0  # s from the end of a node's connection until the node is marked as offline, unless it returns
ENDING = 2.0  # s that a restarted node may wait until the end of its old connection is noticed
LATE = 10.0  # s that a node may take to send its next heartbeat after the last heartbeat was answered
# On a slow line, a heartbeat or its answer waits behind megabytes of a model. So a node also counts as online
# while this many bytes are moved in `LATE` seconds: more than its pings, and less than a line of 1 kB/s.
MOVES = 5_000
PING = 4.0  # s between two of gRPC's keepalive pings from a SuperNode
SILENCE = 11.0  # s without a byte from a peer, after which its connection counts as ended
# gRPC ends a connection if the answer to a ping takes longer than a minute, even while data arrives. But a
# device answers a ping only after its upload, and 4 MB at 40 kB/s take longer. So the answer may take ten
# minutes.
PATIENT = {"grpc.http2.ping_timeout_ms": 600_000}
# gRPC also ends a connection whose peer pings too often. The server allows twice as many pings as a SuperNode
# sends.
SERVER_OPTIONS = {"grpc.http2.min_ping_interval_without_data_ms": int(PING * 500), **PATIENT}
RETURN = 15.0  # s after a start of the SuperLink in which nodes may return before they count as offline

# Four fields of struct tcp_info in <linux/tcp.h>: tcpi_unacked (packets), tcpi_last_data_recv and
# tcpi_last_ack_recv (how many ms ago), and tcpi_notsent_bytes.
_TCP_INFO = struct.Struct("=24xI24xII84xI")
_MOVED = struct.Struct("=120xQQ")  # tcpi_bytes_acked, tcpi_bytes_received

_CONSTANTS = "flwr.common.constant"
_NODE_STATUS = "flwr.supercore.constant"
_LINK_STATE = "flwr.server.superlink.linkstate"
USED = (
    f"{_CONSTANTS}:HEARTBEAT_PATIENCE",
    f"{_NODE_STATUS}:NodeStatus.ONLINE",
    *(
        f"{_LINK_STATE}:SqlLinkState.{method}"
        for method in ("deactivate_node", "acknowledge_node_heartbeat", "get_node_info")
    ),
)


class Presence:
    """Marks a node as offline when its connection has ended, and lets the node return at once.

    Parameters
    ----------
    left : Callable[[], None]
        Called when a node has left: it was marked as offline, or it had signed off. (default: nothing is
        called)
    """

    def __init__(self, left: Callable[[], None] = lambda: None) -> None:
        self._left = left
        self._latest: dict[int, _Heartbeat] = {}  # the latest heartbeat of each node
        self._lock = threading.Lock()
        # The nodes from which a heartbeat is expected. For each: the time until which the heartbeat must come
        # (time.monotonic(), s), the node's latest heartbeat, and a function that returns the SuperLink's
        # state.
        self._expected: dict[int, tuple[float, _Heartbeat, Callable[[], Any]]] = {}
        # A heap of the times and nodes in `_expected`. It may also hold times that are outdated.
        self._due: list[tuple[float, int]] = []
        self._expects = threading.Condition(self._lock)
        self._marker: threading.Thread | None = None
        self._closing = False
        self._offline: set[int] = set()  # nodes that were marked as offline and have not returned
        self._held: dict[_Heartbeat, str] = {}  # the held heartbeats, and the name of the peer that sent each
        self._watch: threading.Thread | None = None

    def hold(self, answer: Any, node: int, context: Any, state: Callable[[], Any]) -> Any:
        """Note a heartbeat that Flower has acknowledged, and return its answer.

        If the heartbeat asks for it (by the metadata `HELD`), the answer is a `Later`: a held heartbeat
        occupies no thread.

        Parameters
        ----------
        answer : SendNodeHeartbeatResponse
            Flower's answer.
        node : int
            The SuperNode.
        context : grpc.ServicerContext
            Tells when the connection ends.
        state : Callable[[], LinkState]
            Returns the SuperLink's state.
        """
        hold = HELD in map(tuple, context.invocation_metadata())
        heartbeat = self._heard(node, context, state, hold=hold)
        return answer if heartbeat is None else heartbeat.then(lambda _: answer)

    def wait_for_end(self, node: int) -> None:
        """Wait for up to `ENDING` seconds until the end of a node's connection is noticed."""
        end = time.monotonic() + ENDING
        while (latest := self._latest.get(node)) and latest.connected and time.monotonic() < end:
            time.sleep(ENDING / 20)

    def returns(self, node: int, state: Callable[[], Any]) -> bool:
        """Tell whether a node that may still count as online has come back: its connection has ended.

        Stock Flower refuses to activate a restarted node until its last heartbeat has expired. If this method
        returns True, call `deactivate_node` before `activate_node`. The front door has checked before that
        the request is signed with the node's key.

        Parameters
        ----------
        node : int
            The node that asks to be activated. Unless a heartbeat follows soon, it is marked as offline.
        state : Callable[[], Any]
            Returns the SuperLink's state.
        """
        first = _Heartbeat(connected=False)
        if self._take_over(node, first):
            self._expect(node, first, state, LATE)
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

    def begin(self, state: Any) -> None:
        """Give all nodes that were online before the SuperLink's start `RETURN` seconds to come back."""
        patience = importlib.import_module(_CONSTANTS).HEARTBEAT_PATIENCE
        online = importlib.import_module(_NODE_STATUS).NodeStatus.ONLINE
        for node in state.get_node_info(statuses=[online]):
            state.acknowledge_node_heartbeat(node.node_id, RETURN / patience)

    def end(self) -> None:
        """Mark no node as offline from now on: the SuperLink itself ends."""
        self._closing = True

    def _heard(self, node: int, context: Any, state: Callable[[], Any], *, hold: bool) -> Later | None:
        """Note a heartbeat. Return a `Later` that wakes when the answer is due, or None to answer at once."""
        heartbeat = _Heartbeat()
        with self._lock:
            if before := self._latest.get(node):
                before.over.wake()  # at most one heartbeat of each node is held
            self._latest[node] = heartbeat
            returned = node in self._offline
            self._offline.discard(node)
        if returned:
            getLogger("flwr").info("Node %d is back", node)
            # The node may have been marked as offline after Flower had acknowledged this heartbeat.
            state().acknowledge_node_heartbeat(node, HOLD)
        if not hold:
            return None  # a stock SuperNode: as in stock Flower, missing heartbeats show that it is offline

        def answered(_: None) -> None:
            heartbeat.answered = heartbeat.connected
            heartbeat.has_moved()  # the first look
            with self._lock:
                self._held.pop(heartbeat, None)
            self._expect(node, heartbeat, state, LATE if heartbeat.answered else AWAY)

        if not context.add_callback(heartbeat.end):  # the connection has ended already
            heartbeat.end()
        with self._lock:
            self._held[heartbeat] = heartbeat.peer = sender(context)
            if self._watch is None:
                self._watch = threading.Thread(target=self._end_silent, name="presence", daemon=True)
                self._watch.start()
        return heartbeat.over.then(answered)

    def _end_silent(self) -> None:
        while True:
            time.sleep(LOOK)
            silent = _silent_peers()
            with self._lock:
                gone = [heartbeat for heartbeat, peer in self._held.items() if peer in silent]
            for heartbeat in gone:
                heartbeat.end()

    def _expect(self, node: int, heartbeat: _Heartbeat, state: Callable[[], Any], seconds: float) -> None:
        """Mark the node as offline unless its next heartbeat after `heartbeat` arrives within `seconds`."""
        with self._expects:
            if self._latest.get(node) is not heartbeat:
                return
            if self._marker is None:  # one thread serves all nodes, however often they connect
                marker = threading.Thread(target=self._mark_absent, name="absence", daemon=True)
                marker.start()
                self._marker = marker
            until = time.monotonic() + seconds
            self._expected[node] = until, heartbeat, state
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
                _, heartbeat, state = self._expected.pop(node)
            self._check(node, heartbeat, state)

    def _check(self, node: int, heartbeat: _Heartbeat, state: Callable[[], Any]) -> None:
        with self._lock:
            if self._closing or self._latest.get(node) is not heartbeat:
                return
        if heartbeat.answered and heartbeat.has_moved():
            with contextlib.suppress(Exception):  # such as a locked database
                state().acknowledge_node_heartbeat(node, HOLD)
            self._expect(node, heartbeat, state, LATE)
            return
        with self._lock:
            if self._latest.get(node) is not heartbeat:
                return
            heartbeat.connected = False
        try:
            if state().deactivate_node(node):  # false if the node has signed off or its key was revoked
                with self._lock:
                    latest = self._latest[node]
                    # During an activation, the latest heartbeat is the placeholder of `activate_node`, which
                    # is not connected. The node must stay offline, because Flower activates no online node.
                    returned = latest is not heartbeat and latest.connected
                    if not returned:
                        self._offline.add(node)
                if returned:  # the new heartbeat was acknowledged before `deactivate_node`
                    state().acknowledge_node_heartbeat(node, HOLD)
                    return
                why = "it sends no heartbeat" if heartbeat.answered else "its connection has ended"
                getLogger("flwr").warning("Node %d is offline: %s", node, why)
            self._left()
        except Exception as error:  # such as a locked database
            getLogger("flwr").warning("Node %d cannot be marked as offline yet: %s", node, error)
            self._expect(node, heartbeat, state, AWAY)


class _Heartbeat:
    """A heartbeat of a node.

    Parameters
    ----------
    connected : bool
        Whether the connection that brought the heartbeat still exists.
    """

    def __init__(self, *, connected: bool = True) -> None:
        self.connected = connected
        self.answered = False
        self.peer = ""  # the name of the peer that sent it
        self._moved = 0  # bytes that the connection had moved at the last look
        # Woken when the heartbeat need not be held any longer.
        self.over = Later(time.monotonic() + HOLD, lambda: None)

    def has_moved(self) -> bool:
        """Return whether at least `MOVES` bytes have moved since the last look, up and down together.

        Except on Linux, return False.
        """
        if sys.platform != "linux" or (connection := forwarded.get(self.peer)) is None:
            return False
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MOVED.size)
        except (OSError, ValueError):  # the gate has closed the connection
            return False
        before, self._moved = self._moved, sum(_MOVED.unpack(info))
        return self._moved >= before + MOVES

    def end(self) -> None:
        """Remember that the heartbeat's request was answered, or that its connection has ended."""
        self.connected = self.answered
        self.over.wake()


def _silent_peers() -> set[str]:
    """Return the peers that have sent no byte for `SILENCE` seconds. Except on Linux, return none.

    gRPC's pings would not show this, because a device that is uploading megabytes answers a ping only after
    the upload. A peer that acknowledges the data that it is downloading is not silent.
    """
    silent: set[str] = set()
    if sys.platform != "linux":
        return silent
    for peer, connection in list(forwarded.items()):
        with contextlib.suppress(OSError):  # the gate has closed the connection
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            unacknowledged, last_data, last_acknowledgement, unsent = _TCP_INFO.unpack(info)
            downloads = (unacknowledged or unsent) and last_acknowledgement < SILENCE * 1000
            if last_data > SILENCE * 1000 and not downloads:
                silent.add(peer)
    return silent
