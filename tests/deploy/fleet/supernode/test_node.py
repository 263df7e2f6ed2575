"""The loop of a SuperNode, with Flower's state and a stand-in for the connection."""

import hashlib
import io
import json
import logging
import threading
import time
import zipfile
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.run import Run

from deploy.fleet.duties import held_requests, joined_objects
from deploy.fleet.duties.joined_objects import SEPARATOR, join, parts
from deploy.fleet.protocol import names_in
from deploy.fleet.supernode import node, transfers
from deploy.fleet.supernode.connection import RunNotRunningError

FILE = io.BytesIO()
with zipfile.ZipFile(FILE, "w") as archive:
    archive.writestr(
        "pyproject.toml",
        """
        [project]
        name = "app"
        version = "1.0.0"
        license = {text = "none"}
        description = ""
        [tool.flwr.app]
        publisher = "us"
        [tool.flwr.app.components]
        serverapp = "app:server"
        clientapp = "app:client"
        [tool.flwr.app.config]
        rounds = 3
        """,
    )
BUNDLE = FILE.getvalue()
HASH = hashlib.sha256(BUNDLE).hexdigest()


def message(run=1, number=3):
    metadata = Metadata(
        run_id=run,
        message_id="",
        src_node_id=1,
        dst_node_id=7,
        reply_to_message_id="",
        group_id=str(number),
        created_at=time.time(),
        ttl=60.0,
        message_type="train",
    )
    made = make_message(metadata=metadata, content=RecordDict({"config": ConfigRecord({"round": number})}))
    metadata.__dict__["_message_id"] = made.object_id
    return made


class Connection:
    """A SuperLink with one node, number 7, and the messages that it gets."""

    node_id = 7

    def __init__(self, *messages, bundle=BUNDLE):
        self.messages = list(messages)
        self.bundle = bundle
        self.asked = []
        self.confirmed = []
        self.sent = []  # complete replies
        self.runtimes = []
        self.announced = []
        self.contents = {}
        self.over = set()  # methods that say that the run is over
        self.missing = False  # whether the objects of messages do not come
        self.carries = False  # whether a message carries its objects

    def _ask(self, method):
        self.asked.append(method)
        if method in self.over:
            raise RunNotRunningError

    def receive(self):
        self._ask("receive")
        if not self.messages:
            return None
        first = self.messages.pop(0)
        objects = get_all_nested_objects(first) if self.carries else {}
        contents = {name: each.deflate() for name, each in objects.items()}
        return remove_content_from_message(first), get_object_tree(first), contents

    def get_run(self, run_id):
        self._ask("get_run")
        run = Run.create_empty(run_id)
        run.fab_hash = HASH
        return run

    def get_fab(self, fab_hash, run_id):
        self._ask("get_fab")
        return Fab(fab_hash, self.bundle, {})

    def pull_object(self, run_id, names):
        self._ask("pull_object")
        if self.missing:
            raise ObjectUnavailableError(names)
        found = {
            name: each.deflate() for source in known for name, each in get_all_nested_objects(source).items()
        }
        if SEPARATOR in names:
            return join(found[name] for name in names.split(SEPARATOR))
        return found[names]

    def confirm(self, run_id, message_id):
        self.confirmed.append((run_id, message_id))
        self._ask("confirm")

    def send(self, reply, tree, runtime, contents):
        self._ask("send")
        self.runtimes.append(runtime)
        self.announced.append(reply)
        if contents:
            objects = dict(zip(names_in(tree), contents, strict=True))
            self.sent.append(inflate_object_from_contents(reply.metadata.message_id, objects))
            return set(), "session"
        return {each.object_id for each in iterate_object_tree(tree)}, "session"

    def push_object(self, run_id, session, names, content):
        self.asked.append("push_object")
        assert session == "session"
        self.contents |= parts(names, content)
        reply = self.announced[-1]
        if reply.metadata.message_id in self.contents:  # the last of them
            self.sent.append(inflate_object_from_contents(reply.metadata.message_id, dict(self.contents)))


known = []


@pytest.fixture(autouse=True)
def forget():
    known.clear()


