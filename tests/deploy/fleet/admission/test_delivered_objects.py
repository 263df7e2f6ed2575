"""A node fetches the objects of its own messages only, and learns of no other objects."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, iterate_object_tree

from deploy.fleet.admission import delivered_objects
from deploy.fleet.admission.delivered_objects import DeliveredObjects
from tests.support.fleet import App, SuperLink

NO_OBJECT = "0" * 64


@pytest.fixture
def nodes(superlink):
    one, two = superlink.node("one"), superlink.node("two")
    one.activate()
    two.activate()
    return one, two


def content(secret):
    """Return a model that all nodes get, and a setting that one node gets."""
    return RecordDict(
        {"model": ArrayRecord([np.arange(100)]), "config": ConfigRecord({"secret": secret, "round": 1})}
    )


def received(node):
    """Return a node's message, which it does not confirm, and the names of the message's objects."""
    response = node.ask("PullMessages", PullMessagesRequest(node=node.id))
    (message,), (tree,) = response.messages_list, response.message_object_trees
    return message_from_proto(message), {each.object_id for each in iterate_object_tree(tree)}


def pulled(app, node, name):
    request = PullObjectRequest(node=node.id, run_id=app.run.run_id, object_id=name)
    return node.ask("PullObject", request)


@pytest.mark.network
def test_a_node_cannot_fetch_or_learn_of_the_objects_of_another(app, nodes):
    one, two = nodes
    app.push({one: content("of one"), two: content("of two")})
    ask_one, of_one = received(one)
    _, of_two = received(two)
    assert len(of_one & of_two) >= 2  # the model
    nothing = pulled(app, two, NO_OBJECT)
    assert not nothing.object_found
    for name in of_two:
        assert pulled(app, two, name).object_content
    for name in of_one - of_two:
        assert pulled(app, one, name).object_content
        assert pulled(app, two, name) == nothing
    assert pulled(app, two, ",".join(of_one - of_two)) == pulled(app, two, f"{NO_OBJECT},{NO_OBJECT}")

    report = Message(RecordDict({"report": MetricRecord({"group": 3})}), reply_to=ask_one)
    one.answer(report)
    for name in get_all_nested_objects(report):
        assert pulled(app, two, name) == nothing


@pytest.mark.network
def test_a_node_cannot_test_a_guess_by_announcing_and_pushing_it(app, nodes):
    one, two = nodes
    app.push({one: content("of one"), two: content("of two")})
    (ask_one, _), (ask_two, of_two) = received(one), received(two)
    report, wrong = MetricRecord({"group": 3}), MetricRecord({"group": 4})
    one.answer(Message(RecordDict({"report": report}), reply_to=ask_one))
    reply = Message(RecordDict({"model": content("")["model"], "a": report, "b": wrong}), reply_to=ask_two)
    parts = {name: each.deflate() for name, each in get_all_nested_objects(reply).items()}
    session = two.ask("PushMessages", two.announce(reply))
    wanted = set(session.objects_to_push)
    assert wanted == set(parts) - of_two  # what it has received need not be sent back

    def is_stored(name, part):
        pushed = PushObjectRequest(
            node=two.id,
            run_id=app.run.run_id,
            object_id=name,
            object_content=part,
            session_id=session.session_id,
        )
        return bool(two.ask("PushObject", pushed).stored)

    for name in (report.object_id, wrong.object_id):
        assert not is_stored(name, b"")
        assert not is_stored(name, ConfigRecord({"another": 1}).deflate())
    for name in wanted:
        assert is_stored(name, parts[name])
    # A connection broke: what the node has pushed before, it need not push again.
    assert not two.ask("PushMessages", two.announce(reply)).objects_to_push
    (answer,) = app.replies(ask_two.metadata.message_id).values()
    assert answer.content["a"] == report
    assert answer.content["b"] == wrong


@pytest.mark.network
def test_a_message_of_before_a_restart_can_still_be_fetched_and_those_of_others_cannot(tmp_path):
    superlink = SuperLink(tmp_path)
    try:
        app = App(superlink)
        one, two = superlink.node("one"), superlink.node("two")
        for node in (one, two):
            node.activate()
        app.push({one: content("of one"), two: content("of two")})
        (_, of_one), (_, of_two) = received(one), received(two)
        assert received(one)[1] == of_one  # the answer was lost: it is delivered again
        superlink.restart()
        for name in of_one:
            assert pulled(app, one, name).object_content
            assert bool(pulled(app, two, name).object_content) == (name in of_two)
        app.close()
    finally:
        superlink.end()


class Tree:
    """The tree of a message whose content has one record of its own and one that others have too."""

    def __init__(self, number, *, until=2e9):
        shared = ObjectTree(object_id="shared", children=[ObjectTree(object_id="part")])
        own = ObjectTree(object_id=f"own {number}")
        body = ObjectTree(object_id=f"content {number}", children=[own, shared])
        metadata = SimpleNamespace(created_at=0.0, ttl=until)
        self.response = SimpleNamespace(
            messages_list=[SimpleNamespace(metadata=metadata)],
            message_object_trees=[ObjectTree(object_id=f"message {number}", children=[body])],
        )
        self.names = {f"message {number}", f"content {number}", f"own {number}", "shared", "part"}


STATE = SimpleNamespace(rows=lambda text, values: [])


def test_a_node_may_fetch_its_last_messages_until_they_expire():
    delivered = DeliveredObjects()
    trees = [Tree(number) for number in range(delivered_objects.MESSAGES + 1)]
    for tree in trees:
        delivered.note(7, tree.response)
    for tree in trees[1:]:
        assert delivered.among(7, [*tree.names, "message 0", "another"]) == tree.names
    assert not delivered.has(7, "own 0", STATE)
    assert delivered.has(7, "own 1", STATE)
    assert not delivered.has(8, "own 1", STATE)
    delivered.note(9, Tree(1, until=1.0).response)
    assert not delivered.has(9, "own 1", STATE)
    delivered.note(9, PullMessagesResponse())


def test_nodes_share_the_names_of_what_they_have_in_common():
    delivered = DeliveredObjects()
    for node in range(100):
        delivered.note(node, Tree(node).response)
    assert len({id(m.records[1]) for each in delivered._of_node.values() for m in each.values()}) == 1
    assert len(delivered._records) == 101
