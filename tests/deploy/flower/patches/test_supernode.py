"""A SuperNode sleeps only while there is nothing to do."""

import importlib
import sys
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.supercore.inflatable.inflatable_object import get_object_tree, iterate_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode.nodestate import NodeStateFactory

from deploy.fleet import held_requests
from deploy.flower.patches import shared, supernode
from deploy.processes.groups import LOST


class NodeState:
    def store_message(self, message: Any) -> str:
        return "id"

    def store_object(self, *arguments: Any) -> bool:
        return True


def test_a_supernode_pauses_longer_the_longer_no_message_came_and_not_after_a_held_request(
    clock: Any,
) -> None:
    state = NodeState()
    node = supernode.Node(state)
    for seconds in (0.0, 0.2, 0.9, 0.9):
        clock.now += seconds
        node.sleep(3)
    assert clock.slept == [supernode.SHORTEST_IDLE] * 4
    for _ in range(30):
        clock.now += 0.9
        node.sleep(3)
    assert clock.slept[-1] == supernode.LONGEST_IDLE
    assert clock.slept == sorted(clock.slept)
    pauses = len(clock.slept)
    clock.now += held_requests.HOLD
    node.sleep(3)
    assert len(clock.slept) == pauses  # the held request replaced the pause
    state.store_message(SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="")))
    clock.now += 0.1
    node.sleep(3)
    assert clock.slept[-1] == supernode.SHORTEST_IDLE


class Failure(Exception):  # noqa: N818 - stands for grpc.RpcError
    def details(self) -> str:
        return str(self.args[0])


def test_a_supernode_that_waits_for_a_reply_wakes_when_one_or_a_part_of_one_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supernode, "LOOK", 60.0)
    state = NodeState()
    node = supernode.Node(state)
    reply = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="id"))
    for notice in (lambda: state.store_message(reply), lambda: state.store_object(1, "", "id", b"")):
        timer = threading.Timer(0.1, notice)
        began = time.monotonic()
        timer.start()
        node.sleep(30)
        assert time.monotonic() - began < 15
    began = time.monotonic()
    node.sleep(0.2)  # an earlier notification does not wake it again
    assert time.monotonic() - began >= 0.2


def test_an_error_in_flowers_loop_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(supernode.os, "_exit", leave)

    def stopped() -> None:
        raise importlib.import_module(supernode._LOOP).RunNotRunningException

    for loop, said in ((stopped, "RunNotRunningException"), (lambda: None, "")):
        with pytest.raises(SystemExit) as ended:
            supernode.end_with(loop)
        assert ended.value.code == LOST
        assert said in capfd.readouterr().err
    with pytest.raises(SystemExit) as ended:
        supernode.end_with(lambda: sys.exit(305))
    assert ended.value.code == 305


@pytest.mark.parametrize("run_is_over", [False, True])
def test_a_message_whose_parts_never_come_is_given_up_and_answered(
    monkeypatch: pytest.MonkeyPatch, run_is_over: bool
) -> None:
    loop = importlib.import_module(supernode._LOOP)
    inflatable = importlib.import_module(shared.INFLATABLE)
    for name in ("pull_objects", "_pull_and_store_message"):
        monkeypatch.setattr(loop, name, getattr(loop, name))  # restored at the end
    monkeypatch.setattr(shared, "NO_PARTS", 0.3)
    shared.give_up_without_parts(supernode._LOOP)
    shared.retry_soon(supernode._LOOP, "pull_objects")
    supernode.reply_to_unreceived_messages(loop)

    stores = ObjectStoreFactory()
    state, store = NodeStateFactory(objectstore_factory=stores).state(), stores.store()
    state.set_node_id(7)
    state.store_run(Run.create_empty(1))
    metadata = Metadata(
        run_id=1,
        message_id="",
        src_node_id=1,
        dst_node_id=7,
        reply_to_message_id="",
        group_id="3",
        created_at=time.time(),
        ttl=60.0,
        message_type="train",
    )
    message = make_message(metadata=metadata, content=RecordDict({"config": ConfigRecord({"round": 3})}))
    metadata.__dict__["_message_id"] = message.object_id
    parts = [each.object_id for each in iterate_object_tree(get_object_tree(message))]
    pulled, confirmed = [], []

    def pull_object(run: int, part: str) -> bytes:
        pulled.append(part)
        raise inflatable.ObjectUnavailableError(part)

    def confirm(run: int, message: str) -> None:
        confirmed.append((run, message))
        if run_is_over:
            raise loop.RunNotRunningException

    began = time.monotonic()
    run = loop._pull_and_store_message(
        state=state,
        object_store=store,
        node_config={},
        receive=lambda: (remove_content_from_message(message), get_object_tree(message)),
        get_run=None,
        get_fab=None,
        pull_object=pull_object,
        confirm_message_received=confirm,
        trusted_entities=None,
    )
    assert time.monotonic() - began < 10
    assert set(pulled) <= set(parts)
    assert run == 1  # so Flower's loop sends the reply
    get = getattr(state, "get_messages_legacy", None) or state.get_messages  # its name in Flower 1.40
    (reply,) = get(is_reply=True)
    assert reply.metadata.reply_to_message_id == metadata.message_id
    assert "no part of its message has come" in reply.error.reason
    assert confirmed == [(1, metadata.message_id)]
    assert get(is_reply=False) == []  # and nothing is left to work on


