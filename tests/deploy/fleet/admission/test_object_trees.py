"""Nodes that lie about the children of others' objects, to a real database and Flower's handlers."""

from types import SimpleNamespace
from uuid import uuid4

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.servicer.runtime import runtime_handlers

from deploy.fleet import factories
from deploy.fleet.admission.delivered_objects import DeliveredObjects
from deploy.fleet.admission.reply_admission import ReplyAdmission
from deploy.fleet.duties.duties import Duties
from deploy.fleet.errors import RequestRefused
from deploy.fleet.service import FleetService
from tests.support.fleet import random_bytes

MADE_UP = "0" * 64


class Run:
    """A run with two nodes, in a SuperLink's state with `ReplyAdmission`."""

    def __init__(self, factory):
        self.delivered = DeliveredObjects()
        self.limits = ReplyAdmission(factory, lambda node: 0, self.delivered)
        self.state = factory.state()
        self.service = FleetService(factory, Duties(), self.limits, None, None)
        self.attacker, self.honest = (
            self.state.create_node("flwr_aid", "name", uuid4().bytes, 0) for _ in range(2)
        )
        for node in (self.attacker, self.honest):
            assert self.state.activate(node, 30.0)
        self.id = self.state.create_run(
            "app", "1", "hash", {}, NOOP_FEDERATION_ID, None, "flwr_aid", TaskType.SERVER_APP
        )
        (run,) = self.state.get_run_info(run_ids=[self.id])
        self.task = SimpleNamespace(run_id=self.id, task_id=run.primary_task_id)
        self.state.claim_task(self.task.task_id)
        assert self.state.activate_task(self.task.task_id)
        TaskIdentity.task_id, TaskIdentity.run_id = self.task.task_id, self.id

    def announce(self, node, turn):
        """Let the ServerApp announce a message to a node, whose objects it pushes later."""
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        message = Message(settings(turn), node, "train", ttl=300)
        message.metadata.__dict__["_message_id"] = message.object_id
        request = PushAppMessagesRequest(
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=[get_object_tree(message)],
        )
        return message, runtime_handlers.push_messages(request, self.state, self.task)

    def push(self, message, announced):
        for name, each in get_all_nested_objects(message).items():
            if name in announced.objects_to_push:
                assert self.state.store_object(self.id, announced.session_id, name, each.deflate())

    def send(self, node, turn):
        self.push(*self.announce(node, turn))

    def receive(self, node):
        """Let a node fetch its message with all of its objects, as a SuperNode does."""
        response = self.service._next_message(PullMessagesRequest(node=Node(node_id=node)))
        self.delivered.note(node, response)
        (message,), (tree,) = response.messages_list, response.message_object_trees
        self.inflate(tree)
        self.state.object_store.delete(tree.object_id)
        return message_from_proto(message)

    def inflate(self, tree):
        names = {each.object_id for each in iterate_object_tree(tree)}
        contents = {name: self.state.get_object(self.id, name) for name in names}
        assert all(contents.values()), "a part is not there"
        message = inflate_object_from_contents(tree.object_id, contents)
        assert isinstance(message, Message)
        return message

    def reply(self, node, asked, content, *lies):
        """Let a node announce a reply; return what `push_reply` takes."""
        TaskIdentity.node_id = node
        reply = Message(content, reply_to=asked)
        reply.metadata.__dict__["_src_node_id"] = node
        reply.metadata.__dict__["_message_id"] = reply.object_id
        tree = get_object_tree(reply)
        tree.children[0].children.extend(lies)
        request = PushMessagesRequest(
            node=Node(node_id=node),
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[tree],
        )
        for _ in range(2):  # the first answer is lost
            response = self.service.push_messages(request, node, None)
        return node, reply, response

    def push_reply(self, node, reply, response, *others):
        objects = get_all_nested_objects(reply) | {each.object_id: each for each in others}
        for name in response.objects_to_push:
            if name in objects:
                request = PushObjectRequest(
                    node=Node(node_id=node),
                    run_id=self.id,
                    object_id=name,
                    object_content=objects[name].deflate(),
                    session_id=response.session_id,
                )
                assert self.service.push_object(request, node, None).stored

    def fetch(self, asked):
        """Let the ServerApp fetch the reply to a message."""
        request = PullAppMessagesRequest(message_ids=[asked.metadata.message_id])
        (tree,) = runtime_handlers.pull_messages(request, self.state, self.task).message_object_trees
        return self.inflate(tree)


@pytest.fixture(scope="module")
def factory(tmp_path_factory):
    database = str(tmp_path_factory.mktemp("state") / "state.db")
    return factories.make(database, NoOpFederationManager(), Duties())


@pytest.fixture
def run(factory):
    run = Run(factory)
    yield run
    run.state.object_store.clear()
    TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = None


def settings(turn):
    arrays = ArrayRecord([random_bytes(100 + turn)])
    return RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": turn})})


def lie_about(record):
    return ObjectTree(object_id=record.object_id, children=[ObjectTree(object_id=MADE_UP)])


def references(run):
    """Return how often each object is referred to, and check that it is counted so."""
    counted = {row["object_id"]: row["ref_count"] for row in run.state.query("SELECT * FROM objects")}
    children = [row["child_id"] for row in run.state.query("SELECT * FROM object_children")]
    assert counted == {name: children.count(name) for name in counted}
    return counted


def test_a_message_whose_delivery_fails_is_delivered_later(run, monkeypatch):
    request = PullMessagesRequest(node=Node(node_id=run.honest))
    run.send(run.honest, 1)

    def locked(name):
        raise RuntimeError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(run.state.objects, "tree_of", locked)
        with pytest.raises(RuntimeError, match="locked"):
            run.service._next_message(request)
    assert len(run.service._next_message(request).messages_list) == 1
    assert len(run.service._next_message(request).messages_list) == 0