def make(connected, trust=None):
    known.extend(connected.messages)
    state = node.node_state(InMemoryObjectStore())
    state.set_node_id(connected.node_id)
    return node.Node(connected, state, {"partition": 2}, trust), state


def messages(state, **filters):
    name = "get_messages_legacy" if hasattr(state, "get_messages_legacy") else "get_messages"  # Flower 1.40
    return getattr(state, name)(**filters)


def work(state, delay=0.0):
    """Be the executor and the ClientApp for the next message."""

    def run():
        assert state.due.wait(30)
        state.due.clear()
        (task,) = state.get_tasks(statuses=["pending"])
        assert state.claim_task(task.task_id)
        assert state.activate_task(task.task_id)
        (received,) = messages(state, run_ids=[task.run_id], is_reply=False)
        state.record_message_processing_start(received.metadata.message_id)
        names = [
            each.object_id
            for each in iterate_object_tree(state.object_store.get_object_tree(received.metadata.message_id))
        ]
        contents = transfers.pull_all(names, lambda name: pull_from(state, task.run_id, name), patience=20)
        got = inflate_object_from_contents(received.metadata.message_id, contents)
        reply = Message(RecordDict({"config": ConfigRecord(dict(got.content["config"]))}), reply_to=received)
        tree = get_object_tree(reply)
        reply.metadata.__dict__["_message_id"] = tree.object_id
        state.record_message_processing_end(received.metadata.message_id)
        time.sleep(delay)
        session = state.start_session(task.run_id)
        bare = remove_content_from_message(reply)
        stored, lacking = state.store_message_and_object_tree(bare, tree, session)
        assert stored
        objects = get_all_nested_objects(reply)
        for name in lacking:
            time.sleep(delay)
            if not state.store_object(task.run_id, session, name, objects[name].deflate()):
                return  # the reply has been given up
        state.finish_task(task.task_id, "completed", "")

    def run_or_fail():
        try:
            run()
        except BaseException as error:
            state.replies.put(error)  # so that the loop fails too, and does not wait for ever
            raise

    thread = threading.Thread(target=run_or_fail, daemon=True)
    thread.start()
    return thread


def pull_from(state, run, name):
    content = state.get_object(run, name)
    if content is None:
        raise ObjectPullError(name, "it is not known")
    if not content:
        raise ObjectUnavailableError(name)
    return content


def test_a_message_is_received_and_its_reply_is_sent_part_by_part_without_delay():
    first = message()
    connected = Connection(first)
    loop, state = make(connected)
    app = work(state, delay=0.1)
    began = time.monotonic()
    loop.step()
    assert time.monotonic() - began < 5  # Flower's loop would sleep .5 s for each part
    app.join(10)
    (reply,) = connected.sent
    assert reply.metadata.reply_to_message_id == first.metadata.message_id
    assert reply.content["config"]["round"] == 3
    assert connected.confirmed == [(1, first.metadata.message_id)]
    assert connected.runtimes[0] > 0
    context = state.get_run_series_context(0)
    assert context.run_config == {"rounds": 3}
    assert context.node_config == {"partition": 2}
    assert state.get_fab(HASH).content == BUNDLE
    assert state.msg_store == {}
    assert reply.metadata.message_id not in state.object_store.store


@pytest.mark.parametrize(("limit", "pushes"), [(joined_objects.CARRIED, []), (100, ["push_object"])])
def test_a_message_that_carries_its_objects_is_answered_by_a_small_reply_that_carries_its_own(
    monkeypatch, limit, pushes
):
    monkeypatch.setattr(node, "CARRIED", limit)
    connected = Connection(message())
    connected.carries = True
    loop, state = make(connected)
    app = work(state)
    loop.step()
    app.join(10)
    assert [reply.content["config"]["round"] for reply in connected.sent] == [3]
    assert connected.asked == ["receive", "get_run", "get_fab", "confirm", "send", *pushes]


