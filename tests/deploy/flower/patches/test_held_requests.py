"""A held request is answered as soon as a whole message is there, and no message is lost."""

import importlib
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.flower.patches import held_requests
from deploy.processes.groups import wait_until

ONE, TWO, RUN = 11, 12, 1  # nodes, and a run


class Store:
    """A state that holds messages by node, and replies, as the SuperLink's does."""

    def __init__(self) -> None:
        self.messages: dict[int, list[str]] = {}
        self.pulls = 0

    def store_message_and_object_tree(
        self, message: Any, missing: list[str], session_id: str
    ) -> tuple[bool, list[str]]:
        self.messages.setdefault(message.metadata.dst_node_id, []).append(message.text)
        return True, missing

    def store_object(self, run_id: int, session_id: str, object_id: str, content: bytes) -> bool:
        return content != b"refused"

    def send(self, node: int, text: str, *, missing: tuple[str, ...] = (), session: str = "s") -> None:
        metadata = SimpleNamespace(dst_node_id=node, run_id=RUN)
        message = SimpleNamespace(metadata=metadata, text=text)
        self.store_message_and_object_tree(message, list(missing), session)

    def send_part(self, name: str, *, session: str = "s", content: bytes = b"") -> None:
        self.store_object(RUN, session, name, content)

    def wait_for_looks(self, count: int) -> None:
        """Wait until it has been looked for messages so often."""
        assert wait_until(lambda: self.pulls == count, 30)


class Servicer:
    def __init__(self, store: Store) -> None:
        self.store = store

    def PullMessages(self, asked: Any, context: Any) -> Any:  # noqa: N802
        self.store.pulls += 1
        return SimpleNamespace(messages_list=self.store.messages.pop(asked.node.node_id, []))


class Call:
    """The server's side of a gRPC call."""

    def __init__(self, *, active: bool = True) -> None:
        self.active = active
        self.over: Callable[[], None] = lambda: None

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.over = callback
        return self.active


class Asking(threading.Thread):
    """A node that asks for messages."""

    def __init__(self, servicer: Servicer, node: int) -> None:
        super().__init__(daemon=True)
        self.call = Call()
        self.seconds = float("inf")
        self.messages: list[str] | None = None
        self._servicer, self._node = servicer, node
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        self.messages = list(self._servicer.PullMessages(asked_by(self._node), self.call).messages_list)
        self.seconds = time.monotonic() - began


def asked_by(node: int) -> Any:
    return SimpleNamespace(node=SimpleNamespace(node_id=node))


@pytest.fixture
def servicer() -> Servicer:
    class OwnStore(Store):
        pass

    class OwnServicer(Servicer):
        pass

    held = held_requests.HeldRequests()
    held.notice_messages_in(OwnStore)
    held.hold_for_nodes(OwnServicer)
    return OwnServicer(OwnStore())


def test_a_held_request_is_answered_when_there_is_a_message_for_its_node(servicer: Servicer) -> None:
    one, two = Asking(servicer, ONE), Asking(servicer, TWO)
    servicer.store.wait_for_looks(2)
    assert one.messages is None
    servicer.store.send(TWO, "hello")
    two.join(10)
    assert two.messages == ["hello"]
    assert one.messages is None
    assert servicer.store.pulls == 3  # nobody looks without a reason
    servicer.store.send(ONE, "too")
    one.join(10)
    assert one.messages == ["too"]


def test_a_message_that_is_there_is_not_waited_for(servicer: Servicer) -> None:
    servicer.store.send(ONE, "hello")
    for text in ("hello", "again"):
        asking = Asking(servicer, ONE)
        asking.join(10)
        assert asking.messages == [text]
        assert asking.seconds < held_requests.HOLD / 2
        servicer.store.send(ONE, "again")


def test_a_message_is_there_when_all_its_parts_are(servicer: Servicer) -> None:
    one, two = Asking(servicer, ONE), Asking(servicer, TWO)
    servicer.store.wait_for_looks(2)
    servicer.store.send(ONE, "hello", missing=("model", "config"))
    servicer.store.send(TWO, "too", missing=("model",))  # the model is sent once
    servicer.store.send_part("config")
    servicer.store.send_part("model", session="another")
    servicer.store.send_part("model", content=b"refused")
    time.sleep(0.2)
    assert one.messages is two.messages is None
    assert servicer.store.pulls == 2
    servicer.store.send_part("model")
    for asking, text in ((one, "hello"), (two, "too")):
        asking.join(10)
        assert asking.messages == [text]


def test_a_part_whose_session_is_not_named_is_taken_note_of(servicer: Servicer) -> None:
    asking = Asking(servicer, ONE)
    servicer.store.wait_for_looks(1)
    servicer.store.send(ONE, "hello", missing=("model",))
    servicer.store.send_part("model", session="")  # by a SuperNode of an earlier version
    asking.join(10)
    assert asking.messages == ["hello"]


