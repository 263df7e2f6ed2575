"""A node gets a message again until it confirms it; a ServerApp finds a reply once it is complete."""

import importlib
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from flwr.app import MetricRecord
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.superlink.federation import NoOpFederationManager

from deploy.fleet import protocol
from deploy.fleet.duties import deliveries
from deploy.fleet.duties.duties import Duties
from deploy.fleet.service import FleetService
from deploy.fleet.state import CohortLinkState
from deploy.fleet.storage.messages import FewStatements
from deploy.fleet.storage.objects import CohortObjectStore
from deploy.fleet.storage.past_rounds import PastRounds

NODE, OTHER, BANNED = 11, 12, 13


class Servicer:
    """Delivers messages as the Fleet service does."""

    def __init__(self, unconfirmed):
        self.messages = {}
        self._unconfirmed = unconfirmed

    def send(self, node, text, *, ttl=100.0):
        metadata = SimpleNamespace(message_id=text, created_at=time.time(), ttl=ttl, run_id=1, group_id="")
        self.messages.setdefault(node, []).append(SimpleNamespace(metadata=metadata))

    def asked_by(self, node):
        response = self._unconfirmed.again(node)
        if response is None:
            waiting = self.messages.get(node, [])
            response = SimpleNamespace(messages_list=[waiting.pop(0)] if waiting else [])
            self._unconfirmed.note(node, response)
        return [message.metadata.message_id for message in response.messages_list]


@pytest.fixture
def unconfirmed():
    return deliveries.Unconfirmed(PastRounds())


@pytest.fixture
def servicer(unconfirmed):
    return Servicer(unconfirmed)


def test_a_message_is_delivered_until_its_node_confirms_it(servicer, unconfirmed):
    servicer.send(NODE, "first")
    servicer.send(NODE, "second")
    servicer.send(OTHER, "another")
    assert servicer.asked_by(NODE) == ["first"]
    assert servicer.asked_by(OTHER) == ["another"]
    assert servicer.asked_by(NODE) == ["first"]  # the answer was lost
    unconfirmed.forget(NODE)
    assert servicer.asked_by(NODE) == ["second"]
    unconfirmed.forget(NODE)
    assert servicer.asked_by(NODE) == []
    assert servicer.asked_by(OTHER) == ["another"]


def test_a_message_that_cannot_be_received_is_given_up(servicer):
    servicer.send(NODE, "broken")
    servicer.send(NODE, "next")
    received = [servicer.asked_by(NODE) for _ in range(deliveries.ATTEMPTS + 1)]
    assert received == [["broken"]] * deliveries.ATTEMPTS + [["next"]]


def test_an_answer_that_fails_in_the_server_is_no_delivery(unconfirmed):
    """As when the database restarts: a node asks more often than a message is delivered."""
    duties = Duties()
    duties.unconfirmed = unconfirmed
    down, failures = [True] * (2 * deliveries.ATTEMPTS), []

    def note_delivery(response, node):
        if down:
            failures.append(down.pop())
            raise OSError("the database is down")

    metadata = Metadata(message_id="first", created_at=time.time(), ttl=100.0)
    response = PullMessagesResponse(
        messages_list=[Message(metadata=metadata)], message_object_trees=[ObjectTree(object_id="first")]
    )
    unconfirmed.note(NODE, response)
    replies = SimpleNamespace(note_delivery=note_delivery)
    service = FleetService(None, duties, replies, None, None)
    context = SimpleNamespace(invocation_metadata=lambda: ())
    while down:
        with pytest.raises(OSError, match="down"):
            service.pull_messages(None, NODE, context)
    assert len(failures) > deliveries.ATTEMPTS
    for _ in range(deliveries.ATTEMPTS - 1):  # the connection breaks; `note` above was the first delivery
        assert service.pull_messages(None, NODE, context) is response
    assert unconfirmed.again(NODE) is None


def test_a_message_that_has_expired_is_not_delivered_again(servicer):
    servicer.send(NODE, "old", ttl=0.0)
    assert servicer.asked_by(NODE) == ["old"]
    assert servicer.asked_by(NODE) == []


