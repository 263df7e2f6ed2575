"""A held request is answered as soon as a whole message is there, and no message is lost."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from deploy.fleet import protocol
from deploy.fleet.duties import held_requests
from deploy.flower.deferred_answers import Later
from deploy.processes.groups import wait_until

ONE, TWO, RUN = 11, 12, 1  # nodes, and a run


class Store:
    """Stores messages by node, and replies, as the SuperLink's state does."""

    def __init__(self, held):
        self.held = held
        self.messages = {}
        self.pulls = 0

    def send(self, node, text, *, missing=(), session="s"):
        self.messages.setdefault(node, []).append(text)
        self.held.message_stored(SimpleNamespace(dst_node_id=node, run_id=RUN), missing, session)

    def send_part(self, name, *, session="s"):
        self.held.object_stored(session, name)

    def wait_for_pulls(self, count):
        """Wait until messages have been looked up that many times."""
        assert wait_until(lambda: self.pulls == count, 30)


class Servicer:
    def __init__(self, store, held):
        self.store, self._held = store, held

    def pull_messages(self, node, call):
        def look():
            self.store.pulls += 1
            return SimpleNamespace(messages_list=self.store.messages.pop(node, []))

        return self._held.hold(node, call, look)


class Call:
    """The server's side of a gRPC call."""

    def __init__(self, *, active=True):
        self.active = active
        self.over = lambda: None

    def add_callback(self, callback):
        self.over = callback
        return self.active

    def invocation_metadata(self):
        return []


class Asking(threading.Thread):
    """A node that requests messages."""

    def __init__(self, servicer, node):
        super().__init__(daemon=True)
        self.call = Call()
        self.seconds = float("inf")
        self.messages = None
        self._servicer, self._node = servicer, node
        self.start()

    def run(self):
        began = time.monotonic()
        answer = self._servicer.pull_messages(self._node, self.call)
        self.messages = list((answer.wait() if isinstance(answer, Later) else answer).messages_list)
        self.seconds = time.monotonic() - began


@pytest.fixture
def servicer():
    held = held_requests.HeldRequests()
    return Servicer(Store(held), held)


def test_a_held_request_is_answered_when_there_is_a_message_for_its_node(servicer):
    one, two = Asking(servicer, ONE), Asking(servicer, TWO)
    servicer.store.wait_for_pulls(2)
    assert one.messages is None
    servicer.store.send(TWO, "hello")
    two.join(10)
    assert two.messages == ["hello"]
    assert one.messages is None
    assert servicer.store.pulls == 3  # no lookup without a reason
    servicer.store.send(ONE, "too")
    one.join(10)
    assert one.messages == ["too"]


def test_a_message_that_arrived_before_the_request_is_returned_at_once(servicer):
    servicer.store.send(ONE, "hello")
    for text in ("hello", "again"):
        asking = Asking(servicer, ONE)
        asking.join(10)
        assert asking.messages == [text]
        assert asking.seconds < held_requests.HOLD / 2
        servicer.store.send(ONE, "again")


def test_a_request_after_a_failed_lookup_looks_again(servicer):
    def locked():
        raise OSError("database is locked")

    with pytest.raises(OSError, match="locked"):
        servicer._held.hold(ONE, Call(), locked)
    servicer.store.messages[ONE] = ["hello"]  # it had arrived before
    asking = Asking(servicer, ONE)
    asking.join(10)
    assert asking.messages == ["hello"]


def test_a_request_looks_again_if_an_earlier_one_of_its_node_got_the_message(servicer):
    """The earlier connection is lost, so the message must be delivered again."""
    later = []

    def look():
        later.append(Asking(servicer, ONE))
        assert wait_until(lambda: servicer._held._requests[("node", ONE)] is not earlier, 10)
        return SimpleNamespace(messages_list=["hello"])

    servicer.store.wait_for_pulls(0)
    earlier = None
    begin = servicer._held._begin

    def noted(request, *arguments):
        nonlocal earlier
        earlier = earlier or request
        return begin(request, *arguments)

    servicer._held._begin = noted
    assert servicer._held.hold(ONE, Call(), look).messages_list == ["hello"]
    servicer.store.wait_for_pulls(1)  # although no message has arrived since


def test_a_message_counts_as_arrived_when_all_its_parts_have(servicer):
    one, two = Asking(servicer, ONE), Asking(servicer, TWO)
    servicer.store.wait_for_pulls(2)
    servicer.store.send(ONE, "hello", missing=("model", "config"))
    servicer.store.send(TWO, "too", missing=("model",))  # the model is sent once
    servicer.store.send_part("config")
    servicer.store.send_part("model", session="another")
    time.sleep(0.2)
    assert one.messages is two.messages is None
    assert servicer.store.pulls == 2
    servicer.store.send_part("model")
    for asking, text in ((one, "hello"), (two, "too")):
        asking.join(10)
        assert asking.messages == [text]


def test_a_part_without_a_session_name_is_noticed(servicer):
    asking = Asking(servicer, ONE)
    servicer.store.wait_for_pulls(1)
    servicer.store.send(ONE, "hello", missing=("model",))
    servicer.store.send_part("model", session="")  # by a SuperNode of an earlier version
    asking.join(10)
    assert asking.messages == ["hello"]