def test_a_reply_is_sent_only_when_its_tree_is_stored(monkeypatch):
    """Flower stores the reply first, which wakes the loop."""
    connected = Connection(message())
    loop, state = make(connected)
    looked = threading.Event()
    preregister, look_up = state.preregister_object_tree, state.object_store.get_object_tree

    def later(tree, session):
        looked.wait(1.0)  # set only if the loop looks too early
        return preregister(tree, session)

    def noted(name):
        try:
            return look_up(name)
        finally:
            if threading.current_thread() is loops:
                looked.set()

    loops = threading.current_thread()
    monkeypatch.setattr(state, "preregister_object_tree", later)
    monkeypatch.setattr(state.object_store, "get_object_tree", noted)
    app = work(state)
    end = threading.Timer(20, state.replies.put, [SimpleNamespace(metadata=None)])  # if the reply is lost
    end.start()
    loop.step()
    end.cancel()
    app.join(10)
    assert len(connected.sent) == 1


def test_a_run_and_its_bundle_are_fetched_once():
    connected = Connection(message(), message())
    loop, state = make(connected)
    for _ in range(2):
        app = work(state)
        loop.step()
        app.join(10)
    assert [connected.asked.count(each) for each in ("get_run", "get_fab")] == [1, 1]
    assert [each.has_error() for each in connected.sent] == [False, False]


@pytest.mark.parametrize(
    ("trusted", "bundle", "reason"),
    [
        ("0" * 64, BUNDLE, "this device trusts"),
        (HASH, b"another", "its content has another hash"),
        ("", b"another", "its content has another hash"),
    ],
    ids=["not trusted", "trusted, changed", "changed"],
)
def test_an_app_that_is_not_trusted_is_not_stored_and_its_message_is_answered(
    tmp_path, caplog, trusted, bundle, reason
):
    settings = tmp_path / "client.json"
    settings.write_text(json.dumps({"bundle": trusted}))
    connected = Connection(message(), bundle=bundle)
    loop, state = make(connected, settings)
    with caplog.at_level(logging.INFO, "flwr"):
        loop.step()
    (reply,) = connected.sent
    assert reply.error.code == ErrorCode.INVALID_FAB
    assert reply.error.reason.startswith(f"Refused bundle {HASH} of run 1: {reason}")
    assert f"Refused bundle {HASH}" in caplog.text
    assert "Accepted bundle" not in caplog.text
    assert not state.due.is_set()
    assert (state.get_run(1), state.get_fab(HASH), state.get_tasks()) == (None, None, [])
    assert "pull_object" not in connected.asked


def test_a_trusted_file_that_is_no_bundle_is_answered_with_an_error(monkeypatch):
    monkeypatch.setattr(f"{__name__}.HASH", hashlib.sha256(b"no bundle").hexdigest())
    connected = Connection(message(), bundle=b"no bundle")
    loop, state = make(connected)
    loop.step()
    (reply,) = connected.sent
    assert reply.error.code == ErrorCode.INVALID_FAB
    assert "cannot be read" in reply.error.reason
    assert state.get_run(1) is None


@pytest.mark.parametrize("run_is_over", [False, True])
def test_a_message_whose_parts_never_come_is_given_up_and_answered(monkeypatch, run_is_over):
    monkeypatch.setitem(transfers.pull.__kwdefaults__, "patience", 0.3)
    first = message()
    connected = Connection(first)
    connected.missing = True
    connected.over = {"confirm"} if run_is_over else set()
    loop, state = make(connected)
    began = time.monotonic()
    loop.step()
    assert time.monotonic() - began < 10
    (reply,) = connected.sent
    assert reply.metadata.reply_to_message_id == first.metadata.message_id
    assert reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert "no part of its message has come" in reply.error.reason
    assert connected.confirmed == [(1, first.metadata.message_id)]
    assert messages(state, is_reply=False) == []  # and nothing is left to work on
    (task,) = state.get_tasks()
    assert task.status.sub_status == "failed"
    assert state.object_store.store == {}


@pytest.mark.parametrize("method", ["receive", "get_run", "get_fab", "pull_object", "confirm"])
def test_a_message_of_a_run_that_is_over_is_ignored(method, clock):
    connected = Connection(message())
    connected.over = {method}
    loop, state = make(connected)
    loop.step()
    assert connected.sent == []
    assert state.msg_store == {}
    assert all(each.status.sub_status == "failed" for each in state.get_tasks())


