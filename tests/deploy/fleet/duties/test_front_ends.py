"""Front ends of one server, in this process: what happens at one of them is right at the other."""

import threading
import time
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID, Status
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import Message as WireMessage
from flwr.proto.message_pb2 import Metadata as WireMetadata
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.recorddict_pb2 import RecordDict as WireRecordDict
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from sqlalchemy.exc import DataError

from deploy.fleet import protocol, wire
from deploy.fleet.admission import reply_admission
from deploy.fleet.admission.reply_admission import ReplyAdmission
from deploy.fleet.duties import front_ends, presence, spread
from deploy.fleet.duties.duties import Duties
from deploy.fleet.errors import RequestRefused
from deploy.fleet.storage.shared_registry import SharedRegistry
from deploy.processes.groups import wait_until
from tests.deploy.fleet.duties.test_held_requests import Call
from tests.support.postgres import shared

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:alembic")
PART = ConfigRecord({"round": 1})


class Connection(Call):
    """The server's side of a call that lasts as long as the node's connection."""

    def __init__(self, *headers):
        super().__init__()
        self.headers = headers

    def invocation_metadata(self):
        return self.headers

    def peer(self):
        return "ipv4:127.0.0.1:1"


class Front:
    """A front end without its servers. It hears and tells only when it was started."""

    def __init__(self, url, home):
        self.duties = Duties()
        self.state = shared(url, self.duties, home)
        self.duties.presence.begin(self.state)
        self.heard = []
        wake = self.duties.held.wake
        self.duties.held.wake = lambda receiver: self.heard.append(receiver) or wake(receiver)

    def start(self):
        self.state.front_end.start(self.state, self.duties)
        assert wait_until(lambda: self.row("cohort_front_end", "name", self.state.front_end.name), 20)
        return self

    def row(self, table, column, value):
        return self.state.rows(f"SELECT * FROM {table} WHERE {column} = ?", (value,))

    def run(self):
        """Return a new run that a ServerApp works on."""
        given = ("a/b", "1", "hash", {}, NOOP_FEDERATION_ID, None, "x", TaskType.SERVER_APP)
        run = self.state.create_run(*given)
        ((task,),) = self.state.rows(
            "SELECT primary_task_id FROM run WHERE run_id = ?", (protocol.signed(run),)
        )
        assert self.state.claim_task(protocol.unsigned(task))
        assert self.state.activate_task(protocol.unsigned(task))
        return run

    def node(self, name):
        """Return a new node that is connected here."""
        node = self.state.create_node(NOOP_FLWR_AID, name, name.encode(), 0.0)
        assert self.state.activate(node, 30.0)
        return node

    def connect(self, node):
        call = Connection()
        self.state.note_heartbeat(node, presence.FOREVER)
        self.duties.presence.hold(None, node, call).run(lambda look: None, print, print)
        return call

    def send(self, run, node, group="1"):
        """Send a node a message with one object."""
        metadata = Metadata(
            run, PART.object_id, SUPERLINK_NODE_ID, node, "", group, time.time(), 900.0, "train"
        )
        tree = ObjectTree(object_id=PART.object_id)
        session = self.state.start_session(run)
        stored = self.state.store_message_and_object_tree(make_message(metadata, RecordDict()), tree, session)
        assert stored == (True, [PART.object_id])
        assert self.state.store_object(run, session, PART.object_id, PART.deflate())

    def pull(self, node):
        """Return the ids of the messages that the node receives, as the Fleet service does."""
        answer = self.duties.unconfirmed.again(node)
        if answer is None:
            answer = PullMessagesResponse()
            if (message := self.state.next_message(node)) is not None:
                answer.messages_list.append(message)
                answer.message_object_trees.append(self.state.objects.tree_of(message.metadata.message_id))
            self.duties.unconfirmed.note(node, answer)
        return answer