@pytest.mark.parametrize("available", [False, True], ids=["without content", "with content"])
def test_a_node_cannot_keep_the_server_app_from_sending_its_next_round(run, available):
    run.send(run.attacker, 1)
    following = settings(2)
    records = [following["config"], following["arrays"], following]
    lies = [lie_about(each) for each in records]
    attack = run.reply(run.attacker, run.receive(run.attacker), RecordDict(), *lies)
    if available:
        run.push_reply(*attack, *records)
    run.send(run.honest, 2)
    references(run)
    received = run.receive(run.honest)
    run.push_reply(*run.reply(run.honest, received, settings(2)))  # what it was sent, as well
    assert run.fetch(received).content["config"] == {"server-round": 2}
    references(run)


def test_a_node_cannot_change_a_message_that_is_being_sent(run):
    run.send(run.attacker, 1)
    asked = run.receive(run.attacker)
    announced = run.announce(run.honest, 2)
    lies = [lie_about(each) for each in (settings(2)["config"], settings(2))]
    attack = run.reply(run.attacker, asked, RecordDict(), *lies)
    run.push(*announced)
    run.state.end_push(attack[2].session_id, with_messages=True)
    assert run.receive(run.honest).metadata.dst_node_id == run.honest
    references(run)


@pytest.mark.parametrize("first", ["attacker", "honest"])
@pytest.mark.parametrize("available", [False, True], ids=["without content", "with content"])
@pytest.mark.parametrize("given_up", [False, True], ids=["attack goes on", "attack given up"])
def test_a_node_cannot_spoil_the_reply_of_another(run, first, available, given_up):
    for node in (run.attacker, run.honest):
        run.send(node, 1)
    asked, asked_too = run.receive(run.attacker), run.receive(run.honest)
    content = RecordDict(
        {"identity": ConfigRecord({"client-id": "client-07"}), "arrays": settings(9)["arrays"]}
    )
    records = [content["identity"], content["arrays"], content]

    def attack():
        begun = run.reply(run.attacker, asked, RecordDict(), *map(lie_about, records))
        if available:
            run.push_reply(*begun, *records)
        return begun

    if first == "attacker":
        begun = attack()
        reply = run.reply(run.honest, asked_too, content)
    else:
        reply = run.reply(run.honest, asked_too, content)
        begun = attack()
    if given_up:
        run.state.end_push(begun[2].session_id, with_messages=True)
    run.push_reply(*reply)
    assert run.fetch(asked_too).content["identity"] == {"client-id": "client-07"}
    references(run)
    for _, message, _ in (reply, begun):
        run.state.object_store.delete(message.metadata.message_id)
    assert references(run) == {}  # nothing is left of either


def test_the_message_of_a_reply_is_no_other_object(run):
    run.send(run.attacker, 1)
    asked = run.receive(run.attacker)
    node, reply, _ = run.reply(run.attacker, asked, RecordDict())
    for tree in (lie_about(ConfigRecord({"server-round": 2})), lie_about(reply)):
        message = message_to_proto(remove_content_from_message(reply))
        message.metadata.message_id = tree.object_id
        request = PushMessagesRequest(
            node=Node(node_id=node), messages_list=[message], message_object_trees=[tree]
        )
        with pytest.raises(RequestRefused, match="another hash"):
            run.limits.check_reply(request, node)


def test_trees_of_replies_cannot_contain_each_other(run):
    run.send(run.attacker, 1)
    run.send(run.attacker, 2)
    asked, other = run.receive(run.attacker), run.receive(run.attacker)
    _, reply, _ = run.reply(run.attacker, asked, RecordDict())
    before = references(run)
    with pytest.raises(ValueError, match="is a message"):
        run.reply(run.attacker, other, RecordDict(), ObjectTree(object_id=reply.object_id))
    assert references(run) == before


def normal(tree):
    """Return a tree as something to compare: the order of children has no meaning."""
    return tree.object_id, sorted(map(normal, tree.children))


@pytest.mark.parametrize("arrays", [1, 40])
def test_a_tree_is_read_with_two_statements_and_is_the_one_that_flower_reads(run, arrays):
    shared = ArrayRecord([random_bytes(100 + turn) for turn in range(arrays)])
    content = RecordDict({"a": shared, "b": shared, "config": ConfigRecord({"server-round": 1})})
    tree = get_object_tree(content)
    run.state.object_store.preregister(run.id, tree)
    statements = []
    with run.state.object_store.session() as session:
        session.connection().connection.driver_connection.set_trace_callback(statements.append)
        read = run.state.object_store.get_object_tree(tree.object_id)
        session.connection().connection.driver_connection.set_trace_callback(None)
    assert len(statements) == 2
    assert (
        normal(read)
        == normal(tree)
        == normal(SqlObjectStore.get_object_tree(run.state.object_store, tree.object_id))
    )
    with pytest.raises(NoObjectInStoreError):
        run.state.object_store.get_object_tree(MADE_UP)


def test_a_reply_with_known_parts_and_new_ones(run):
    asked, _ = announced = run.announce(run.honest, 1)
    run.push(*announced)
    # The reply has parts that the store knows, with children, and new ones.
    content = RecordDict(
        {"config": settings(1)["config"], "arrays": ArrayRecord([random_bytes(n) for n in range(5)])}
    )
    run.push_reply(*run.reply(run.honest, run.receive(run.honest), content))
    references(run)
    assert normal(get_object_tree(run.fetch(asked).content)) == normal(get_object_tree(content))
