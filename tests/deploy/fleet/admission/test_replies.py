"""Replies that are too large, answer nothing or cannot be read, to a real SuperLink and its ServerApp."""

import re
import resource
from contextlib import contextmanager
from inspect import unwrap
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import http_grid

from deploy.fleet.admission import reply_admission
from deploy.fleet.admission.delivered_objects import DeliveredObjects
from deploy.flower.patches.guards import reply_size
from strategies.flower.messages import read_reply
from tests.support.fleet import App, SuperLink, random_bytes
from tests.support.processes import wait_for

pytestmark = pytest.mark.network
MODEL = 2600  # bytes


@contextmanager
def checking(superlink):
    """Return a new ServerApp that checks replies as `flwr-serverapp` does, and has sent nothing yet."""
    with pytest.MonkeyPatch.context() as undone:
        for name in ("push_objects", "inflate_object_from_contents"):
            undone.setattr(http_grid, name, unwrap(getattr(http_grid, name)))
        undone.setattr(RuntimeHttpClient, "PullMessages", unwrap(RuntimeHttpClient.PullMessages))
        reply_size.patch()
        app = App(superlink)
        yield app
        app.close()


@pytest.fixture
def app(superlink):
    with checking(superlink) as app:
        yield app


def arrays(size):
    return RecordDict({"arrays": ArrayRecord([random_bytes(size)]), "metrics": MetricRecord({"loss": 0.5})})


def refused(node, method, request, reason):
    with pytest.raises(grpc.RpcError) as error:
        node.ask(method, request)
    assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert re.search(reason, error.value.details() or "")


def test_a_claimed_running_time_leaves_the_sum_of_the_run_finite(app, node, superlink):
    def total():
        (run,) = superlink.state.get_run_info(run_ids=[app.run.run_id])
        return run.clientapp_runtime

    def claim(seconds):
        announced.clientapp_runtime_list[:] = [seconds]
        node.ask("PushMessages", announced)

    before = total()
    app.send(node, MODEL)
    announced = node.announce(Message(arrays(MODEL), reply_to=node.receive()))
    claim(-1e308)
    for _ in range(3):
        claim(1e308)

    def stored():  # the sums are stored once a second, at a request
        node.latency()
        app.send(node, MODEL)
        node.receive()
        return total() - before >= 3 * reply_admission.LONGEST

    wait_for(stored, 20, lambda: f"the sum is {total()}")
    assert total() - before < 4 * reply_admission.LONGEST


def test_a_reply_as_large_as_the_model_arrives(app, node):
    for size in (MODEL, 3_000_000):
        sent = app.send(node, size)
        node.answer(Message(arrays(size), reply_to=node.receive()))
        (reply,) = app.replies(sent).values()
        assert reply.metadata.src_node_id == node.number
        (array,) = reply.content.array_records["arrays"].to_numpy_ndarrays()
        assert (array == random_bytes(size)).all()


def test_a_message_that_a_node_received_before_its_parts_counts_when_the_node_has_them(
    app, node, monkeypatch
):
    """The reply has more bytes than a message that was not measured allows."""
    early, push = [], http_grid.push_objects

    def push_late(*args, **kwargs):
        (message,) = node.ask("PullMessages", PullMessagesRequest(node=node.id)).messages_list
        early.append(message)
        return push(*args, **kwargs)

    monkeypatch.setattr(http_grid, "push_objects", push_late)
    sent = app.send(node, 2_000_000)
    (message,) = early
    confirm = ConfirmMessageReceivedRequest(
        node=node.id, run_id=message.metadata.run_id, message_object_id=message.metadata.message_id
    )
    node.ask("ConfirmMessageReceived", confirm)
    node.answer(Message(arrays(2_000_000), reply_to=message_from_proto(message)))
    assert app.replies(sent)[sent].has_content()


