from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from flwr.supernode.servicer.runtime import runtime_handlers
from hypothesis import given
from hypothesis import strategies as st

from deploy.fleet import protocol, wire
from deploy.fleet.duties import joined_objects
from deploy.fleet.duties.joined_objects import ENOUGH, MOST, join, split
from deploy.fleet.storage.objects import CohortObjectStore
from tests.support.fleet import App


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_what_is_joined_is_split_again(contents):
    assert split(join(contents)) == contents


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20), st.data())
def test_joined_contents_that_are_cut_off_are_refused(contents, data):
    joined = join(contents)
    ends = np.cumsum([0, *(8 + len(each) for each in contents)])
    length = data.draw(st.integers(1, len(joined) - 1).filter(lambda end: end not in ends))
    with pytest.raises(ValueError, match="a length says"):
        split(joined[:length])


class Servicer:
    """Answers requests for single objects, as Flower's handlers."""

    def __init__(self, **contents):
        self.contents = contents
        self.requests = 0

    def pull_object(self, asked):
        content = self.contents.get(asked.object_id)
        return SimpleNamespace(
            object_found=content is not None, object_available=bool(content), object_content=content or b""
        )

    def push_object(self, asked):
        known = asked.object_id in self.contents and asked.session_id == "session"
        if known:
            self.contents[asked.object_id] = asked.object_content
        return SimpleNamespace(stored=known)


class Joining(Servicer):
    """Answers joined requests too, as the Fleet service."""

    def pull_object(self, asked):
        return joined_objects.pull_each(asked, super().pull_object, None)

    def push_object(self, asked):
        return joined_objects.push_each(asked, super().push_object, None)


@pytest.mark.parametrize(
    ("names", "content", "reason"),
    [
        ("a,b", b"", "shorter"),
        ("a,b", join([b"1", b"2", b"3"]), "longer"),
        ("a,b", join([b"1", b"2"])[:-1], "a length says 1 bytes"),
        ("a,b", b"\xff" * 8, "a length says"),
        (",".join("a" * (MOST + 1)), join([b""] * (MOST + 1)), f"at most {MOST}"),
    ],
)
def test_a_joined_request_that_is_not_valid_is_refused(names, content, reason):
    request = PushObjectRequest(object_id=names, object_content=content, session_id="session")
    with pytest.raises(ValueError, match=reason):
        Joining(a=b"", b=b"").push_object(request)


def test_a_request_for_too_many_objects_is_refused():
    with pytest.raises(ValueError, match=f"at most {MOST}"):
        Joining(a=b"1").pull_object(PullObjectRequest(object_id=",".join("a" * (MOST + 1))))


def test_a_response_has_at_most_one_object_more_than_is_enough():
    servicer = Joining(a=bytes(ENOUGH - 1), b=bytes(ENOUGH), c=b"1")
    response = servicer.pull_object(PullObjectRequest(object_id="a,b,c"))
    assert [len(each) for each in split(response.object_content)] == [ENOUGH - 1, ENOUGH]


@pytest.mark.network
def test_a_message_and_its_reply_take_one_request_each_of_a_real_superlink(superlink):
    app, node = App(superlink), superlink.node("joined")
    try:
        node.activate()
        sent = app.send(node, 1000)
        pulled = node.ask("PullMessages", PullMessagesRequest(node=node.id))
        (message,), (tree,) = pulled.messages_list, pulled.message_object_trees
        names = [each.object_id for each in iterate_object_tree(tree)]
        run = message.metadata.run_id
        request = PullObjectRequest(node=node.id, run_id=run, object_id=",".join(names))
        contents = dict(zip(names, split(node.ask("PullObject", request).object_content), strict=True))
        received = inflate_object_from_contents(names[-1], contents)
        (array,) = received.content["arrays"].to_numpy_ndarrays()
        assert array.nbytes == 1000

        arrays = [array[::-1].copy(), array[:7].copy()]
        reply = Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message_from_proto(message))
        parts = {name: each.deflate() for name, each in get_all_nested_objects(reply).items()}
        session = node.ask("PushMessages", node.announce(reply))
        missing = list(session.objects_to_push)
        assert len(missing) > 4
        joined = PushObjectRequest(
            node=node.id,
            run_id=run,
            object_id=",".join(missing),
            object_content=join(parts[name] for name in missing),
            session_id=session.session_id,
        )
        foreign = PushObjectRequest()
        foreign.CopyFrom(joined)
        foreign.session_id = "another"
        with pytest.raises(grpc.RpcError, match="belongs to no reply of this node"):
            node.ask("PushObject", foreign)
        assert node.ask("PushObject", joined).stored
        answer = app.replies(sent)[sent]
        for ours, theirs in zip(arrays, answer.content["arrays"].to_numpy_ndarrays(), strict=True):
            assert np.array_equal(ours, theirs)
    finally:
        app.close()


