"""A node is online as long as its connection exists, and no longer."""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

from deploy.fleet import presence, sockets
from deploy.flower.deferred_answers import Later
from deploy.processes.groups import wait_until

NODE = 7
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the state of a connection")


class State:
    """Keeps which nodes are online, as the SuperLink's state does; `locked` as long as its database is."""

    def __init__(self, present: presence.Presence) -> None:
        self.present = present
        self.online: set[int] = set()
        self.locked = False

    def activate_node(self, node_id: int, heartbeat_interval: float) -> bool:
        if self.present.returns(node_id, lambda: self):
            self.deactivate_node(node_id)
        if node_id in self.online:
            return False
        self.online.add(node_id)
        return True

    def deactivate_node(self, node_id: int) -> bool:
        if self.locked:
            raise OSError("database is locked")
        was_online = node_id in self.online
        self.online.discard(node_id)
        return was_online

    def acknowledge_node_heartbeat(self, node_id: int, heartbeat_interval: float) -> bool:
        self.online.add(node_id)
        return True


class Servicer:
    def __init__(self, state: State, present: presence.Presence) -> None:
        self.state, self.present = state, present
        self.acknowledged: Callable[[], object] = lambda: None

    def send_node_heartbeat(self, node: int, call: Any) -> Any:
        self.state.online.add(node)
        self.acknowledged()
        return self.present.hold(SimpleNamespace(success=True), node, call, lambda: self.state)


class Call(threading.Thread):
    """A heartbeat, and the server's side of its gRPC call."""

    def __init__(self, servicer: Servicer, *, peer: str = "ipv4:192.0.2.1:1", held: bool = True) -> None:
        super().__init__(daemon=True)
        self.disconnect: Callable[[], None] = lambda: None
        self._servicer, self._peer, self._held = servicer, peer, held
        self.waits = threading.Event()
        self.start()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.disconnect = callback
        return True

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [presence.HELD] if self._held else []

    def peer(self) -> str:
        self.waits.set()
        return self._peer

    def run(self) -> None:
        answer = self._servicer.send_node_heartbeat(NODE, self)
        if isinstance(answer, Later):
            answer.wait()
        self.disconnect()  # gRPC calls it at the end of every request

    def connected(self) -> "Call":
        assert self.waits.wait(10)
        return self


