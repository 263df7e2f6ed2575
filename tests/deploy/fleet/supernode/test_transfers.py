"""Objects are fetched and sent with few requests, and asked again while they come."""

import threading
import time
from types import SimpleNamespace

import pytest
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
)

from deploy.fleet.duties.joined_objects import ENOUGH, MOST, SEPARATOR, join
from deploy.fleet.supernode import transfers
from deploy.fleet.supernode.connection import RunNotRunningError
from tests.deploy.fleet.duties.test_joined_objects import Joining, Servicer


def pull(servicer, names):
    def pull_object(name):
        servicer.requests += 1
        response = servicer.pull_object(PullObjectRequest(object_id=name))
        if not response.object_found:
            raise ObjectPullError(name, "")
        if not response.object_available:
            raise ObjectUnavailableError(name)
        return response.object_content

    return transfers.pull_all(names, pull_object, patience=0.0)


def push(servicer, contents):
    def push_object(name, content):
        servicer.requests += 1
        request = PushObjectRequest(object_id=name, object_content=content, session_id="session")
        if not servicer.push_object(request).stored:
            raise ObjectPushError(name, 0, "session")

    transfers.push(contents.items(), push_object)


def objects(count, size):
    return {f"{number:064x}": bytes([number % 251 + 1]) * size for number in range(count)}


@pytest.mark.parametrize(
    ("count", "size", "requests"),
    [(1, 10, 1), (20, 10, 1), (MOST + 1, 10, 2), (2 * MOST, 10, 2), (3, ENOUGH, 3), (8, ENOUGH // 4, 2)],
)
def test_a_message_takes_few_requests(count, size, requests, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    contents = objects(count, size)
    servicer = Joining(**contents)
    assert pull(servicer, list(contents)) == contents
    assert servicer.requests == requests
    servicer = Joining(**dict.fromkeys(contents, b""))
    push(servicer, contents)
    assert servicer.contents == contents
    assert servicer.requests == requests


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_large_objects_arrive_in_several_requests_at_a_time(threads, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: threads)
    contents = objects(40, ENOUGH // 3)
    servicer = Joining(**contents)
    assert pull(servicer, list(contents)) == contents
    servicer = Joining(**dict.fromkeys(contents, b""))
    push(servicer, contents)
    assert servicer.contents == contents


def test_few_objects_are_prepared_before_they_are_sent(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    prepared, sent, most = 0, 0, 0

    def contents():
        nonlocal prepared, most
        for number in range(20):
            prepared += 1
            most = max(most, prepared - sent)
            yield f"{number:064x}", bytes(ENOUGH)

    def send(name, content):
        nonlocal sent
        sent += 1

    transfers.push(contents(), send)
    assert sent == 20
    assert most <= 3


def test_an_error_while_sending_ends_the_transfer():
    def send(name, content):
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        transfers.push(objects(50, ENOUGH).items(), send)


def test_a_slow_transfer_is_logged(monkeypatch, caplog):
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(transfers, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    progress = transfers.Progress("Received", 5)
    with caplog.at_level("INFO", logger="flwr"):
        for _ in range(6):
            progress.add(bytes(2_000_000))
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [
        "Received 6 MB of a message of 5 objects in 12 s",
        "Received 12 MB of a message of 5 objects in 24 s",
    ]


def test_a_superlink_that_knows_no_joined_requests_gets_single_requests():
    contents = objects(5, 10)
    servicer = Servicer(**contents)
    assert pull(servicer, list(contents)) == contents
    assert servicer.requests == 6
    servicer = Servicer(**dict.fromkeys(contents, b""))
    push(servicer, contents)
    assert servicer.contents == contents
    assert servicer.requests == 6


def test_an_object_that_has_not_arrived_is_requested_again_alone():
    contents = objects(5, 10)
    late = list(contents)[2]
    servicer = Joining(**(contents | {late: b""}))
    with pytest.raises(ObjectPullError):
        pull(servicer, list(contents))
    servicer.contents[late] = contents[late]
    assert pull(servicer, list(contents)) == contents


def test_an_object_that_is_not_expected_is_named():
    contents = objects(5, 10)
    servicer = Joining(**dict.fromkeys(list(contents)[:4], b""))
    with pytest.raises(ObjectPushError, match=list(contents)[4]):
        push(servicer, contents)


def test_a_slow_message_is_not_given_up_while_its_parts_come():
    began = time.monotonic()

    def pull_object(names):
        if SEPARATOR in names:
            raise ObjectPullError(names, "")  # as a SuperLink that knows no joined requests
        if time.monotonic() - began < 0.2 * int(names):
            raise ObjectUnavailableError(names)
        return names.encode()

    names = list(map(str, range(6)))
    assert sorted(transfers.pull_all(names, pull_object, patience=0.5)) == names
    assert time.monotonic() - began > 0.9


@pytest.mark.parametrize("count", [1, 3])
def test_a_message_whose_parts_do_not_come_is_given_up_and_one_with_unknown_parts_at_once(count):
    names, asked = list(objects(count, 1)), []

    def pull_object(names):
        asked.append(names)
        raise ObjectUnavailableError(names)

    began = time.monotonic()
    with pytest.raises(ObjectPullError, match=r"no part of its message has come for 0\.3 s"):
        transfers.pull_all(names, pull_object, patience=0.3)
    assert 0.3 < time.monotonic() - began < 10
    assert 3 < len(asked) < 20  # the pauses grow
    with pytest.raises(ObjectPullError):
        pull(Joining(), names)


def test_joined_answers_without_an_object_are_asked_again_but_not_for_ever():
    with pytest.raises(ObjectPullError, match="no part"):
        transfers.pull_all(
            ["a", "b"], lambda names: join([]) if SEPARATOR in names else unavailable(names), patience=0.1
        )


def unavailable(name):
    raise ObjectUnavailableError(name)


def test_objects_are_kept_as_they_come_and_the_end_of_a_run_ends_all_requests(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    contents, kept, over = objects(40, ENOUGH // 3), [], threading.Event()
    servicer = Joining(**contents)

    def pull_object(names):
        if len(kept) > 10:
            over.set()
            raise RunNotRunningError
        return servicer.pull_object(PullObjectRequest(object_id=names)).object_content

    with pytest.raises(RunNotRunningError):
        transfers.pull(list(contents), pull_object, lambda name, content: kept.append((name, content)))
    assert over.is_set()
    assert 10 < len(kept) < 30
    assert dict(kept).items() <= contents.items()
