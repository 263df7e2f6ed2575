"""Attacks by strangers and registered nodes on a real SuperLink, over TLS, while an honest node goes on."""

import re
import socket
import struct
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import grpc
import pytest
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PullObjectRequest

from deploy.fleet import front_door, wire
from deploy.fleet.errors import RequestRefused
from deploy.fleet.gate import connection_gate
from deploy.fleet.threads import Threads
from deploy.processes.groups import wait_until
from deploy.processes.ports import LOOPBACK
from tests.support.fleet import PULL, App, Connection, allow_files

pytestmark = pytest.mark.network
SOON = 10.0  # s: an honest node waits 0.02 s on an idle machine
PULL_OBJECT = "/flwr.proto.Fleet/PullObject"
HEARTBEAT = "/flwr.proto.Fleet/SendNodeHeartbeat"
UNFINISHED = b"\0\0\0\1\0" + b"x" * 10  # the begin of a body of 256 bytes


@pytest.fixture(scope="module")
def honest(superlink):
    node = superlink.node("honest")
    node.activate()
    return node


@pytest.fixture
def attacker(superlink):
    """Return a node that is registered like any other."""
    node = superlink.node("attacker")
    node.activate()
    return node


@pytest.fixture
def growth(superlink):
    """Return a function that returns by how many MB the SuperLink's memory has grown at most."""
    superlink.forget_peak()
    before = superlink.memory
    return lambda: superlink.peak - before


def refusal(node, method, request, **options):
    with pytest.raises(grpc.RpcError) as error:
        node.ask(method, request, **options)
    return error.value


def is_refused(node):
    """Return True if the front door refuses a heartbeat of this node because it has too many requests."""
    try:
        node.latency()
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


def test_a_thousand_unfinished_requests_of_a_stranger_stop_nobody_and_are_logged(superlink, honest, growth):
    before = len(superlink.log)

    def attacked():
        attack = Connection(superlink)
        with suppress(OSError):  # closed by the SuperLink
            for _ in range(1000):
                attack.half_open(PULL, body=UNFINISHED)
        return attack

    def is_told_why():
        """Attack again: closed connections are logged at most once in `connection_gate.TOLD` seconds."""
        attacked()
        return "refused requests)" in superlink.log[before:]

    attacks = []
    for _ in range(5):
        attacks.append(attacked())
        assert honest.latency() < SOON
    assert wait_until(lambda: "Missing authentication metadata" in superlink.log[before:], 60)
    assert all(attack.closed(SOON) for attack in attacks)
    assert wait_until(is_told_why, 2 * connection_gate.TOLD)
    assert superlink.log[before:].count("Refused") <= 5  # not a line each
    assert growth() < 40
    assert superlink.threads < 150  # of 5,000 requests


@pytest.mark.parametrize("known", [False, True], ids=["stranger", "registered node"])
def test_a_compressed_request_is_not_inflated(superlink, honest, attacker, growth, known):
    bomb = bytes(5_000_000)
    credentials = grpc.ssl_channel_credentials(superlink.authority.read_bytes())
    for body in (bomb, bytes(5 * 10**7)) if known else (bomb,):  # 5 kB and 50 kB
        with grpc.secure_channel(
            superlink.address,
            credentials,
            [("grpc.max_send_message_length", -1)],
            compression=grpc.Compression.Gzip,
        ) as channel:
            pull = channel.unary_unary(PULL)
            with pytest.raises(grpc.RpcError) as error:
                pull(body, metadata=attacker.metadata if known else [], timeout=60)
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert growth() < 40
    assert honest.latency() < SOON


def test_unfinished_requests_of_a_node_occupy_few_threads_and_stop_only_itself(
    superlink, honest, attacker, growth
):
    threads = superlink.threads
    attacks = [Connection(superlink) for _ in range(4)]
    for attack in attacks:
        for _ in range(30):
            attack.half_open(PULL, attacker.metadata, UNFINISHED)
    assert honest.latency() < SOON
    assert wait_until(lambda: is_refused(attacker), 10)  # once enough of the requests have arrived
    assert superlink.threads < threads + 60
    assert growth() < 40
    for attack in attacks:
        attack.close()
    assert wait_until(lambda: not attacker.latency() > SOON, 10)  # whoever hangs up may come back