@pytest.fixture
def fronts(postgres):
    url = postgres.database()
    made = [Front(url, home) for home in ("a", "b")]
    yield made
    for each in made:
        each.state.front_end.stop()
        for store in (each.state, each.state.objects):
            store._engine.dispose()


def is_online(state, node):
    ((until, status),) = state.rows(
        "SELECT online_until, status FROM node WHERE node_id = ?", (protocol.signed(node),)
    )
    return status == "online" and until > time.time()


def test_a_held_request_is_answered_when_its_message_arrives_at_another_front_end(fronts):
    one, two = (each.start() for each in fronts)
    run, node = one.run(), two.node("two")
    later = two.duties.held.hold(node, Call(), lambda: two.pull(node))
    later = two.duties.held.hold(node, Call(), lambda: two.pull(node)) if later is None else later
    answers = []
    later.run(lambda look: threading.Thread(target=look).start(), answers.append, print)
    one.send(run, node)
    assert wait_until(lambda: answers, 20)
    (message,) = answers[0].messages_list
    assert message.metadata.message_id == PART.object_id
    assert ("run", run) not in one.heard
    two.state.front_end.tell("run", run)
    assert wait_until(lambda: ("run", run) in one.heard, 20)
    assert ("run", run) not in two.heard  # what it has told itself


def test_a_message_whose_answer_was_lost_is_delivered_by_the_front_end_to_which_the_node_moves(fronts):
    one, two = (each.start() for each in fronts)
    run, node = one.run(), one.node("node")
    gone = one.connect(node)
    one.send(run, node)
    assert one.pull(node).messages_list
    assert one.duties.unconfirmed.of(node) == PART.object_id
    assert not two.pull(node).messages_list  # it was delivered
    two.connect(node)
    assert two.duties.unconfirmed.of(node) == PART.object_id
    assert two.duties.delivered.has(node, PART.object_id, two.state)
    (message,) = two.pull(node).messages_list
    assert message.metadata.message_id == PART.object_id
    assert wait_until(lambda: one.duties.unconfirmed.of(node) is None, 20)
    gone.over()
    assert not one.state.go_offline(node)
    assert is_online(one.state, node)
    two.state.objects.delete(PART.object_id)  # it confirms the message
    one.connect(node)
    assert one.duties.unconfirmed.of(node) is None
    assert two.state.go_offline(node) is False
    assert one.state.go_offline(node)


def test_a_message_that_its_node_confirms_while_it_moves_is_not_delivered_again(fronts, monkeypatch):
    one, two = fronts
    run, node = one.run(), one.node("node")
    one.connect(node)
    one.send(run, node)
    assert one.pull(node).messages_list
    look = two.state._unconfirmed

    def then_confirmed(node_id):
        found = look(node_id)
        two.state.objects.delete(PART.object_id)
        two.duties.unconfirmed.forget(node_id)
        return found

    monkeypatch.setattr(two.state, "_unconfirmed", then_confirmed)
    two.connect(node)
    assert not two.pull(node).messages_list


def test_a_message_is_not_delivered_over_the_connection_that_a_node_has_left(fronts):
    one, two = fronts  # which hear nothing: the news that the node has moved is on its way
    run, node = one.run(), one.node("node")
    one.connect(node)
    two.connect(node)
    one.send(run, node)
    assert not one.pull(node).messages_list
    (message,) = two.pull(node).messages_list
    assert message.metadata.message_id == PART.object_id


def test_a_request_that_comes_before_the_first_heartbeat_elsewhere_does_not_hide_a_message(fronts):
    one, two = fronts
    run, node = one.run(), one.node("node")
    one.send(run, node)
    before = two.duties.held.hold(node, Call(), lambda: two.pull(node))
    two.connect(node)
    assert not before.wait().messages_list
    answer = two.duties.held.hold(node, Call(), lambda: two.pull(node))
    assert [each.metadata.message_id for each in answer.messages_list] == [PART.object_id]