def test_the_number_of_remembered_incomplete_messages_is_limited(servicer, monkeypatch):
    monkeypatch.setattr(held_requests, "MAX_INCOMPLETE", 2)
    asking = Asking(servicer, ONE)
    servicer.store.wait_for_pulls(1)
    servicer.store.send(ONE, "hello", missing=("model",), session="a")
    servicer.store.send(TWO, "hello", missing=("model",), session="b")
    time.sleep(0.1)
    assert asking.messages is None
    servicer.store.send(TWO, "hello", missing=("model",), session="c")
    asking.join(10)
    assert asking.messages == ["hello"]


def test_a_receiver_without_messages_causes_no_lookup_until_one_arrives(servicer, monkeypatch):
    monkeypatch.setattr(held_requests, "HOLD", 0.2)
    Asking(servicer, ONE).join(10)
    assert servicer.store.pulls == 2  # when the request arrives and when its time is over
    Asking(servicer, ONE).join(10)
    assert servicer.store.pulls == 3  # only when its time is over
    monkeypatch.setattr(held_requests, "HOLD", 20.0)
    servicer.store.send(ONE, "hello")
    asking = Asking(servicer, ONE)
    asking.join(10)
    assert asking.messages == ["hello"]
    assert servicer.store.pulls == 4


def test_a_request_is_held_for_a_limited_time(servicer, monkeypatch):
    monkeypatch.setattr(held_requests, "HOLD", 0.2)
    asking = Asking(servicer, ONE)
    asking.join(5)
    assert asking.messages == []
    assert 0.2 <= asking.seconds < 2


def test_the_old_request_of_a_node_that_asks_again_or_hangs_up_takes_no_message(servicer):
    old = Asking(servicer, ONE)
    servicer.store.wait_for_pulls(1)
    new = Asking(servicer, ONE)
    old.join(10)
    assert old.messages == []
    gone = Asking(servicer, TWO)
    servicer.store.wait_for_pulls(2)  # not for the new request: the last lookup found nothing
    gone.call.over()
    gone.join(10)
    assert gone.messages == []
    for node in (ONE, TWO):
        servicer.store.send(node, "hello")
    new.join(10)
    assert new.messages == ["hello"]
    assert servicer.store.messages == {TWO: ["hello"]}


def test_a_held_request_of_a_node_occupies_no_thread(servicer):
    answers = []
    nodes = range(10, 2010)  # 1 is the SuperLink itself
    threads = threading.active_count()
    with ThreadPoolExecutor(2) as pool:
        for node in nodes:
            request = servicer.pull_messages(node, Call())
            assert isinstance(request, Later)
            request.run(pool.submit, lambda answer: answers.append(answer.messages_list), pytest.fail)
        assert threading.active_count() <= threads + 1  # the alarms
        for node in nodes:
            servicer.store.send(node, str(node))
        assert wait_until(lambda: len(answers) == 2000, 30)
    assert sorted(answers) == sorted([str(node)] for node in nodes)


@pytest.fixture
def app(monkeypatch):
    """Return a ServerApp's access to the SuperLink: `pull(ids)` returns the replies and the seconds taken."""
    monkeypatch.setattr(held_requests, "LOOK", 20.0)
    monkeypatch.setattr(held_requests, "GATHER", 10.0)

    held = held_requests.HeldRequests()
    store = Store(held)

    def look(asked, state, task):
        store.pulls += 1
        here = store.messages.get(superlink(), [])
        found = [text for text in here if text in asked.message_ids]
        here[:] = [text for text in here if text not in found]
        return SimpleNamespace(messages_list=found)

    handlers = SimpleNamespace(pull_messages=look)
    held.hold_for_apps(handlers)

    def pull(*ids):
        began = time.monotonic()
        response = handlers.pull_messages(
            SimpleNamespace(message_ids=list(ids)), store, SimpleNamespace(run_id=RUN)
        )
        return list(response.messages_list), time.monotonic() - began

    def reply(*ids, after=0.0):
        for each in ids:
            threading.Timer(after, store.send, (superlink(), each)).start()

    return SimpleNamespace(store=store, pull=pull, reply=reply)


def superlink():
    return protocol.SUPERLINK


def test_replies_that_arrive_together_are_returned_together(app):
    app.reply("a", after=0.5)
    app.reply("b", after=0.6)
    replies, seconds = app.pull("a", "b")
    assert replies == ["a", "b"]
    assert seconds < 5  # no longer than until all have arrived
    assert app.store.pulls == 2


def test_a_reply_waits_for_the_others_for_a_short_time_only(app, monkeypatch):
    monkeypatch.setattr(held_requests, "GATHER", 0.3)
    app.reply("a", after=0.5)
    replies, seconds = app.pull("a", "b")
    assert replies == ["a"]
    assert 0.75 < seconds < 10
    monkeypatch.setattr(held_requests, "LOOK", 0.6)
    replies, seconds = app.pull("b")
    assert replies == []
    assert seconds > 0.55
    assert app.store.pulls == 3  # only when its time was over: the last lookup found nothing


def test_a_reply_that_arrived_before_it_was_requested_is_returned_at_once(app, monkeypatch):
    app.store.send(superlink(), "b")
    with monkeypatch.context() as shortly:
        shortly.setattr(held_requests, "LOOK", 0.2)
        assert app.pull("a")[0] == []
    replies, seconds = app.pull("a", "b")
    assert replies == ["b"]
    assert seconds < 5