@pytest.mark.network
def test_a_small_message_carries_its_objects_for_a_device_that_asks_for_it(superlink):
    app, node = App(superlink), superlink.node("whole")
    pull = PullMessagesRequest(node=node.id)
    try:
        node.activate()
        app.send(node, 1000)
        assert wire.carried(node.ask("PullMessages", pull)) == b""
        pulled = node.ask("PullMessages", pull, more=[wire.WHOLE])  # once more, as it is not confirmed
        names = protocol.names_in(pulled.message_object_trees[0])
        contents = dict(zip(names, split(wire.carried(pulled)), strict=True))
        (array,) = inflate_object_from_contents(names[-1], contents).content["arrays"].to_numpy_ndarrays()
        assert array.nbytes == 1000
        large = superlink.node("large")
        large.activate()
        app.send(large, 2 * ENOUGH)
        pulled = large.ask("PullMessages", PullMessagesRequest(node=large.id), more=[wire.WHOLE])
        assert pulled.messages_list
        assert wire.carried(pulled) == b""
    finally:
        app.close()


def small_reply(app, node):
    """Send a message to a new node. Return its id, the announcement of its reply, and the reply's objects."""
    node.activate()
    sent = app.send(node, 1000)
    reply = Message(RecordDict({"arrays": ArrayRecord([np.arange(9)])}), reply_to=node.receive())
    parts = {name: each.deflate() for name, each in get_all_nested_objects(reply).items()}
    announced = node.announce(reply)
    return sent, announced, [parts[name] for name in protocol.names_in(announced.message_object_trees[0])]


@pytest.mark.network
def test_the_announcement_of_a_small_reply_carries_its_objects(superlink):
    app, node = App(superlink), superlink.node("small reply")
    try:
        sent, announced, objects = small_reply(app, node)
        wire.carry(announced, join(objects))
        assert not node.ask("PushMessages", announced).objects_to_push
        (array,) = app.replies(sent)[sent].content["arrays"].to_numpy_ndarrays()
        assert array.tolist() == list(range(9))
    finally:
        app.close()


@pytest.mark.network
def test_what_an_announcement_carries_is_checked(superlink):
    app, node = App(superlink), superlink.node("wrong objects")
    try:
        sent, announced, objects = small_reply(app, node)
        bare = PushMessagesRequest.FromString(announced.SerializeToString())
        wire.carry(announced, join([*objects[:-1], b"another"]))
        assert len(node.ask("PushMessages", announced).objects_to_push) == len(objects)
        names = protocol.names_in(bare.message_object_trees[0])
        node.push(bare, dict(zip(names, objects, strict=True)))  # as a device does that knows no short way
        assert app.replies(sent)[sent].has_content()
        for name, content, reason in (
            ("too few", join(objects[:-1]), "shorter"),
            ("too large", bytes(1_000_000), "are allowed"),
        ):
            node = superlink.node(name)
            _, announced, _ = small_reply(app, node)
            wire.carry(announced, content)
            with pytest.raises(grpc.RpcError, match=reason):
                node.ask("PushMessages", announced)
    finally:
        app.close()


def test_a_supernode_answers_joined_requests_of_its_apps():
    handlers = SimpleNamespace(
        pull_object=runtime_handlers.pull_object, push_object=runtime_handlers.push_object
    )
    joined_objects.answer_apps(handlers)
    state, task = InMemoryNodeState(InMemoryObjectStore()), SimpleNamespace(run_id=1)
    record = RecordDict({"arrays": ArrayRecord([np.arange(3), np.ones(2)])})
    contents = {name: each.deflate() for name, each in get_all_nested_objects(record).items()}
    session = state.start_session(1)
    missing = state.preregister_object_tree(get_object_tree(record), session)
    assert sorted(missing) == sorted(contents)
    pushed = PushObjectRequest(
        run_id=1,
        session_id=session,
        object_id=",".join(missing),
        object_content=join(contents[each] for each in missing),
    )
    assert handlers.push_object(pushed, state, task).stored
    assert not handlers.push_object(pushed, state, task).stored  # the session has ended
    pulled = handlers.pull_object(PullObjectRequest(object_id=",".join(missing)), state, task)
    assert split(pulled.object_content) == [contents[each] for each in missing]


def test_a_serverapp_that_fetches_objects_lets_nobody_count_all_objects(tmp_path, monkeypatch):
    none = SimpleNamespace(object_available=False)
    handlers = SimpleNamespace(pull_object=lambda *_: none, push_object=None)
    joined_objects.answer_apps(handlers)
    store = CohortObjectStore(str(tmp_path / "database"))
    store.initialize()
    monkeypatch.setattr(CohortObjectStore, "__len__", lambda _: pytest.fail("all objects are counted"))
    state = SimpleNamespace(objects=store, session=store.session)
    asked = PullObjectRequest(object_id=f"{'a' * 64},{'b' * 64}")
    assert not handlers.pull_object(asked, state, None).object_available