def test_a_reply_may_not_be_much_larger_than_what_was_sent(superlink, node):
    app = App(superlink)  # whose messages were all small
    sent = app.send(node, MODEL)
    superlink.forget_peak()
    before, disk = superlink.memory, superlink.disk
    with pytest.raises(grpc.RpcError, match="too large for what was asked") as error:
        node.answer(Message(arrays(30_000_000), reply_to=node.receive()))
    assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert superlink.peak - before < 60
    assert superlink.disk - disk < 20_000_000
    reply = app.replies(sent)[sent]  # at once
    assert reply.metadata.src_node_id == node.number
    failure = read_reply(reply, "num-examples").failure or ""
    assert re.search(r"the reply is too large .* at most 1048576 bytes .*COHORT_REPLY_BYTES", failure)
    app.close()


def test_a_reply_with_too_many_objects_is_answered_by_an_error_at_once(app, node):
    for count, reason in ((1100, "too many objects"), (5000, "the list of its objects has .* at most")):
        sent = app.send(node, MODEL)
        content = RecordDict({str(each): MetricRecord({"value": each}) for each in range(count)})
        with pytest.raises(grpc.RpcError):
            node.answer(Message(content, reply_to=node.receive()))
        node.latency()  # a heartbeat: a node without one for a while counts as offline
        reply = app.replies(sent)[sent]
        assert reply.metadata.src_node_id == node.number
        assert re.search(reason, reply.error.reason or "")


def test_a_part_that_travels_once_counts_as_often_as_it_is_used(app, node):
    """Chunks of zeros, tied weights and LoRA's B matrices are equal before the training, and differ after."""
    size, count = 200_000, 12
    zeros = [np.zeros(size, np.uint8)] * count
    model = RecordDict({"model": ArrayRecord(zeros), "other": ArrayRecord(zeros[:1])})
    trained = [random_bytes(size + each) for each in range(5 * count)]
    for replied, usable in ((trained[:count], True), (trained[:count] * 5, False), (trained, False)):
        (sent,) = app.push({node: model})
        reply = Message(RecordDict({"model": ArrayRecord(replied)}), reply_to=node.receive())
        if len({id(each) for each in replied}) * size > 4 * (count + 1) * size:
            with pytest.raises(grpc.RpcError, match="too large for what was asked"):
                node.answer(reply)
        else:
            node.answer(reply)
        assert app.replies(sent)[sent].has_content() == usable


def test_the_chunks_of_a_zero_initialised_model_count_each_time():
    content = RecordDict({"model": ArrayRecord([np.zeros(12_000_000, np.float32)])})
    objects = get_all_nested_objects(content)
    parts = {name: reply_size.part_of(each.deflate()) for name, each in objects.items()}
    size = reply_size.inflated_size(content.object_id, parts)
    assert len(parts) < 8
    assert size.objects == 3 + 10
    assert 48e6 < size.bytes < 48.01e6
    assert size.beside < 2000


def test_the_limit_is_that_of_the_largest_message_and_not_of_all_together(superlink, app, node, monkeypatch):
    others = [superlink.node("other") for _ in range(4)]
    for each in others:
        each.activate()
    allowed = []
    monkeypatch.setattr(
        reply_size,
        "allowed_bytes",
        lambda sent, original=reply_size.allowed_bytes: allowed.append(sent) or original(sent),
    )
    size = 600_000  # of each message: they differ, as with variates="scaffold"
    sizes = dict(zip([node, *others], range(size, size + 5), strict=True))
    for large in (True, False, True):  # later times, all arrays are there
        sent = app.send_all(sizes)
        asked = node.receive()
        if large:
            with pytest.raises(grpc.RpcError, match="too large for what was asked"):
                node.answer(Message(arrays(5 * size), reply_to=asked))
        else:
            node.answer(Message(arrays(3 * size), reply_to=asked))
        assert app.replies(sent[0])[sent[0]].has_error() == large
    beside, whole = allowed[::2], allowed[1::2]  # without the data of a message's arrays, and with it
    assert whole
    assert all(size < sent < 1.1 * size for sent in whole)
    assert all(sent < 2000 for sent in beside)