def test_the_devices_of_each_front_end_are_counted(fronts, monkeypatch, tmp_path):
    monkeypatch.setattr(spread, "LOOK", 0.1)
    one, two = fronts
    for each in fronts:
        each.state.front_end.address = "fl.example.org:9092"  # a common name
        each.start()
    counted = SharedRegistry(tmp_path, one.state.rows, one.state.alone).devices
    assert wait_until(lambda: counted() == {"a": 0, "b": 0}, 20)
    nodes = [one.node(name) for name in ("x", "y", "z")]  # without heartbeats: they are not connected
    calls = [one.connect(node) for node in nodes]
    assert wait_until(lambda: counted() == {"a": 3, "b": 0}, 20)
    two.connect(nodes[0])  # its old connection has not ended yet
    calls[1].over()
    assert wait_until(lambda: counted() == {"a": 1, "b": 1}, 20)


def test_idle_nodes_are_sent_to_a_front_end_that_has_come_back(fronts, monkeypatch):
    monkeypatch.setattr(spread, "COMES", 0.1)
    one, two = fronts
    one.state.front_end.address, two.state.front_end.address = "one:1", "two:1"
    one.start()
    nodes = [one.node(f"node {number}") for number in range(6)]
    answers = {}

    def answered(node):
        return lambda answer: answers.update({node: one.duties.spread.better(node)})

    for node in nodes:
        moves = () if node == nodes[0] else (wire.MOVES,)  # it is a device of before
        call = Connection(wire.LONG, *moves)
        one.state.note_heartbeat(node, presence.FOREVER)
        one.duties.presence.hold(None, node, call).run(lambda look: look(), answered(node), print)
    for node in nodes[:5]:  # the last one trains
        one.duties.held.hold(node, Call(), lambda node=node: one.pull(node))
    two.start()
    assert wait_until(lambda: len(answers) == 3, 20)  # of 4 that can move
    assert answers.keys() <= set(nodes[1:5])
    assert all(each == ["two:1"] for each in answers.values())
    assert one.duties.spread.known == ["one:1", "two:1"]


def test_the_nodes_of_a_front_end_that_has_died_get_the_time_to_return(fronts, monkeypatch):
    monkeypatch.setattr(presence, "RETURN", 100.0)
    one, two = fronts
    mine, lost, back = one.node("mine"), two.node("lost"), two.node("back")
    for front, node in ((one, mine), (two, lost), (two, back)):
        front.connect(node)
    two.state.rows("INSERT INTO cohort_front_end VALUES (?, 'b', '', 0)", (two.state.front_end.name,))
    one.start()
    until = "SELECT online_until - ? FROM node WHERE node_id = ?"

    def left(node):
        ((seconds,),) = one.state.rows(until, (time.time(), protocol.signed(node)))
        return seconds

    assert wait_until(lambda: left(lost) < 101, 20)
    assert left(mine) > 1e8
    one.connect(back)
    assert left(back) > 1e8
    two.start()  # it was only paused: it is there again
    assert wait_until(lambda: left(lost) > 1e8, 20)
    assert sorted(one.state.online_nodes()) == sorted([mine, back])


def test_a_key_that_is_revoked_at_one_front_end_is_forgotten_by_the_other(fronts):
    one, two = (each.start() for each in fronts)
    node = two.node("two")
    assert two.state.node_of_key(b"two") == node
    answered = []
    two.duties.presence.answer = answered.append
    one.state.delete_node(NOOP_FLWR_AID, node)
    assert wait_until(lambda: answered == [node], 20)
    assert two.state.node_of_key(b"two") is None


def test_rounds_and_departures_are_told(fronts, monkeypatch):
    one, two = (each.start() for each in fronts)
    run, node = one.run(), one.node("node")
    one.send(run, node, group="7")
    old = SimpleNamespace(group_id="6", run_id=run)
    assert wait_until(lambda: two.duties.past.is_past(old), 20)
    woken = []
    monkeypatch.setattr(two.duties.held, "wake_apps", lambda: woken.append(True))
    one.duties.held.look_again()
    assert wait_until(lambda: woken, 20)


