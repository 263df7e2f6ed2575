"""What a SuperNode does about lost connections and refused requests, with a stand-in for gRPC's channel."""

import logging
import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from flwr.supercore.primitives.asymmetric import generate_key_pairs

from deploy.fleet import wire
from deploy.fleet.supernode import connection
from deploy.fleet.supernode.connection import RunNotRunningError
from deploy.flower.commands import NO_GRPC, WRONG_CLOCK

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
    return connection.Requests(Channel(iter(answers), clock, seconds), generate_key_pairs(), **limits)


def pull(sender):
    return sender.send("PullMessages", wire.METHODS["PullMessages"].request())


def test_a_request_is_signed_and_repeated_until_the_superlink_is_back(clock):
    channel = Channel(iter([Failure(UNAVAILABLE)] * 50 + ["answer"]), clock, 0.0)
    assert pull(connection.Requests(channel, generate_key_pairs())) == "answer"
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
    good = SimpleNamespace(success=True)
    answers = [good, Failure(UNAVAILABLE), Failure(UNAVAILABLE), good, good]
    channel = Channel(iter(answers), clock, 20.0)
    beats = connection.Heartbeats(connection.Requests(channel, generate_key_pairs()), "heartbeat")

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