def test_a_message_that_is_no_reply_of_its_node_is_refused_and_leaves_nothing(superlink, app, node):
    other = superlink.node("other")
    other.activate()
    app.send(node, MODEL)
    reply = Message(arrays(MODEL), reply_to=node.receive())
    app.send(node, MODEL)
    later = Message(arrays(MODEL), reply_to=node.receive())
    sessions = "SELECT count(*) AS n FROM object_push_sessions"
    before = superlink.state.num_message_ins(), superlink.state.query(sessions)
    for changed, reason in (
        ({"src_node_id": other.number}, "not from this node to the ServerApp"),
        ({"dst_node_id": other.number}, "not from this node to the ServerApp"),
        ({"reply_to_message_id": ""}, "not a reply"),
        ({"src_node_id": 1, "dst_node_id": other.number, "reply_to_message_id": ""}, "not from this node"),
        ({"reply_to_message_id": "0" * 64}, "answers no message"),
        ({"run_id": 7}, "answers no message"),
        ({"message_id": "0" * 64}, "not a reply"),
        ({"ttl": float("nan")}, "not finite"),
        ({"message_type": "x" * 2 * reply_admission.MESSAGE}, "too large|at most"),
    ):
        refused(node, "PushMessages", node.announce(reply, **changed), reason)
    refused(node, "PushMessages", PushMessagesRequest(node=node.id), "one reply")
    request = node.announce(reply)
    request.message_object_trees[0].children.extend([ObjectTree(object_id="0" * 64)] * 2000)
    refused(node, "PushMessages", request, "too many objects")
    node.answer(later)
    request.message_object_trees[0].children.extend([ObjectTree()] * 2_000_000)  # a megabyte of them, parsed
    refused(node, "PushMessages", request, "at most")
    foreign = PushObjectRequest(node=node.id, run_id=app.run.run_id, object_id="0" * 64, session_id="x")
    refused(node, "PushObject", foreign, "no reply of this node")
    assert (superlink.state.num_message_ins(), superlink.state.query(sessions)) == before


def test_a_run_that_a_client_invents_leaves_nothing():
    class State:
        def rows(self, text, values=None):
            return []

    limits = reply_admission.ReplyAdmission(SimpleNamespace(state=State), lambda _: 0, DeliveredObjects())
    for run in range(1000):
        push = PushObjectRequest(run_id=run, object_content=b"x", session_id="")
        limits.check_object(push, 7)
    assert limits._saved == {}


def test_a_node_cannot_delete_the_messages_and_replies_of_another(superlink, app, node):
    attacker = superlink.node("attacker")
    attacker.activate()

    def confirm(message_id):
        return ConfirmMessageReceivedRequest(
            node=attacker.id, run_id=app.run.run_id, message_object_id=message_id
        )

    sent = app.send(node, MODEL)
    refused(attacker, "ConfirmMessageReceived", confirm(sent), "not for this node")
    reply = Message(arrays(MODEL), reply_to=node.receive())
    node.answer(reply)
    refused(attacker, "ConfirmMessageReceived", confirm(reply.object_id), "not for this node")
    assert app.replies(sent)[sent].has_content()


def test_a_message_is_answered_a_few_times_only(superlink, app, node):
    app.send(node, MODEL)
    asked = node.receive()
    for number in range(reply_admission.ATTEMPTS):
        node.ask("PushMessages", node.announce(Message(arrays(MODEL + number), reply_to=asked)))
    refused(node, "PushMessages", node.announce(Message(arrays(MODEL), reply_to=asked)), "too often")


def forged(reply, kind, body):
    """Return the objects of a reply of which the first one of a kind has another body, and their tree."""
    objects = {name: each.deflate() for name, each in get_all_nested_objects(reply).items()}
    new = {}  # names of changed objects
    done = False
    changed = {}
    for name, content in objects.items():  # children first
        head, _, old = content.partition(b"\0")
        title, children, _ = head.decode().split(" ")
        if title == kind and not done:
            old, done = body(old), True
        names = ",".join(new.get(each, each) for each in children.split(","))
        content = f"{title} {names} {len(old)}".encode() + b"\0" + old
        new[name] = get_object_id(content)
        changed[new[name]] = content

    def renamed(tree):
        return ObjectTree(object_id=new[tree.object_id], children=map(renamed, tree.children))

    return reply, changed, renamed(get_object_tree(reply))


