"""What a SuperNode does about lost connections and refused requests, with a stand-in for gRPC's channel."""

import importlib
import logging
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from flwr.supercore.primitives.asymmetric import generate_key_pairs

from deploy.fleet import wire
from deploy.fleet.supernode import connection
from deploy.fleet.supernode.connection import RunNotRunningError
from deploy.fleet.supernode.server_addresses import ENDURED
from deploy.flower.commands import NO_GRPC, WRONG_CLOCK
from deploy.tls import certificates

UNAVAILABLE, INTERNAL = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL
Answer = Callable[[], Any]


class Failure(grpc.RpcError):
    def __init__(self, code, details=""):
        self._code, self._details = code, details

    def code(self):
        return self._code

    def details(self):
        return self._details


class Channel:
    """Answers each request with the next of the given answers, of which failures are raised."""

    def __init__(self, answers, clock, seconds):
        self.headers = []
        self._answers, self._clock, self._seconds = answers, clock, seconds

    def unary_unary(self, path, **_):
        def send(request, timeout, metadata):
            self.headers.append(metadata)
            self._clock.now += self._seconds
            answer = next(self._answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return send

    def close(self):
        self.closed = True


def at(*channels, addresses="abc"):
    """Return a server with an address for each letter. Its channels are these, in the order of making."""
    left = list(channels)
    return connection.Server([f"{each}:1" for each in addresses[: len(channels)]], lambda _: left.pop(0))


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that only sleeps and requests move."""
    clock = SimpleNamespace(now=1000.0)

    def sleep(seconds):
        clock.now += seconds

    monkeypatch.setattr(
        connection, "time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now, sleep=sleep)
    )
    return clock


def requests(clock, *answers, seconds=0.0, **limits):
    return connection.Requests(at(Channel(iter(answers), clock, seconds)), generate_key_pairs(), **limits)


def pull(sender):
    return sender.send("PullMessages", wire.METHODS["PullMessages"].request())


def test_a_request_is_signed_and_repeated_until_the_superlink_is_back(clock):
    channel = Channel(iter([Failure(UNAVAILABLE)] * 50 + ["answer"]), clock, 0.0)
    assert pull(connection.Requests(at(channel), generate_key_pairs())) == "answer"
    names = [name for name, _ in channel.headers[-1]]
    assert names == [wire.PUBLIC_KEY, wire.TIME_STAMP, wire.SIGNATURE]
    assert channel.headers[0] == channel.headers[1] != channel.headers[-1]  # a new time stamp in time
    assert clock.now - 1000 < 50 * 1.2 * connection.LONGEST_RETRY


@pytest.mark.parametrize(("limits", "attempts"), [({"max_tries": 3}, 3), ({"max_seconds": 10.0}, 7)])
def test_the_attempts_are_limited_on_request(clock, limits, attempts):
    sender = requests(clock, *[Failure(UNAVAILABLE, str(n)) for n in range(50)], **limits)
    with pytest.raises(Failure) as error:
        pull(sender)
    assert abs(int(error.value.details()) + 1 - attempts) <= 1  # the pauses are random


def test_a_supernode_survives_the_errors_of_a_superlink_for_a_minute(clock):
    hidden = Failure(INTERNAL, connection.HIDDEN)
    locked = Failure(INTERNAL, "Exception calling application: (sqlite3.OperationalError) locked")
    for answers, seconds in (([hidden] * 4, 10), ([hidden, hidden, locked] * 50, 20), ([locked] * 50, 20)):
        assert pull(requests(clock, *answers, "answer", seconds=seconds)) == "answer"
    with pytest.raises(Failure):  # then the process ends, and its supervisor starts it again
        pull(requests(clock, *[hidden] * 50, "answer", seconds=10))
    with pytest.raises(Failure):
        pull(requests(clock, Failure(INTERNAL, "unknown node"), "answer"))


def test_an_answer_of_a_run_that_has_ended_is_dropped_and_a_refused_node_ends(clock, monkeypatch, caplog):
    with pytest.raises(RunNotRunningError):
        pull(requests(clock, Failure(grpc.StatusCode.PERMISSION_DENIED)))
    killed = []
    monkeypatch.setattr(os, "kill", lambda _, number: killed.append(number))
    text = f"{WRONG_CLOCK} is 9 s ahead of the server's"
    sender = requests(clock, *[Failure(grpc.StatusCode.UNAUTHENTICATED, text)] * 2)
    for _ in range(2):
        with caplog.at_level(logging.ERROR, "flwr"), pytest.raises(Failure):
            pull(sender)
    assert killed == [signal.SIGINT]  # once, although the end itself sends requests
    assert text in caplog.text


def test_a_failed_handshake_is_not_repeated(clock):
    with pytest.raises(Failure):
        pull(requests(clock, Failure(UNAVAILABLE, "Ssl handshake failed: self-signed certificate")))


def test_the_first_heartbeat_after_a_lost_connection_is_answered_at_once(clock):
    """Otherwise the device says for 20 s that the connection is lost, while the server lists it as online."""
    good = wire.METHODS["SendNodeHeartbeat"].response(success=True)
    answers = [good, Failure(UNAVAILABLE), Failure(UNAVAILABLE), good, good]
    channel = Channel(iter(answers), clock, 20.0)
    beats = connection.Heartbeats(connection.Requests(at(channel), generate_key_pairs()), "heartbeat")

    def wait(seconds=None):
        clock.now += seconds or 0.0
        return True

    beats._over = SimpleNamespace(wait=wait, is_set=lambda: len(channel.headers) == len(answers))
    beats._run()
    assert [wire.HELD in each for each in channel.headers] == [True, True, False, False, True]
    assert [wire.LONG in each for each in channel.headers] == [True, True, False, False, True]


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (UNAVAILABLE, "last error: UNKNOWN: Cannot check peer: missing selected ALPN property."),
        (
            UNAVAILABLE,
            "Failed parsing HTTP/2 (Trying to connect an http1.x server)",
        ),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!"),
    ],
)
def test_a_server_that_does_not_speak_grpc_is_named_in_one_line(clock, code, details):
    with pytest.raises(connection.NoGrpcError, match=NO_GRPC) as error:
        pull(requests(clock, Failure(code, details), "answer"))
    assert details in str(error.value)
    assert "\n" not in str(error.value)


LOST, BUSY = Failure(UNAVAILABLE, "Socket closed"), Failure(UNAVAILABLE, "The SuperLink cannot answer now")


def test_a_lost_connection_is_made_again_elsewhere_within_five_seconds(clock):
    channels = [Channel(iter([each]), clock, 0.0) for each in (LOST, LOST, "answer")]
    server = at(*channels)
    first, *others = server.line.address, *server._others
    assert pull(connection.Requests(server, generate_key_pairs())) == "answer"
    assert clock.now - 1000 < 5
    assert [each.closed for each in channels[:2]] == [True, True]
    assert [server.line.address, *server._others] == [
        others[1],
        first,
        others[0],
    ]  # those that failed are last


def test_the_order_of_the_addresses_is_random():
    addresses = [f"{letter}:1" for letter in "abcd"]
    firsts = {connection.Server(addresses, lambda _: Channel(None, None, 0)).line.address for _ in range(200)}
    assert firsts == set(addresses)


def test_a_server_that_answers_with_errors_is_left_only_after_several(clock):
    patient = Channel(iter([BUSY] * (ENDURED - 1) + ["answer"] + [BUSY] * 9), clock, 0.0)
    other = Channel(iter(["other"]), clock, 0.0)
    sender = connection.Requests(at(patient, other), generate_key_pairs())
    assert pull(sender) == "answer"
    assert pull(sender) == "other"
    assert len(patient.headers) == 2 * ENDURED


def test_an_address_of_another_server_is_passed_over_until_none_is_left(clock):
    foreign = Failure(UNAVAILABLE, "Ssl handshake failed: self-signed certificate")
    sender = connection.Requests(
        at(*(Channel(iter(each), clock, 0.0) for each in ([foreign], ["answer", foreign], [foreign]))),
        generate_key_pairs(),
    )
    assert pull(sender) == "answer"
    with pytest.raises(Failure):
        pull(sender)


def test_a_request_whose_channel_another_thread_has_left_is_repeated_at_once_over_the_new_one(clock):
    cancelled = Failure(grpc.StatusCode.CANCELLED, "Channel closed!")
    for error in (cancelled, ValueError("Cannot invoke RPC on closed channel!")):
        one, two = Channel(None, clock, 0.0), Channel(iter(["answer"]), clock, 0.0)
        server = at(one, two)

        class Moves:
            def __next__(self, server=server, error=error):
                server.failed(server.line, "Socket closed")
                raise error

        one._answers = Moves()
        began = clock.now
        assert (
            connection.Requests(server, generate_key_pairs()).send(
                "PullMessages", wire.METHODS["PullMessages"].request(), (wire.LONG,)
            )
            == "answer"
        )
        assert clock.now == began
        assert wire.LONG in two.headers[0]
    with pytest.raises(ValueError, match="bad request"):
        pull(requests(clock, ValueError("bad request"), "answer"))


def told(*better, known=("a:1", "b:1")):
    answer = wire.METHODS["SendNodeHeartbeat"].response(success=True)
    wire.tell_addresses(answer, known, better)
    return answer


def beats_of(clock, server):
    made = connection.Heartbeats(connection.Requests(server, generate_key_pairs()), "heartbeat")
    made._over = SimpleNamespace(wait=lambda seconds: False, is_set=lambda: False)
    return made


def test_an_idle_node_moves_to_an_address_that_answers_and_a_busy_one_stays(clock, monkeypatch):
    monkeypatch.setattr(connection, "MOVING", 0.0)
    good = wire.METHODS["SendNodeHeartbeat"].response(success=True)
    old = Channel(iter([told("b:1")] * 3), clock, 0.0)
    refuses, new = Channel(iter([LOST]), clock, 0.0), Channel(iter([good]), clock, 0.0)
    server = at(old, refuses, new, addresses="a")
    made, line = beats_of(clock, server), server.line
    made._beat(line, held=True)  # it works on a message
    server.idle.set()
    made._beat(line, held=True)
    assert refuses.closed
    assert server.line is line
    assert not hasattr(old, "closed")
    made._beat(line, held=True)
    assert server.line.address == "b:1"
    assert server.line.channel is new
    assert old.closed
    assert wire.MOVES in old.headers[0]
    assert wire.HELD not in new.headers[0]


def test_a_node_whose_server_has_one_name_moves_by_connecting_again(clock):
    old = Channel(iter([told("a:1", known=["a:1"])]), clock, 0.0)
    new = Channel(iter([wire.METHODS["SendNodeHeartbeat"].response(success=True)]), clock, 0.0)
    server = at(old, new, addresses="a")
    server.idle.set()
    beats_of(clock, server)._beat(server.line, held=True)
    assert server.line.channel is new
    assert server._others == []


def test_addresses_that_the_server_tells_are_kept_beside_those_that_were_given(tmp_path):
    file = tmp_path / "servers"
    server = connection.Server(["a:1"], lambda _: Channel(None, None, 0), file)
    server.learn(["a:1", "b:1", "c:1"])
    assert file.read_text() == "a:1,b:1,c:1"
    server.failed(server.line, "Socket closed")
    assert server.line.address in ("b:1", "c:1")
    assert server._others[-1] == "a:1"  # it has failed last
    server.learn(["d:1"])
    assert {server.line.address, *server._others} >= {"a:1", "d:1"}
    file.unlink()
    server.learn(["d:1"])
    assert not file.exists()  # nothing new
    server.learn([])
    assert "d:1" in server._others


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"known": 7}', b'{"known": ["a"]}', b'{"known": ["a:1", 3]}', b"\xff",
                b'{"known": ["a:1 b:1"], "better": ["c:1"]}', b"[" * 100_000]
)  # fmt: skip
def test_addresses_that_are_none_are_ignored(content):
    answer = wire.METHODS["SendNodeHeartbeat"].response(success=True)
    if content:
        wire.carry(answer, content)
    assert wire.told_addresses(answer) == ([], [])
    assert wire.told_addresses(told("b:1")) == (["a:1", "b:1"], ["b:1"])


class Listening(grpc.GenericRpcHandler):
    """A server on a free port of this machine that answers every request as one that knows the node."""

    def __init__(self, credentials=None):
        self.requests = 0
        self.server = grpc.server(ThreadPoolExecutor(2), handlers=[self])
        add = self.server.add_insecure_port
        if credentials is not None:
            add = partial(self.server.add_secure_port, server_credentials=credentials)
        self.port = add("127.0.0.1:0")
        self.server.start()

    def service(self, call):
        self.requests += 1
        answer = wire.METHODS["SendNodeHeartbeat"].response(success=True).SerializeToString()
        return grpc.unary_unary_rpc_method_handler(lambda request, context: answer)


@pytest.fixture
def listen():
    """Start servers that end with the test."""
    servers = []

    def start(*credentials):
        servers.append(Listening(*credentials))
        return servers[-1]

    yield start
    for each in servers:
        each.server.stop(None)


def test_a_node_moves_to_no_address_that_its_authority_did_not_certify(tmp_path, listen, monkeypatch):
    monkeypatch.setattr(connection, "ANSWERED_IN", 20.0)
    mine, other = (certificates.write_certificates(tmp_path / name) for name in ("mine", "other"))
    good, stranger = (
        listen(grpc.ssl_server_credentials([(each.key.read_bytes(), each.certificate.read_bytes())])).port
        for each in (mine, other)
    )
    plain = listen().port

    def secure(address):
        credentials = grpc.ssl_channel_credentials(mine.ca.read_bytes())
        return grpc.secure_channel(address, credentials, options=list(connection.OPTIONS.items()))

    server = connection.Server([f"localhost:{good}"], secure)
    server.idle.set()
    first = server.line
    node = importlib.import_module("flwr.proto.node_pb2").Node(node_id=1)
    request = wire.METHODS["SendNodeHeartbeat"].request(node=node)
    beats = connection.Heartbeats(connection.Requests(server, generate_key_pairs()), request)
    for address in (
        f"localhost:{stranger}",  # another authority's certificate
        f"127.0.0.2:{good}",  # a certificate for another name
        f"localhost:{plain}",  # no TLS
        "localhost:1",
    ):
        beats._move(address)
        assert server.line is first
    beats._move(f"127.0.0.1:{good}")
    assert server.line.address == f"127.0.0.1:{good}"
    assert beats._requests.once("SendNodeHeartbeat", request, 20).success
    server.line.channel.close()


def test_a_name_that_stands_for_several_machines_leads_to_all_of_them(listen):
    both = listen(), listen()
    name = "ipv4:" + ",".join(f"127.0.0.1:{each.port}" for each in both)  # as a name with two addresses
    for _ in range(40):  # by chance not both: 2e-12
        with grpc.insecure_channel(name, options=list(connection.OPTIONS.items())) as channel:
            wire.calls(channel)["SendNodeHeartbeat"](wire.METHODS["SendNodeHeartbeat"].request())
    assert all(each.requests for each in both)
    assert sum(each.requests for each in both) == 40