def test_a_reply_that_an_ignored_message_left_behind_delays_no_other():
    """The ClientApp has replied before the loop learns that the run of the message is over."""
    connected = Connection(message(run=1), message(run=2), message(run=3))
    _, second, third = connected.messages
    loop, state = make(connected)
    app = work(state)
    confirm = connected.confirm

    def replied_first(run, message_id):
        app.join(10)
        confirm(run, message_id)

    connected.confirm = replied_first
    connected.over = {"confirm"}
    loop.step()
    assert connected.sent == []
    connected.over = set()
    for number in (second, third):
        app = work(state)
        loop.step()
        assert connected.sent[-1].metadata.reply_to_message_id == number.metadata.message_id
    assert state.replies.empty()


def test_a_reply_whose_clientapp_dies_while_it_delivers_it_is_given_up(monkeypatch, caplog):
    """Flower's loop would wait for the missing part for ever."""
    monkeypatch.setattr(in_memory_corestate, "OBJECT_PUSH_SESSION_TTL_SECONDS", 0.5)
    monkeypatch.setattr(node, "LOOK", 0.1)
    connected = Connection(message())
    loop, state = make(connected)
    monkeypatch.setattr(state, "store_object", lambda *_: True)  # nothing of what it delivers arrives
    work(state)
    with caplog.at_level(logging.ERROR, "flwr"):
        loop.step()
    assert "the ClientApp has not delivered the object" in caplog.text
    assert connected.sent == []


def test_a_reply_that_cannot_be_sent_does_not_end_the_loop(caplog):
    connected = Connection(message(run=1), message(run=2))
    loop, state = make(connected)
    send = connected.send

    def fail(*_):
        raise OSError("a broken line")

    connected.send = fail
    work(state)
    with caplog.at_level(logging.ERROR, "flwr"):
        loop.step()
    assert "Failed to send message" in caplog.text
    assert "a broken line" in caplog.text
    connected.send = send
    work(state)
    loop.step()
    assert len(connected.sent) == 1


def test_a_supernode_pauses_longer_the_longer_no_message_came_and_not_after_a_held_request(clock):
    connected = Connection()
    held = 0.0

    def receive():
        clock.now += held

    connected.receive = receive
    loop, _ = make(connected)
    for seconds in (0.0, 0.2, 0.9, 0.9):
        clock.now += seconds
        loop.step()
    assert clock.slept == [node.SHORTEST_IDLE] * 4
    for _ in range(30):
        clock.now += 0.9
        loop.step()
    assert clock.slept[-1] == node.LONGEST_IDLE
    assert clock.slept == sorted(clock.slept)
    pauses = len(clock.slept)
    held = held_requests.HOLD
    loop.step()
    assert len(clock.slept) == pauses  # the held request replaced the pause


def test_what_the_loop_logs(caplog):
    connected = Connection(message(number=5))
    loop, state = make(connected)
    work(state)
    with caplog.at_level(logging.INFO, "flwr"):
        loop.step()
    found = [line for line in caplog.messages if line]
    received, sent = (f"{what}: train message (ID: " for what in ("Receiving", "Sending"))
    assert [line.partition("ID: ")[0] + "ID: " if "ID: " in line else line for line in found] == [
        "[RUN 1, ROUND 5]",
        received,
        f"Accepted bundle {HASH} of run 1",
        "Received successfully",
        "[RUN 1, ROUND 5]",
        sent,
        "Sent successfully",
    ]


def test_a_message_wakes_the_executor_and_a_reply_the_loop():
    state = node.node_state(InMemoryObjectStore())

    def stored(reply_to):
        return SimpleNamespace(metadata=SimpleNamespace(message_id="id", reply_to_message_id=reply_to))

    state.store_message(stored("other"))
    assert (state.replies.qsize(), state.due.is_set()) == (1, False)
    state.store_message(stored(""))
    assert (state.replies.qsize(), state.due.is_set()) == (1, True)