def test_a_bad_reply_becomes_an_error_of_its_node_and_the_others_arrive(superlink, app, node):
    victim = superlink.node("victim")
    victim.activate()
    theirs = app.send(victim, MODEL)
    asked = victim.receive()
    bodies = {
        "a chunk a thousand times": ("Array", lambda old: repeat_chunk(old, 1000)),
        "no JSON": ("Array", lambda old: b"\xff{"),
        "deep JSON": ("Array", lambda old: b"[" * 100_000),
        "metrics": ("MetricRecord", lambda old: b"\xff" * 10),
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for what, (kind, body) in bodies.items():
        sent = app.send(node, MODEL)
        reply, objects, tree = forged(Message(arrays(900_000), reply_to=node.receive()), kind, body)
        request = node.announce(reply, message_id=tree.object_id)
        request.message_object_trees[0].CopyFrom(tree)
        node.push(request, objects)
        replies = app.replies(sent, theirs)
        assert list(replies) == [sent], what
        assert replies[sent].has_error(), what
        assert "cannot be used" in replies[sent].error.reason, what
        assert replies[sent].metadata.src_node_id == node.number
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
    sent = app.send(node, MODEL)
    reply = Message(arrays(MODEL), reply_to=node.receive())
    for body in (lambda old: b"\xff" * 10, lambda old: old.replace(sent.encode(), theirs.encode())):
        _, _, tree = forged(reply, "Message", body)
        request = node.announce(reply, message_id=tree.object_id)
        request.message_object_trees[0].CopyFrom(tree)
        refused(node, "PushMessages", request, "another hash")
    victim.answer(Message(arrays(MODEL), reply_to=asked))
    assert app.replies(theirs)[theirs].has_content()


def test_a_reply_may_hold_few_bytes_beside_its_arrays_even_if_the_model_is_large(app, node):
    """A record of many metrics takes 30 times its bytes of memory, and a second of CPU time for each MB."""
    for count, usable in ((1000, True), (600_000, False)):
        sent = app.send(node, 3_000_000)
        content = arrays(MODEL)
        content["many"] = ConfigRecord({"texts": [""] * count})
        node.answer(Message(content, reply_to=node.receive()))
        node.latency()  # a heartbeat: a node without one for a minute counts as offline
        reply = app.replies(sent)[sent]
        assert reply.has_content() == usable
    assert "beside its arrays" in reply.error.reason


def repeat_chunk(body, times):
    return body.replace(b'"arraychunk_ids": [0]', f'"arraychunk_ids": {[0] * times}'.encode())


def test_the_limit_can_be_raised_and_must_be_a_number(monkeypatch):
    assert reply_size.allowed_bytes(0) == 1024 * 1024
    assert reply_size.allowed_bytes(10**6) == 4 * 10**6
    monkeypatch.setenv(reply_size.VARIABLE, "5000000")
    reply_size.check_setting()
    assert reply_size.allowed_bytes(10**6) == 5 * 10**6
    monkeypatch.setenv(reply_size.VARIABLE, "5 MB")
    with pytest.raises(SystemExit, match="COHORT_REPLY_BYTES = 5 MB: must be a whole number of bytes"):
        reply_size.check_setting()


@pytest.mark.slow
def test_limits_survive_a_restart(tmp_path_factory):
    superlink = SuperLink(tmp_path_factory.mktemp("restarted"))
    try:
        node = superlink.node("node")
        node.activate()
        app = App(superlink)
        for _ in range(2):
            sent = app.send(node, 3_000_000)
            asked = node.receive()
            reply = Message(arrays(3_000_000), reply_to=asked)
            node.answer(reply)
            assert app.replies(sent)[sent].has_content()
        sent = app.send(node, 3_000_000)
        reply = Message(arrays(3_100_000), reply_to=node.receive())
        superlink.restart()
        node.answer(reply)
        assert app.replies(sent)[sent].has_content()
        app.close()
    finally:
        superlink.end()