def waiting(postgres):
    """Return how many transactions wait for a lock."""
    return postgres.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0]


def test_what_was_told_while_the_database_was_away_is_found_in_its_tables(fronts, postgres, monkeypatch):
    monkeypatch.setattr(front_ends, "PAUSE", 0.1)
    one, two = (each.start() for each in fronts)
    run, node = one.run(), two.node("two")
    two.heard.clear()
    postgres.stop()
    with pytest.raises(Exception, match="connection"):
        one.state.rows("SELECT 1")
    postgres.start()
    assert wait_until(lambda: works(one.state), 20)  # the broken connections are replaced
    two.state.front_end.tell = lambda kind, what: None
    one.state.front_end.tell = lambda kind, what: None
    one.duties.held.tell = one.state.front_end.tell  # as if the notification had been lost
    one.send(run, node)
    monkeypatch.setattr(front_ends, "CATCH_UP", 0.1)
    assert wait_until(lambda: ("node", node) in two.heard, 20)


def test_nodes_of_a_front_end_that_is_cut_off_from_the_database_are_let_go(fronts, postgres, monkeypatch):
    monkeypatch.setattr(front_ends, "PAUSE", 0.1)
    monkeypatch.setattr(front_ends, "LEASE", 0.5)
    one = fronts[0].start()
    answered = []
    for number, headers in enumerate([(), (wire.MOVES,)]):
        node, call = one.node(f"node {number}"), Connection(wire.LONG, *headers)
        one.state.note_heartbeat(node, presence.FOREVER)
        note = lambda _, number=number: answered.append(number)  # noqa: E731
        one.duties.presence.hold(None, node, call).run(lambda look: look(), note, print)
    postgres.stop()
    try:
        assert wait_until(lambda: answered == [1], 20)  # the other one is a device of before
    finally:
        postgres.start()


def works(state):
    try:
        return state.rows("SELECT 1") == [(1,)]
    except Exception:
        return False


def test_an_executor_gets_the_runs_that_were_submitted_to_its_front_end(fronts):
    one, two = fronts
    given = ("a/b", "1", "hash", {}, NOOP_FEDERATION_ID, None, "x", TaskType.SERVER_APP)
    run = one.state.create_run(*given)
    pending = {"statuses": [Status.PENDING], "order_by": "pending_at", "ascending": True}
    assert [each.run_id for each in one.state.get_tasks(**pending)] == [run]
    assert two.state.get_tasks(**pending) == []
    assert [each.run_id for each in two.state.get_tasks(run_ids=[run])] == [run]


def test_objects_that_are_pushed_twice_at_the_same_time_count_once(fronts, postgres):
    one, two = fronts
    run, other = one.run(), ConfigRecord({"round": 2})
    session = one.state.start_session(run)
    for part in (PART, other):
        one.state.expect_objects(ObjectTree(object_id=part.object_id), session)
    contents = {PART.object_id: PART.deflate()}
    done = []
    with one.state.session():
        assert one.state.store_objects(run, session, contents)
        again = threading.Thread(target=lambda: done.append(two.state.store_objects(run, session, contents)))
        again.start()
        assert wait_until(lambda: waiting(postgres) == 1, 20)
        assert not done
    again.join(20)
    assert done == [True]
    assert one.row("object_push_sessions", "session_id", session)[0][3] == 1


def test_objects_that_are_stored_while_others_are_deleted_cause_no_deadlock(fronts, postgres):
    one, two = fronts
    run, parts = one.run(), [ConfigRecord({"round": number}) for number in (1, 2)]
    session = one.state.start_session(run)
    for part in parts:
        one.state.expect_objects(ObjectTree(object_id=part.object_id), session)
    contents = {part.object_id: part.deflate() for part in parts}
    first, last = sorted(contents)
    done = []
    with one.state.alone():  # as a run that is stopped deletes its objects, in the order of its messages
        one.state.rows("UPDATE objects SET ref_count = 0 WHERE object_id = ?", (last,))
        store = threading.Thread(target=lambda: done.append(two.state.store_objects(run, session, contents)))
        store.start()
        assert wait_until(lambda: waiting(postgres) == 1, 20)
        one.state.rows("UPDATE objects SET ref_count = 0 WHERE object_id = ?", (first,))
    store.join(20)
    assert done == [True]