class SilentCall:
    """The server's side of the gRPC calls of many heartbeats."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.callbacks.append(callback)
        return True

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [presence.HELD]

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"


@pytest.fixture
def left() -> list[str]:
    return []


@pytest.fixture
def servicer(monkeypatch: pytest.MonkeyPatch, left: list[str]) -> Servicer:
    monkeypatch.setattr(presence, "AWAY", 0.1)
    monkeypatch.setattr(presence, "ENDING", 0.1)
    present = presence.Presence(lambda: left.append("node"))
    return Servicer(State(present), present)


def test_a_node_is_offline_soon_after_its_connection_ended(servicer: Servicer, left: list[str]) -> None:
    state = servicer.state
    assert state.activate_node(NODE, 30)
    heartbeat = Call(servicer).connected()
    assert NODE in state.online
    heartbeat.disconnect()
    assert wait_until(lambda: NODE not in state.online and bool(left), 10)


def test_the_end_of_an_old_connection_does_not_end_a_new_one(servicer: Servicer, left: list[str]) -> None:
    old = Call(servicer).connected()
    new = Call(servicer).connected()  # the node noticed first that the old connection is lost
    old.disconnect()
    lost = Call(servicer).connected()
    lost.disconnect()
    latest = Call(servicer).connected()  # back in time
    for each in (old, new, lost):
        each.join(10)
    time.sleep(3 * presence.AWAY)
    assert NODE in servicer.state.online
    assert not left
    latest.disconnect()
    assert wait_until(lambda: NODE not in servicer.state.online, 10)


def test_a_restarted_node_is_let_in_at_once_and_a_second_one_is_not(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "AWAY", 60.0)  # it still counts as online
    state = servicer.state
    assert state.activate_node(NODE, 30)
    heartbeat = Call(servicer).connected()
    began = time.monotonic()
    servicer.present.wait_for_end(NODE)
    assert time.monotonic() - began >= presence.ENDING
    assert not state.activate_node(NODE, 30)
    heartbeat.disconnect()
    began = time.monotonic()
    servicer.present.wait_for_end(NODE)
    assert time.monotonic() - began < presence.ENDING
    assert state.activate_node(NODE, 30)


def test_a_node_that_never_sends_a_heartbeat_does_not_stay_online(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "LATE", 0.1)
    assert servicer.state.activate_node(NODE, 30)
    assert wait_until(lambda: NODE not in servicer.state.online, 10)


def test_a_stock_node_stays_online_between_its_heartbeats(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "LATE", 0.1)
    assert servicer.state.activate_node(NODE, 30)
    Call(servicer, held=False).join(10)
    time.sleep(0.3)
    assert NODE in servicer.state.online
    assert not servicer.state.activate_node(NODE, 30)


def test_a_node_is_marked_as_soon_as_the_database_is_free(servicer: Servicer) -> None:
    state = servicer.state
    heartbeat = Call(servicer).connected()
    state.locked = True
    heartbeat.disconnect()
    time.sleep(3 * presence.AWAY)
    assert NODE in state.online
    state.locked = False
    assert wait_until(lambda: NODE not in state.online, 10)


def test_a_heartbeat_that_arrives_while_its_node_is_marked_keeps_the_node_online(
    servicer: Servicer, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, marked = servicer.state, threading.Event()

    def deactivate_node(node_id: int) -> bool:
        Call(servicer).connected()
        was_online = State.deactivate_node(state, node_id)
        marked.set()
        return was_online

    lost = Call(servicer).connected()
    monkeypatch.setattr(state, "deactivate_node", deactivate_node)
    lost.disconnect()
    assert marked.wait(10)
    assert wait_until(lambda: NODE in state.online, 10)
    assert not left


def test_a_node_that_is_marked_after_its_heartbeat_was_acknowledged_is_back(
    servicer: Servicer, left: list[str]
) -> None:
    state, acknowledged = servicer.state, threading.Event()

    def wait_until_marked() -> None:
        acknowledged.set()
        assert wait_until(lambda: bool(left), 10)

    lost = Call(servicer).connected()
    servicer.acknowledged = wait_until_marked
    Call(servicer)
    assert acknowledged.wait(10)
    lost.disconnect()
    assert wait_until(lambda: bool(left), 10)
    assert wait_until(lambda: NODE in state.online, 10)


def test_a_stream_of_heartbeats_and_activations_starts_two_threads(servicer: Servicer) -> None:
    before = set(threading.enumerate())
    state = servicer.state
    for _ in range(50):
        assert state.activate_node(NODE, 30)
    calls = [Call(servicer).connected() for _ in range(50)]
    for call in calls[:-1]:
        call.join(10)  # the next one has replaced it
    started = set(threading.enumerate()) - before - set(calls)
    assert len(started) <= 2, started  # one marks absent nodes, one looks for silent connections


def test_a_held_heartbeat_occupies_no_thread(servicer: Servicer) -> None:
    call, answers, pool = SilentCall(), [], ThreadPoolExecutor(2)
    threads = threading.active_count()
    for node in range(2000):
        heartbeat = servicer.send_node_heartbeat(node, call)
        assert isinstance(heartbeat, Later)
        heartbeat.run(pool.submit, answers.append, answers.append)
    assert threading.active_count() <= threads + 3  # for silent connections, for absent nodes, and alarms
    assert not answers
    for end in call.callbacks:
        end()
    pool.shutdown()
    assert len(answers) == 2000
    assert all(answer.success for answer in answers)


@linux
@pytest.mark.parametrize(
    ("family", "address", "name"),
    [(socket.AF_INET, "127.0.0.1", "ipv4:127.0.0.1:{}"), (socket.AF_INET6, "::1", "ipv6:%5B::1%5D:{}")],
)
def test_a_connection_without_a_byte_counts_as_ended(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily, address: str, name: str
) -> None:
    monkeypatch.setattr(presence, "LOOK", 0.05)
    monkeypatch.setattr(presence, "SILENCE", 0.5)
    try:
        listener = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener, socket.create_connection(listener.getsockname()[:2]) as device:
        accepted = listener.accept()[0]
        with accepted:
            before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
            peer = name.format(device.getsockname()[1])
            monkeypatch.setitem(sockets.forwarded, unquote(peer), accepted)
            Call(servicer, peer=peer).connected()
            for _ in range(12):
                device.send(b"x")
                time.sleep(0.1)
                assert NODE in servicer.state.online
            assert wait_until(lambda: NODE not in servicer.state.online, 10)
            time.sleep(0.2)
            assert len(os.listdir("/proc/self/fd")) <= before + 2  # noqa: PTH208


@contextlib.contextmanager
def connected(
    monkeypatch: pytest.MonkeyPatch, buffer: int = 0
) -> Iterator[tuple[socket.socket, socket.socket, str]]:
    """Yield a device's end of a connection, the SuperLink's end, and the peer's name.

    ``buffer`` is the size of the device's buffer in bytes (default: the system's).
    """
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as device:
        if buffer:
            device.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        device.connect(listener.getsockname())
        peer = f"ipv4:127.0.0.1:{device.getsockname()[1]}"
        with listener.accept()[0] as accepted:
            monkeypatch.setitem(sockets.forwarded, peer, accepted)
            yield device, accepted, peer


@linux
def test_a_node_that_takes_a_model_slowly_and_sends_nothing_is_online(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its buffer is mostly full: everything that was sent is acknowledged, and nothing is under way."""
    monkeypatch.setattr(presence, "LOOK", 0.02)
    monkeypatch.setattr(presence, "SILENCE", 1.0)
    with connected(monkeypatch, buffer=16_384) as (device, accepted, peer):
        accepted.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                accepted.send(bytes(100_000))
        Call(servicer, peer=peer).connected()
        for _ in range(40):
            device.recv(2048)
            time.sleep(0.05)
            assert NODE in servicer.state.online


