"""A node is online as long as its connection exists, and no longer."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from deploy.fleet import sockets, wire
from deploy.fleet.duties import held_requests, presence
from deploy.flower.deferred_answers import Later
from deploy.processes.groups import wait_until

NODE, PEER = 7, "ipv4:192.0.2.1:1"


class State:
    """Keeps which nodes are online, as the SuperLink's state does; `locked` as long as its database is."""

    def __init__(self, present):
        self.present = present
        self.online = set()
        self.intervals = {}  # of each node, as its last heartbeat stated it
        self.locked = False
        present.begin(self)

    def session(self):
        return nullcontext()

    def online_nodes(self):
        if self.locked:
            raise OSError("database is locked")
        return list(self.online)

    def activate_node(self, node_id, heartbeat_interval):
        if self.present.returns(node_id):
            self.go_offline(node_id)
        if node_id in self.online:
            return False
        self.online.add(node_id)
        return True

    def go_offline(self, node_id):
        if self.locked:
            raise OSError("database is locked")
        was_online = node_id in self.online
        self.online.discard(node_id)
        return was_online

    def note_heartbeat(self, node_id, heartbeat_interval):
        self.online.add(node_id)
        self.intervals[node_id] = heartbeat_interval
        return True


class Servicer:
    def __init__(self, state, present):
        self.state, self.present = state, present
        self.acknowledged = lambda: None

    def send_node_heartbeat(self, node, call):
        held, answer = wire.HELD in call.invocation_metadata(), SimpleNamespace(success=True)
        self.state.note_heartbeat(node, presence.FOREVER if held else 30)
        self.acknowledged()
        if held:
            return self.present.hold(answer, node, call)
        self.present.heard(node, 30)
        return answer


class Call(threading.Thread):
    """A heartbeat, and the server's side of its gRPC call."""

    def __init__(self, servicer, *, peer=PEER, held=True):
        super().__init__(daemon=True)
        self.disconnect = lambda: None
        self._servicer, self._peer, self._held = servicer, peer, held
        self.waits = threading.Event()
        self.start()

    def add_callback(self, callback):
        self.disconnect = callback
        self.waits.set()
        return True

    def invocation_metadata(self):
        return [wire.HELD] if self._held else []

    def peer(self):
        return self._peer

    def run(self):
        answer = self._servicer.send_node_heartbeat(NODE, self)
        if isinstance(answer, Later):
            answer.wait()
        self.disconnect()  # gRPC calls it at the end of every request

    def connected(self):
        assert self.waits.wait(10)
        return self


class SilentCall:
    """The server's side of the gRPC calls of many heartbeats."""

    def __init__(self):
        self.callbacks = []

    def add_callback(self, callback):
        self.callbacks.append(callback)
        return True

    def invocation_metadata(self):
        return [wire.HELD]

    def peer(self):
        return PEER


@pytest.fixture
def left():
    return []


@pytest.fixture
def servicer(monkeypatch, left):
    monkeypatch.setattr(presence, "AWAY", 0.1)
    monkeypatch.setattr(presence, "ENDING", 0.1)
    present = presence.Presence(lambda: left.append("node"))
    return Servicer(State(present), present)


def test_a_node_is_offline_soon_after_its_connection_ended(servicer, left):
    state = servicer.state
    assert state.activate_node(NODE, 30)
    heartbeat = Call(servicer).connected()
    assert NODE in state.online
    heartbeat.disconnect()
    assert wait_until(lambda: NODE not in state.online and bool(left), 10)


def test_the_end_of_an_old_connection_does_not_end_a_new_one(servicer, left):
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


def test_a_restarted_node_is_let_in_at_once_and_a_second_one_is_not(servicer, monkeypatch):
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


def test_a_node_that_never_sends_a_heartbeat_does_not_stay_online(servicer, monkeypatch):
    monkeypatch.setattr(presence, "FIRST", 0.1)
    assert servicer.state.activate_node(NODE, 30)
    assert wait_until(lambda: NODE not in servicer.state.online, 10)


def test_a_stock_node_stays_online_between_its_heartbeats(servicer, monkeypatch):
    monkeypatch.setattr(presence, "LATE", 0.1)
    assert servicer.state.activate_node(NODE, 30)
    Call(servicer, held=False).join(10)
    time.sleep(0.3)
    assert NODE in servicer.state.online
    assert not servicer.state.activate_node(NODE, 30)


def test_a_node_is_marked_as_soon_as_the_database_is_free(servicer):
    state = servicer.state
    heartbeat = Call(servicer).connected()
    state.locked = True
    heartbeat.disconnect()
    time.sleep(3 * presence.AWAY)
    assert NODE in state.online
    state.locked = False
    assert wait_until(lambda: NODE not in state.online, 10)


