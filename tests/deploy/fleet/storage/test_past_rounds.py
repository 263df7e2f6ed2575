"""Messages of past rounds reach no client, and leave nothing in a real SuperLink's database."""

import time
from types import SimpleNamespace

import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.utils import uint64_to_int64
from flwr.superlink.grid import http_grid

from deploy.fleet.storage import past_rounds
from strategies.flower.buffered_messages import buffered_group
from tests.support.fleet import random_bytes

pytestmark = pytest.mark.network
MODEL = 2600  # bytes


def rounds_waiting(node):
    """Return the rounds of the message that a node receives, without confirming it."""
    response = node.ask("PullMessages", PullMessagesRequest(node=node.id))
    return [each.metadata.group_id for each in response.messages_list]


def objects(app, superlink):
    """Return how many objects of a run the database holds."""
    query = "SELECT count(*) AS n FROM run_objects JOIN objects USING (object_id) WHERE run_id = :run"
    (row,) = superlink.state.query(query, {"run": uint64_to_int64(app.run.run_id)})
    return int(row["n"])


def expire(superlink, message_id):
    superlink.state.query(
        "UPDATE message_ins SET created_at = created_at - 1000 WHERE message_id = :id", {"id": message_id}
    )


def test_who_comes_back_gets_no_message_of_a_past_round(superlink, app, node):
    app.send(node, MODEL)  # a question without a round stays
    missed = [app.send(node, MODEL, round=number) for number in (1, 2)]
    app.send(node, MODEL, round=3)
    assert rounds_waiting(node) == [""]
    node.receive()  # confirms it
    assert rounds_waiting(node) == ["3"]
    assert all(each.has_error() for each in app.replies(*missed).values())


def test_a_message_that_a_node_did_not_confirm_in_its_round_is_not_delivered_again(app, node):
    app.send(node, MODEL, round=1)
    assert rounds_waiting(node) == ["1"] == rounds_waiting(node)
    app.send(node, MODEL, round=2)
    assert rounds_waiting(node) == ["2"]


def test_a_node_gives_up_an_incomplete_message_when_the_next_round_begins(app, node, monkeypatch):
    def fail(*_, **__):
        raise ObjectPushError("part", 7, "session")

    with monkeypatch.context() as broken:
        broken.setattr(http_grid, "push_objects", fail)
        with pytest.raises(ObjectPushError):
            app.send(node, MODEL, round=1)
    (message,) = node.ask("PullMessages", PullMessagesRequest(node=node.id)).messages_list
    wanted = PullObjectRequest(
        node=node.id, run_id=app.run.run_id, object_id=message.metadata.message_id
    )  # the root of the message's parts
    waiting = node.ask("PullObject", wanted)
    assert (waiting.object_found, waiting.object_available) == (True, False)  # the node asks again
    app.send(node, MODEL, round=2)
    assert not node.ask("PullObject", wanted).object_found
    assert rounds_waiting(node) == ["2"]


def test_a_deletion_that_failed_is_repeated_with_the_next_message(monkeypatch):
    outcomes = iter([None, OSError("database is locked"), None])
    tried = []

    def delete(state, run_id, number):
        tried.append(number)
        if (error := next(outcomes)) is not None:
            raise error

    monkeypatch.setattr(past_rounds, "_delete_before", delete)
    past = past_rounds.PastRounds()
    for number in (1, 1, 2, 2, 2):
        past.message_comes(None, SimpleNamespace(run_id=7, group_id=str(number), reply_to_message_id=""))
    assert tried == [1, 2, 2]


def test_a_late_reply_to_a_past_round_arrives_until_it_expires(superlink, app, node):
    sent = app.send(node, MODEL, round=1)
    reply = Message(RecordDict({"arrays": ArrayRecord([random_bytes(MODEL)])}), reply_to=node.receive())
    app.send(node, MODEL, round=2)
    node.answer(reply)
    assert app.replies(sent)[sent].has_content()


def test_past_rounds_leave_no_objects_in_the_database(superlink, app, node):
    absent, late = superlink.node("absent"), superlink.node("late")
    for each in (absent, late):
        each.activate()
    offline = "UPDATE node SET online_until = :time WHERE node_id = :id"
    kept = 0
    for number in range(1, 6):
        app.send(node, MODEL + 1, round=number)  # is not received
        lost = app.send(absent, MODEL + 2, round=number)
        superlink.state.query(offline, {"time": 0, "id": uint64_to_int64(absent.number)})
        assert app.replies(lost)[lost].has_error()
        superlink.state.query(offline, {"time": time.time() + 1000, "id": uint64_to_int64(absent.number)})
        sent = app.send(late, MODEL + 3, round=number)
        arrays = RecordDict({"arrays": ArrayRecord([random_bytes(MODEL + 10 + number)])})
        late.answer(Message(arrays, reply_to=late.receive()))  # nobody fetches it
        expire(superlink, sent)
        if number == 2:
            kept = objects(app, superlink)
    assert objects(app, superlink) == kept > 0


def test_messages_of_buffered_rounds_stay_until_they_expire(superlink, app, node):
    """A client that is slow, or receives nothing, may be asked in one of a thousand rounds."""
    kept = 0
    for number in range(1, 6):
        sent = app.send(node, MODEL, round=buffered_group(number))
        if number == 1:
            kept = objects(app, superlink)
        assert objects(app, superlink) == kept > 0
        expire(superlink, sent)
    app.send(node, MODEL, round=buffered_group(6))
    app.send(superlink.node("other"), MODEL, round=buffered_group(7))
    assert rounds_waiting(node) == ["buffered 6"]