def test_actions_follow_the_end_of_the_transaction(fronts):
    one, _ = fronts
    done = []
    with one.state.session(), one.state.objects.session():
        one.state.then(lambda: done.append(1))
        assert not done
    assert done == [1]

    def fail():
        with one.state.session():
            one.state.then(lambda: done.append(2))
            one.state.rows("SELECT 1 / 0")

    with pytest.raises(DataError, match="division"):
        fail()
    assert done == [1]
    one.state.then(lambda: done.append(3))
    assert done == [1, 3]


def test_transactions_that_are_alone_exclude_each_other(fronts, postgres):
    one, two = fronts
    order = []

    def other():
        with two.state.alone():
            order.append("two")

    with one.state.alone(), one.state.objects.alone():
        waits = threading.Thread(target=other)
        waits.start()
        assert wait_until(lambda: waiting(postgres) == 1, 20)
        order.append("one")
    waits.join(20)
    assert order == ["one", "two"]


def test_texts_with_nul_characters_are_other_texts(fronts):
    one, _ = fronts
    assert one.state.rows("SELECT ? = ?", ("a\0", "a")) == [(False,)]


def reply_metadata(run, node, message_id, **more):
    """The metadata of a node's reply to the message that `send` stores."""
    return WireMetadata(
        message_id=message_id,
        run_id=run,
        src_node_id=node,
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=PART.object_id,
        **more,
    )


def test_the_limits_of_replies_know_the_messages_of_all_front_ends_but_count_at_each(fronts):
    one, _ = fronts
    limits = [
        ReplyAdmission(
            SimpleNamespace(state=lambda each=each: each.state), lambda node: 0, each.duties.delivered
        )
        for each in fronts
    ]
    run, node = one.run(), one.node("node")
    assert limits[1].largest_request(10**6) == limits[0].largest_request(10**6) < 10**6
    one.state.rows("INSERT INTO cohort_sent VALUES (?, 1, 100000)", (str(run),))
    for each in limits:
        assert each.largest_request(10**6) > 10**6
    one.send(run, node)
    reply = WireMessage(metadata=reply_metadata(run, node, "1" * 64))
    tree = ObjectTree(object_id="1" * 64)
    for each in limits:
        for attempt in range(reply_admission.ATTEMPTS + 1):
            reason = "answered too often" if attempt == reply_admission.ATTEMPTS else "another hash"
            request = PushMessagesRequest(messages_list=[reply], message_object_trees=[tree])
            with pytest.raises(RequestRefused, match=reason):
                each.check_reply(request, node)


def test_a_front_end_knows_how_much_of_a_reply_has_arrived_at_another(fronts):
    one, two = fronts
    run, node = one.run(), one.node("node")
    one.send(run, node)
    parts = [ConfigRecord({"part": number}) for number in range(2)]
    more = {"created_at": time.time(), "ttl": 100.0, "message_type": "train"}
    metadata = reply_metadata(run, node, "2" * 64, **more)
    children = [ObjectTree(object_id=each.object_id) for each in parts]
    announced = two.state.announce_reply(
        WireMessage(metadata=metadata, content=WireRecordDict()),
        ObjectTree(object_id="2" * 64, children=children),
    )
    assert announced is not None
    content = parts[0].deflate()
    assert two.state.store_object(run, announced[0], parts[0].object_id, content)
    assert one.state.stored_bytes([PART.object_id, "3" * 64]) == {PART.object_id: len(content)}
    assert one.state.get_message_res({PART.object_id}, run) == []  # it is not complete