def test_a_heartbeat_that_arrives_while_its_node_is_marked_keeps_the_node_online(servicer, left, monkeypatch):
    state, marked = servicer.state, threading.Event()

    def go_offline(node_id):
        Call(servicer).connected()
        was_online = State.go_offline(state, node_id)
        marked.set()
        return was_online

    lost = Call(servicer).connected()
    monkeypatch.setattr(state, "go_offline", go_offline)
    lost.disconnect()
    assert marked.wait(10)
    assert wait_until(lambda: NODE in state.online, 10)
    assert not left


def test_a_node_that_is_marked_after_its_heartbeat_was_acknowledged_is_back(servicer, left):
    state, acknowledged = servicer.state, threading.Event()

    def wait_until_marked():
        acknowledged.set()
        assert wait_until(lambda: bool(left), 10)

    lost = Call(servicer).connected()
    servicer.acknowledged = wait_until_marked
    Call(servicer)
    assert acknowledged.wait(10)
    lost.disconnect()
    assert wait_until(lambda: bool(left), 10)
    assert wait_until(lambda: NODE in state.online, 10)


def test_a_stream_of_heartbeats_and_activations_starts_one_thread(servicer):
    before = set(threading.enumerate())
    state = servicer.state
    for _ in range(50):
        assert state.activate_node(NODE, 30)
    calls = [Call(servicer).connected() for _ in range(50)]
    for call in calls[:-1]:
        call.join(10)  # the next one has replaced it
    started = set(threading.enumerate()) - before - set(calls)
    assert len(started) <= 1, started  # it marks absent nodes


def test_a_held_heartbeat_occupies_no_thread(servicer):
    call, answers, pool = SilentCall(), [], ThreadPoolExecutor(2)
    threads = threading.active_count()
    for node in range(2000):
        heartbeat = servicer.send_node_heartbeat(node, call)
        assert isinstance(heartbeat, Later)
        heartbeat.run(pool.submit, answers.append, answers.append)
    assert threading.active_count() <= threads + 2  # for absent nodes, and alarms
    assert not answers
    for end in call.callbacks:
        end()
    pool.shutdown()
    assert len(answers) == 2000
    assert all(answer.success for answer in answers)


def test_a_node_is_online_while_its_heartbeat_or_the_answer_waits_behind_a_model(servicer, monkeypatch):
    """As long as its connection exists, and the heartbeat is not overdue."""
    looks = []
    monkeypatch.setattr(presence, "HOLD", 0.05)
    monkeypatch.setattr(presence, "LATE", 0.05)
    monkeypatch.setitem(sockets.forwarded, PEER, None)
    expect = servicer.present._expect
    monkeypatch.setattr(
        servicer.present, "_expect", lambda *each: looks.append(time.monotonic()) or expect(*each)
    )
    call = Call(servicer)
    call.join(10)
    assert wait_until(lambda: len(looks) > 5, 10)
    assert NODE in servicer.state.online
    monkeypatch.delitem(sockets.forwarded, PEER)
    assert wait_until(lambda: NODE not in servicer.state.online, 10)


def test_a_node_that_sends_no_further_heartbeat_is_offline_although_its_connection_exists(
    servicer, monkeypatch
):
    monkeypatch.setattr(presence, "HOLD", 0.05)
    monkeypatch.setattr(presence, "LATE", 0.05)
    monkeypatch.setattr(presence, "OVERDUE", 0.3)
    monkeypatch.setitem(sockets.forwarded, PEER, None)
    Call(servicer).join(10)
    assert wait_until(lambda: NODE not in servicer.state.online, 10)


def test_a_request_that_a_proxy_ends_takes_its_node_offline_although_the_connection_exists(
    servicer, monkeypatch
):
    monkeypatch.setitem(sockets.forwarded, PEER, None)
    Call(servicer).connected().disconnect()
    assert wait_until(lambda: NODE not in servicer.state.online, 10)


def test_the_state_is_not_written_while_a_heartbeat_is_held_and_expires_after_the_superlinks_end(
    servicer, monkeypatch
):
    state = servicer.state
    Call(servicer).connected()
    assert state.intervals == {NODE: presence.FOREVER}
    state.online.add(8)
    servicer.present.end()
    for node in (NODE, 8):
        assert 2 * state.intervals[node] == presence.RETURN + 2 * presence.RETURN_EACH
    state.intervals.clear()
    presence.Presence().begin(state)  # after a crash
    assert set(state.intervals) == {NODE, 8}
    state.locked = True
    servicer.present.end()  # the SuperLink ends all the same


def test_only_a_heartbeat_that_asks_for_it_is_held_for_minutes():
    def held(*metadata):
        return held_requests.seconds(SimpleNamespace(invocation_metadata=lambda: metadata), presence.HOLD)

    assert held(wire.HELD) == presence.HOLD  # a device with Flower 1.39 gives up after 25 s
    drawn = {held(wire.HELD, wire.LONG) for _ in range(100)}
    assert held_requests.SHORTEST_LONG <= min(drawn) < max(drawn) <= held_requests.LONGEST_LONG
    assert len(drawn) > 90