# --- replies -------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path, unconfirmed, monkeypatch):
    """The SuperLink's own state, without Flower's own checks of messages and nodes."""
    sql = importlib.import_module("sqlalchemy")
    reply = importlib.import_module("flwr.supercore.state.schema.linkstate_models").MessageRes
    store_object = FewStatements.store_object

    def get_message_res(this, message_ids, run_id):
        claimed = (
            sql.update(reply)
            .where(reply.reply_to_message_id.in_(message_ids), reply.delivered_at == "")
            .values(delivered_at="now")
            .returning(reply.message_id)
        )
        with this.session() as database:
            found = sorted(database.scalars(claimed))
        return [SimpleNamespace(metadata=SimpleNamespace(message_id=each)) for each in found]

    def fail_at_first(this, run_id, session_id, object_id, content):
        if this.failures:
            this.failures -= 1
            return False
        return store_object(this, run_id, session_id, object_id, content)

    monkeypatch.setattr(FewStatements, "get_message_res", get_message_res)
    monkeypatch.setattr(FewStatements, "store_object", fail_at_first)
    monkeypatch.setattr(FewStatements, "come_online", lambda this, node_id, *_, **__: node_id != BANNED)

    class State(CohortLinkState):
        failures = 0

        def add_reply(self, to, parts, node=NODE):
            """Store the reply "re: TO", of which so many parts are missing; return the id of its push."""
            root = importlib.import_module(
                "flwr.supercore.state.schema.corestate_models"
            ).ObjectPushSessionRoot
            session = self.start_session(1)
            with self.session() as database:
                database.execute(sql.text("PRAGMA foreign_keys = OFF"))
                new = {"message_id": f"re: {to}", "reply_to_message_id": to, "delivered_at": ""}
                new |= {"src_node_id": node}
                database.execute(sql.insert(reply).values(new))
                database.execute(sql.insert(root).values(session_id=session, root_object_id=f"re: {to}"))
            self.set_push(session, pending_count=parts)
            return session

        def set_push(self, session, **values):
            push = importlib.import_module("flwr.supercore.state.schema.corestate_models").ObjectPushSession
            with self.session() as database:
                database.execute(sql.update(push).where(push.session_id == session).values(values))

        def found(self, *ids):
            return [each.metadata.message_id for each in self.get_message_res(set(ids), 1)]

        def add_message(self, message_id, node, *, delivered=True):
            message = importlib.import_module("flwr.supercore.state.schema.linkstate_models").MessageIns
            new = {"message_id": message_id, "dst_node_id": node, "delivered_at": "now" if delivered else ""}
            with self.session() as database:
                database.execute(sql.insert(message).values(new))

        def messages(self):
            message = importlib.import_module("flwr.supercore.state.schema.linkstate_models").MessageIns
            with self.session() as database:
                return sorted(database.scalars(sql.select(message.message_id)))

        def expect_part(self, session, object_id):
            schema = importlib.import_module("flwr.supercore.state.schema.corestate_models")
            with self.session() as database:
                new = {"session_id": session, "object_id": object_id}
                database.execute(sql.insert(schema.ObjectPushSessionPending).values(new))
                part = {"object_id": object_id, "content": b"", "is_available": 0, "ref_count": 0}
                objects = importlib.import_module("flwr.supercore.object_store.sql_object_store")
                database.execute(sql.insert(objects.StoredObject).values(part))

    duties, path = Duties(), str(tmp_path / "state.db")
    duties.unconfirmed = unconfirmed
    duties.presence = SimpleNamespace(returns=lambda node: True)
    objects = CohortObjectStore(path)
    objects.initialize()
    state = State(path, NoOpFederationManager(), objects, duties)
    state.initialize()
    yield state
    for each in (state, objects):
        each._engine.dispose()


def test_a_reply_is_found_when_its_last_part_has_arrived(state):
    push = state.add_reply("a", 2)
    state.add_reply("b", 0)
    assert state.found("a", "b", "c") == ["re: b"]
    assert state.found("a", "b", "c") == []
    state.set_push(push, pending_count=0)
    assert state.found("a", "b", "c") == ["re: a"]
    assert state.found("a", "b", "c") == []


def test_a_reply_whose_push_has_expired_is_found(state):
    push = state.add_reply("a", 2)
    assert state.found("a") == []
    now = protocol.now()
    state.set_push(push, expires_at=now - timedelta(seconds=1))
    assert state.found("a") == ["re: a"]


def test_a_node_that_restarts_gives_up_what_it_received_before(state, servicer, unconfirmed):
    for name in ("confirmed", "half replied", "replied", "unconfirmed"):
        state.add_message(name, NODE)
    state.add_message("waiting", NODE, delivered=False)
    state.add_message("another's", OTHER)
    state.add_reply("half replied", 2)
    state.add_reply("replied", 0)
    state.add_reply("another's half", 2, node=OTHER)
    before = state.messages()
    servicer.send(NODE, "unconfirmed")
    assert servicer.asked_by(NODE) == ["unconfirmed"]
    assert not state.activate(BANNED, 30.0)
    assert state.messages() == before
    assert state.activate(NODE, 30.0)
    assert state.messages() == ["another's", "replied", "unconfirmed", "waiting"]
    assert state.found("half replied", "replied") == ["re: replied"]
    unconfirmed.forget(NODE)
    assert state.activate(NODE, 30.0)
    assert state.messages() == ["another's", "replied", "waiting"]


def test_a_part_is_stored_in_spite_of_a_locked_database_and_may_be_pushed_twice(state):
    push = state.add_reply("a", 2)
    record = MetricRecord({"loss": 1.0})
    content, part = record.deflate(), record.object_id
    state.expect_part(push, part)
    state.failures = deliveries.ATTEMPTS - 1
    assert state.store_object(1, push, part, content)
    assert state.failures == 0
    assert state.object_store.get(part) == content
    assert state.store_object(1, push, part, content)  # the answer was lost
    assert not state.store_object(1, push, part, b"a guess of the name only")
    assert not state.store_object(1, push, "0" * 64, b"")
    assert not state.store_object(1, push, "0" * 64, content)  # nobody expects it