@pytest.mark.parametrize(
    ("method", "kind", "options"),
    [
        ("PullMessages", PullMessagesRequest, {}),
        ("SendNodeHeartbeat", SendNodeHeartbeatRequest, {"heartbeat_interval": 30}),
    ],
)
def test_answered_requests_of_a_connection_do_not_count_as_under_way(
    superlink, attacker, method, kind, options
):
    request = kind(node=attacker.id, **options)
    ask = attacker.connect()[method]
    # A node's next request ends the last one, which was held. gRPC allows 16 requests under way.
    metadata = [*attacker.metadata, wire.HELD]
    answers = []
    for _ in range(60):
        answers.append(ask.future(request, metadata=metadata, timeout=60))
        # The SuperLink may handle requests in another order than they were sent, and holds one of them.
        assert wait_until(lambda: sum(not each.done() for each in answers) < 3, 60)
    for answer in answers:
        assert not answer.done() or answer.result() is not None
        answer.cancel()


def closed_door(arrived):
    """Return a front door without a server. `arrived` returns how many bytes of models a node has sent."""
    gate, replies = SimpleNamespace(arrived=arrived), SimpleNamespace()
    return front_door.FrontDoor(None, gate, 0, replies, Threads(front_door.BUSY))


class Unfinished:
    """A request whose body never comes, until it is cancelled."""

    def __init__(self):
        self.cancelled = threading.Event()

    def cancel(self):
        self.cancelled.set()

    def __next__(self):
        self.cancelled.wait(60)
        raise ConnectionError


def test_colluding_nodes_do_not_cancel_the_slow_upload_of_another(monkeypatch):
    monkeypatch.setattr(front_door, "WAITING_CALLS", 16)
    door = closed_door(lambda node: 0)
    slow = [Unfinished() for _ in range(2)]  # began before the others
    attacks = [Unfinished() for _ in range(4 * front_door.CALLS_PER_NODE)]

    def read(call, node):
        with pytest.raises(ConnectionError):
            door._read(wire.METHODS["PullMessages"], call, call, node)

    with ThreadPoolExecutor(64) as pool:
        for number, call in enumerate(slow + attacks):
            pool.submit(read, call, 0 if call in slow else 1 + number % 4)
            assert wait_until(lambda call=call: call in door._waiting or call.cancelled.is_set(), 10)
        cancelled = [call.cancelled.is_set() for call in attacks]
        assert sum(cancelled) == len(attacks) + len(slow) - 16
        assert cancelled == sorted(cancelled, reverse=True)  # of each node, the oldest
        assert not any(call.cancelled.is_set() for call in slow)
        for call in slow + attacks:
            call.cancel()
    assert not door._waiting


def test_a_body_that_takes_long_is_cancelled_unless_it_moves(monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: seconds)
    monkeypatch.setattr(front_door, "time", clock)
    seconds, sent = 0.0, Counter[int]()
    door = closed_door(lambda node: sent[node])
    moving, standing = Unfinished(), Unfinished()
    with door.waiting(moving, 1), door.waiting(standing, 2):
        for seconds in range(0, 600, 10):
            sent[1] += 10 * front_door.SLOWEST
            sent[2] += 1000
            door._cancel_late()
            assert not moving.cancelled.is_set()
            assert standing.cancelled.is_set() == (seconds > front_door.WAITING_SECONDS)


def test_answers_that_a_node_does_not_take_use_a_bounded_amount_of_memory(
    superlink, honest, attacker, growth
):
    app = App(superlink)
    app.send(attacker, 4_500_000)
    tree = attacker.ask("PullMessages", PullMessagesRequest(node=attacker.id)).message_object_trees[0]
    while tree.children:  # the last one holds the data
        tree = tree.children[-1]
    pull = PullObjectRequest(node=attacker.id, run_id=app.run.run_id, object_id=tree.object_id)
    attacks = [Connection(superlink, window=0) for _ in range(connection_gate.PER_NODE)]
    for attack in attacks:
        for _ in range(front_door.CALLS_PER_NODE):
            attack.half_open(PULL_OBJECT, attacker.metadata, body_of(pull))
    assert wait_until(lambda: growth() > 8 * 4, 10)
    assert honest.latency() < SOON
    assert growth() < 250
    for attack in attacks:
        attack.close()
    app.close()


def body_of(request):
    content = request.SerializeToString()
    return struct.pack("!BI", 0, len(content)) + content