def test_no_more_than_so_many_incomplete_messages_are_remembered(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_requests, "MAX_INCOMPLETE", 2)
    asking = Asking(servicer, ONE)
    servicer.store.wait_for_looks(1)
    servicer.store.send(ONE, "hello", missing=("model",), session="a")
    servicer.store.send(TWO, "hello", missing=("model",), session="b")
    time.sleep(0.1)
    assert asking.messages is None
    servicer.store.send(TWO, "hello", missing=("model",), session="c")
    asking.join(10)
    assert asking.messages == ["hello"]


def test_who_was_told_that_there_is_nothing_does_not_look_again_until_there_is_something(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_requests, "HOLD", 0.2)
    Asking(servicer, ONE).join(10)
    assert servicer.store.pulls == 2  # at the beginning and at the end of its time
    Asking(servicer, ONE).join(10)
    assert servicer.store.pulls == 3  # only at the end
    monkeypatch.setattr(held_requests, "HOLD", 20.0)
    servicer.store.send(ONE, "hello")
    asking = Asking(servicer, ONE)
    asking.join(10)
    assert asking.messages == ["hello"]
    assert servicer.store.pulls == 4


def test_a_request_is_not_held_for_ever(servicer: Servicer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_requests, "HOLD", 0.2)
    asking = Asking(servicer, ONE)
    asking.join(5)
    assert asking.messages == []
    assert 0.2 <= asking.seconds < 2


def test_a_node_that_asks_anew_or_is_gone_does_not_take_a_message_with_its_old_request(
    servicer: Servicer,
) -> None:
    old = Asking(servicer, ONE)
    servicer.store.wait_for_looks(1)
    new = Asking(servicer, ONE)
    old.join(10)
    assert old.messages == []
    gone = Asking(servicer, TWO)
    servicer.store.wait_for_looks(2)  # not by the new one, which knows that there is nothing
    gone.call.over()
    gone.join(10)
    assert gone.messages == []
    for node in (ONE, TWO):
        servicer.store.send(node, "hello")
    new.join(10)
    assert new.messages == ["hello"]
    assert servicer.store.messages == {TWO: ["hello"]}


def test_more_requests_than_can_be_held_are_answered_at_once(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_requests, "MAX_HELD", 1)
    held = held_requests.HeldRequests()

    class OwnServicer(Servicer):
        pass

    held.hold_for_nodes(OwnServicer)
    few = OwnServicer(Store())
    first = Asking(few, ONE)
    few.store.wait_for_looks(1)
    second = Asking(few, TWO)
    second.join(10)
    assert second.messages == []
    first.call.over()
    first.join(10)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A ServerApp's way to the SuperLink: `pull(ids)` returns the replies and how long that took."""
    monkeypatch.setattr(held_requests, "LOOK", 20.0)
    monkeypatch.setattr(held_requests, "GATHER", 10.0)

    class OwnStore(Store):
        pass

    store = OwnStore()

    def look(asked: Any, state: Store, task: Any) -> Any:
        store.pulls += 1
        here = store.messages.get(superlink(), [])
        found = [text for text in here if text in asked.message_ids]
        here[:] = [text for text in here if text not in found]
        return SimpleNamespace(messages_list=found)

    handlers = SimpleNamespace(pull_messages=look)
    held = held_requests.HeldRequests()
    held.notice_messages_in(OwnStore)
    held.hold_for_apps(handlers)

    def pull(*ids: str) -> tuple[list[str], float]:
        began = time.monotonic()
        response = handlers.pull_messages(
            SimpleNamespace(message_ids=list(ids)), store, SimpleNamespace(run_id=RUN)
        )
        return list(response.messages_list), time.monotonic() - began

    def reply(*ids: str, after: float = 0.0) -> None:
        for each in ids:
            threading.Timer(after, store.send, (superlink(), each)).start()

    return SimpleNamespace(store=store, pull=pull, reply=reply)


def superlink() -> int:
    node: int = importlib.import_module(held_requests._CONSTANTS).SUPERLINK_NODE_ID
    return node


def test_replies_that_come_together_are_handed_over_together(app: Any) -> None:
    app.reply("a", after=0.5)
    app.reply("b", after=0.6)
    replies, seconds = app.pull("a", "b")
    assert replies == ["a", "b"]
    assert seconds < 5  # not longer, once all are there
    assert app.store.pulls == 2


def test_a_reply_does_not_wait_for_the_others_for_long(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_requests, "GATHER", 0.3)
    app.reply("a", after=0.5)
    replies, seconds = app.pull("a", "b")
    assert replies == ["a"]
    assert 0.75 < seconds < 10
    monkeypatch.setattr(held_requests, "LOOK", 0.6)
    replies, seconds = app.pull("b")
    assert replies == []
    assert seconds > 0.55
    assert app.store.pulls == 3  # it knew that there was none: only at the end of its time


def test_a_reply_that_was_there_before_it_was_asked_for_is_not_waited_for(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.store.send(superlink(), "b")
    with monkeypatch.context() as shortly:
        shortly.setattr(held_requests, "LOOK", 0.2)
        assert app.pull("a")[0] == []
    replies, seconds = app.pull("a", "b")
    assert replies == ["b"]
    assert seconds < 5