def test_a_reply_that_a_dropped_message_left_behind_delays_no_other() -> None:
    def message(number: str, reply_to: str = "") -> Any:
        return SimpleNamespace(metadata=SimpleNamespace(message_id=number, reply_to_message_id=reply_to))

    def pull(*, receive: Any) -> int | None:
        found, _ = receive()
        return None if found.metadata.message_id == "of a run that is over" else 1

    def push(*, send: Any) -> None:
        send(replies.pop(0), None, 0.0)

    replies = [message("", number) for number in ("of a run that is over", "2", "3")]
    loop = SimpleNamespace(_pull_and_store_message=pull, _push_messages=push)
    supernode.await_replies(loop)
    sent: list[str] = []
    for number in ("of a run that is over", "2", "3"):
        run = loop._pull_and_store_message(receive=lambda number=number: (message(number), None))
        if run is not None:
            loop._push_messages(send=lambda reply, *_: sent.append(reply.metadata.reply_to_message_id))
            assert sent[-1] == number
    assert sent == ["of a run that is over", "2", "3"]


def test_a_slow_message_is_not_given_up_while_its_parts_come(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = importlib.import_module(supernode._LOOP)
    inflatable = importlib.import_module(shared.INFLATABLE)
    monkeypatch.setattr(loop, "pull_objects", loop.pull_objects)
    monkeypatch.setattr(shared, "NO_PARTS", 0.5)
    shared.give_up_without_parts(supernode._LOOP)
    shared.retry_soon(supernode._LOOP, "pull_objects")
    began = time.monotonic()

    def pull_object(part: str) -> bytes:
        if time.monotonic() - began < 0.2 * int(part):
            raise inflatable.ObjectUnavailableError(part)
        return part.encode()

    parts = list(map(str, range(6)))
    assert sorted(loop.pull_objects(parts, pull_object)) == parts
    assert time.monotonic() - began > 2 * shared.NO_PARTS - 0.1


def test_a_clientapp_on_a_slow_device_may_start_late(monkeypatch: pytest.MonkeyPatch) -> None:
    core = importlib.import_module("flwr.supercore.corestate.in_memory_corestate")
    for name in ("HEARTBEAT_DEFAULT_INTERVAL", "HEARTBEAT_PATIENCE"):
        monkeypatch.setattr(core, name, getattr(core, name))  # restored at the end
    began = core.now()
    later = timedelta()
    monkeypatch.setattr(core, "now", lambda: began + later)
    supernode.wait_for_slow_apps()
    state = NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state()
    task = state.create_task("flwr-clientapp", run_id=1)
    token = state.claim_task(task)
    later = timedelta(seconds=supernode.LONGEST_SILENCE - 1)
    assert state.activate_task(task)
    later *= 2
    assert state.get_task_by_token(token).status.status == "running"
    later += timedelta(seconds=2)
    assert state.get_task_by_token(token) is None