def test_colluding_nodes_that_take_no_answer_leave_threads_for_others(superlink, honest):
    """An answer that was held is sent by a thread, which waits until the node takes it."""
    allow_files(4096)
    attackers = [superlink.node(f"takes nothing {n}") for n in range(130)]
    attacks = []
    assert len(attackers) * front_door.CALLS_PER_NODE > front_door.WAITING_CALLS + front_door.BUSY
    for attacker in attackers:
        attacker.activate()
        body = body_of(SendNodeHeartbeatRequest(node=attacker.id, heartbeat_interval=30))
        attacks.append(Connection(superlink, window=0))
        metadata = attacker.metadata
        for _ in range(front_door.CALLS_PER_NODE):
            attacks[-1].half_open(HEARTBEAT, metadata, body)
    assert wait_until(lambda: superlink.threads > front_door.WAITING_CALLS, 20)
    for _ in range(3):
        assert honest.latency() < SOON
    for each in attacks:
        each.close()


class Call:
    """A request whose node may hang up."""

    def __init__(self, *, gone=False):
        self.hang_up = None
        self._gone = gone

    def add_callback(self, callback):
        self.hang_up = callback
        return not self._gone


def test_a_request_counts_until_it_is_handled_even_if_its_node_has_hung_up(monkeypatch):
    """Else a node that resets each request at once would occupy ever more threads."""
    door = closed_door(lambda node: 0)
    calls = [Call() for _ in range(front_door.CALLS_PER_NODE)]
    with ExitStack() as handled:
        for call in calls:
            handled.enter_context(door._under_way(7, call))
            call.hang_up()
        with pytest.raises(RequestRefused, match="8 requests of node 7 are under way"):
            handled.enter_context(door._under_way(7, Call()))
    with ExitStack() as handled:
        handled.enter_context(door._under_way(7, call := Call()))
    assert door._per_node == {7: 1}  # the node has not received the answer
    call.hang_up()
    with pytest.raises(RequestRefused, match="hung up"), ExitStack() as handled:
        handled.enter_context(door._under_way(7, Call(gone=True)))
    assert not door._per_node
    assert not door._calls


def test_large_requests_are_refused(superlink, attacker, growth):
    large = GetFabRequest(node=attacker.id, hash_str="x" * 5 * 10**7)
    assert refusal(attacker, "GetFab", large).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    large = GetFabRequest(node=attacker.id, hash_str="x" * front_door.SMALL_BODY)
    assert refusal(attacker, "GetFab", large).code() is grpc.StatusCode.PERMISSION_DENIED
    assert growth() < 40


def test_idle_connections_do_not_keep_newcomers_out(superlink, honest, growth):
    allow_files(4096)
    idle = [socket.create_connection((LOOPBACK, superlink.port)) for _ in range(1500)]
    assert honest.latency() < SOON

    def closed():
        return len(idle) - sum(map(is_open, idle))

    assert wait_until(lambda: closed() >= 1500 - connection_gate.STRANGERS, 8)  # before `FIRST_REQUEST`
    assert honest.latency() < SOON
    assert growth() < 150
    for each in idle:
        each.close()


def is_open(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_a_node_is_activated_with_its_own_key_only_and_nobody_acts_for_another(superlink, honest, attacker):
    absent = superlink.node("absent")
    for method, request, reason in (
        (
            "ActivateNode",
            ActivateNodeRequest(public_key=absent.public, heartbeat_interval=30),
            "Another node's key",
        ),
        (
            "SendNodeHeartbeat",
            SendNodeHeartbeatRequest(node=honest.id, heartbeat_interval=30),
            "Invalid node ID",
        ),
        ("DeactivateNode", DeactivateNodeRequest(node_id=honest.number), "Invalid node ID"),
    ):
        error = refusal(attacker, method, request)
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        line = rf"\[/flwr.proto.Fleet/{method}\] Refused: {reason}, from ipv4:127.0.0.1:\d+"
        assert wait_until(lambda line=line: re.search(line, superlink.log), 10)
    absent.activate()


def test_what_a_node_sends_cannot_command_the_operators_terminal(superlink, attacker, app):
    hostile = "\x1b[2J\x1b]52;c;aGk=\x07\x9b"
    refusal(attacker, "GetFab", GetFabRequest(node=attacker.id, hash_str=hostile, run_id=app.run.run_id))
    assert wait_until(lambda: r"no app with the hash \x1b[2J\x1b]52;c;aGk=\x07\x9b" in superlink.log, 10)
    assert "\x1b[2J" not in superlink.log
    assert "\x07" not in superlink.log