@linux
@pytest.mark.parametrize("download", [True, False])
def test_a_node_is_online_while_its_heartbeat_or_the_answer_waits_behind_a_model(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch, download: bool
) -> None:
    monkeypatch.setattr(presence, "HOLD", 0.1)
    monkeypatch.setattr(presence, "LATE", 0.3)
    with connected(monkeypatch) as (device, accepted, peer):
        source, sink = (accepted, device) if download else (device, accepted)

        def send() -> None:
            with contextlib.suppress(OSError):  # the sink has closed the connection
                source.sendall(bytes(100_000_000))

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        Call(servicer, peer=peer).join(10)
        for _ in range(15):  # five times as long as the next heartbeat may take
            sink.recv(4_000_000, socket.MSG_WAITALL)
            time.sleep(0.1)
            assert NODE in servicer.state.online
        # The sink reads no more, so nothing moves.
        assert wait_until(lambda: NODE not in servicer.state.online, 10)
        sink.close()
        sender.join(10)
        assert not sender.is_alive()


@linux
def test_a_node_that_only_pings_is_offline_without_its_next_heartbeat(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "HOLD", 0.1)
    monkeypatch.setattr(presence, "LATE", 0.3)
    with connected(monkeypatch) as (device, accepted, peer):
        device.sendall(bytes(1_000_000))  # what an earlier round moved
        accepted.recv(1_000_000, socket.MSG_WAITALL)
        Call(servicer, peer=peer).join(10)

        def pinged_and_offline() -> bool:
            with contextlib.suppress(BrokenPipeError):
                device.sendall(bytes(50))
            return NODE not in servicer.state.online

        assert wait_until(pinged_and_offline, 10)
