"""The state with few statements stores, finds, refuses and deletes the same messages as Flower's own."""

import random
import time

import pytest
from flwr.app import Error, RecordDict
from flwr.common.constant import HEARTBEAT_PATIENCE, SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as WireMessage
from flwr.proto.message_pb2 import Metadata, ObjectTree
from flwr.proto.recorddict_pb2 import RecordDict as WireRecordDict
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.utils import uint64_to_int64
from flwr.superlink.federation import NoOpFederationManager

from deploy.fleet.storage import messages
from deploy.fleet.storage.messages import FewStatements
from tests.support.states import made_shared

RUN, ENDED = 2**64 - 1, 7  # a run that is going on, and one that has ended
NODES = (2**64 - 2, 5, 6)  # the last one is offline
STRANGER = 8  # no node has this id


class Stock(SqlLinkState):
    """Flower's state, whose methods have the names that this project's have."""

    node_of_key, note_heartbeat = (
        SqlLinkState.get_node_id_by_public_key,
        SqlLinkState.acknowledge_node_heartbeat,
    )
    valid_message, go_offline = SqlLinkState.get_valid_message_ins, SqlLinkState.deactivate_node
    expect_objects = SqlLinkState.preregister_object_tree

    def store_message(self, found):
        return self.store_message_ins(message_from_proto(found)) is not None

    def store_reply(self, found):
        return self.store_message_res(message_from_proto(found)) is not None

    def next_message(self, node):
        found = self.get_message_ins(node, 1)
        return message_to_proto(found[0]) if found else None

    def come_online(self, node, heartbeat_interval, *, returns):
        if returns:
            self.deactivate_node(node)
        return self.activate_node(node, heartbeat_interval)

    def rows(self, statement):
        return [tuple(row.values()) for row in self.query(statement)]


def made(kind, path, store=SqlObjectStore):
    store = store(str(path), verify=False)
    store.initialize()
    state = kind(str(path), NoOpFederationManager(), store)
    state.initialize()
    for run, finished in ((RUN, None), (ENDED, "2026-01-01 00:00:00.000000")):
        run = uint64_to_int64(run)
        state.query(
            "INSERT INTO run (run_id, federation_id, primary_task_id) VALUES (:run, :federation, :run)",
            {"run": run, "federation": NOOP_FEDERATION_ID},
        )
        state.query(
            "INSERT INTO task (task_id, type, run_id, pending_at, finished_at) "
            "VALUES (:run, 'x', :run, '2026-01-01 00:00:00.000000', :finished)",
            {"run": run, "finished": finished},
        )
    for node in NODES:
        state.query(
            "INSERT INTO node (node_id, owner_aid, owner_name, status, registered_at, online_until, "
            "heartbeat_interval, public_key) VALUES (:node, 'a', 'b', :status, 'then', :until, 30, :key)",
            {
                "node": uint64_to_int64(node),
                "status": "offline" if node == NODES[-1] else "online",
                "until": 0 if node == NODES[-1] else time.time() + 1000,
                "key": str(node).encode(),
            },
        )
    return state


@pytest.fixture(params=["sqlite", "postgres"])
def states(request, tmp_path):
    flower = made(Stock, tmp_path / "flower")
    if request.param == "sqlite":
        return [flower, made(FewStatements, tmp_path / "few")]
    few = made_shared(FewStatements), request.getfixturevalue("postgres").database()
    return [flower, made(*few, store=made_shared(SqlObjectStore))]


def message(number, node, *, run=RUN, to="", ttl=900.0, age=0.0):
    """Return a message to a node, or the reply of a node to the message with the id `to`."""
    ends = (node, SUPERLINK_NODE_ID) if to else (SUPERLINK_NODE_ID, node)
    metadata = Metadata(
        run_id=run,
        message_id=f"{number:064x}",
        src_node_id=ends[0],
        dst_node_id=ends[1],
        reply_to_message_id=to,
        group_id="1",
        created_at=1.8e9 + number - age,
        ttl=ttl,
        message_type="train",
    )
    return WireMessage(metadata=metadata, content=WireRecordDict())


def shown(found):
    """Return what two states must agree on. A state makes its errors itself, at its own time."""
    metadata, error = found.metadata, found.error if found.has_error() else None
    own = (metadata.message_id, metadata.created_at, metadata.ttl) if error is None else ()
    ends = metadata.src_node_id, metadata.dst_node_id
    kind = error.code if isinstance(error, Error) else RecordDict
    return (metadata.reply_to_message_id, metadata.run_id, metadata.group_id, *ends, *own, kind)


def rows(state):
    """Return all messages and the online nodes in the database; of a delivery only whether it has been."""
    found = []
    for table in ("message_ins", "message_res"):
        for row in state.query(f"SELECT * FROM {table} ORDER BY message_id"):
            found.append(row | {"delivered_at": bool(row["delivered_at"])})
    return found


def compared(states, results):
    assert results[0] == results[1]
    assert rows(states[0]) == rows(states[1])


@pytest.mark.parametrize("seed", range(3))
def test_messages_are_stored_delivered_and_answered_as_in_flower(states, seed, monkeypatch):
    from flwr.server.superlink.linkstate import sql_linkstate
    from flwr.server.utils import validator

    chance = random.Random(seed)
    clock = 1.8e9 + 10.0
    real = sql_linkstate.now

    def now():
        return real().fromtimestamp(clock, tz=real().tzinfo)

    monkeypatch.setattr(sql_linkstate, "now", now)
    monkeypatch.setattr(validator, "now", now)
    monkeypatch.setattr(messages, "now", now)
    for state in states:
        state.query("UPDATE node SET online_until = :t WHERE online_until > 0", {"t": 1.8e9 + 200})
    sent = []
    outcomes = set()
    for number in range(150):
        clock += chance.random() * 2
        action = chance.choice(("send", "send", "claim", "reply", "reply", "replies", "find", "delete"))
        node = chance.choice((*NODES, STRANGER) if action == "send" else NODES[:2])
        some = chance.sample(sent, min(len(sent), 3))
        results = []
        for state in states:
            if action == "send":
                run = ENDED if number % 9 == 0 else RUN
                ttl = 20.0 if number % 3 else 900.0
                sending = message(number, node, run=run, ttl=ttl)
                # Flower's runtime API checks the message before.
                fits = not any(validator.validate_message(message_from_proto(sending), False))
                results.append(fits and state.store_message(sending))
            elif action == "claim":
                results.append(state.next_message(node))
            elif action == "reply" and some:
                to, owner = some[0]
                src = node if number % 7 == 0 else owner  # an answer of another node is refused
                run = ENDED if number % 11 == 0 else RUN
                ttl = 9000.0 if number % 13 == 0 else 1.0 if number % 3 == 0 else 15.0
                age = -max(0.0, clock - 1.8e9 - number)  # it is made now
                results.append(state.store_reply(message(number, src, run=run, to=to, ttl=ttl, age=age)))
            elif action == "replies":
                asked = {name for name, _ in some[number % 3 :]} | ({"f" * 64} if number % 4 == 0 else set())
                results.append(sorted(map(shown, state.get_message_res(asked, RUN)), key=str))
            elif action == "find":
                results.append([state.valid_message(name) is None for name, _ in some])
            elif action == "delete" and number % 3 == 0:
                state.delete_messages({name for name, _ in some})
                results.append(None)
            else:
                results.append(None)
        if action == "send" and results[0]:
            sent.append((f"{number:064x}", node))
        outcomes.add(f"{action} {bool(results[0])}")
        compared(states, results)
    wanted = {
        f"{action} {done}" for action in ("send", "claim", "reply", "replies") for done in (True, False)
    }
    assert outcomes >= wanted


def test_a_message_or_reply_that_is_sent_again_is_stored_once(states):
    now = 1.8e9
    results = []
    for state in states:
        asked = message(1, NODES[0], age=now - time.time())
        found = [state.store_message(asked) for _ in range(2)]
        to = asked.metadata.message_id
        reply = message(2, NODES[0], to=to, ttl=100.0, age=now - time.time())
        other = message(3, NODES[0], to=to, ttl=100.0, age=now - time.time())
        found += [state.store_reply(each) for each in (reply, reply, other)]
        # An id with a NUL character is another id.
        disguised = message(4, NODES[0], to=f"{to}\0", ttl=100.0, age=now - time.time())
        found += [state.store_reply(disguised), state.valid_message(f"{to}\0")]
        results.append(found)
        assert (
            len(state.query("SELECT * FROM message_res"))
            == len(state.query("SELECT * FROM message_ins"))
            == 1
        )
    assert results[0] == results[1]
    assert results[0] == [True, True, True, True, False, False, None]


def test_replies_to_messages_of_another_run_are_not_given(states):
    for state in states:
        sent = message(1, NODES[0], age=1.8e9 - time.time())
        assert state.store_message(sent)
        with pytest.raises(ValueError, match="invalid IDs"):
            state.get_message_res({sent.metadata.message_id}, ENDED)


def test_a_reply_is_given_once_more_if_its_answer_was_lost(states):
    state = states[1]
    asked = message(1, NODES[0], age=1.8e9 - time.time())
    assert state.store_message(asked)
    to = {asked.metadata.message_id}
    assert state.store_reply(
        message(2, NODES[0], to=asked.metadata.message_id, ttl=100.0, age=1.8e9 - time.time())
    )
    (found,) = state.get_message_res(to, RUN)
    assert state.get_message_res(to, RUN) == []
    state.hand_out_again(to | {"f" * 64})
    (again,) = state.get_message_res(to, RUN)
    assert again.metadata.message_id == found.metadata.message_id


def test_an_app_gets_its_messages_too(states):
    for state in states:
        assert state.get_message_ins(SUPERLINK_NODE_ID, None, run_id=RUN) == []
        sent = message(1, SUPERLINK_NODE_ID, age=1.8e9 - time.time())
        assert state.store_message(sent)
        assert state.get_message_ins(SUPERLINK_NODE_ID, None, run_id=ENDED) == []
        (found,) = state.get_message_ins(SUPERLINK_NODE_ID, None, run_id=RUN)
        assert found.metadata.message_id == sent.metadata.message_id
        assert state.get_message_ins(SUPERLINK_NODE_ID, None, run_id=RUN) == []


def test_heartbeats_are_noted_and_keys_are_found_as_in_flower(states):
    results = []
    for state in states:
        before = {row["node_id"]: row["last_activated_at"] for row in state.query("SELECT * FROM node")}
        found = [state.note_heartbeat(node, 30.0) for node in (*NODES, STRANGER)]
        state.query("UPDATE node SET status = 'unregistered' WHERE node_id = 5")
        found += [state.note_heartbeat(5, 30.0)]
        found += [state.node_of_key(str(node).encode()) for node in (*NODES, STRANGER)]
        for row in state.query("SELECT * FROM node ORDER BY node_id"):
            back = row["last_activated_at"] != before[row["node_id"]]
            soon = abs(row["online_until"] - time.time() - 30.0 * HEARTBEAT_PATIENCE) < 60
            found.append((row["node_id"], row["status"], row["heartbeat_interval"], soon, back))
        results.append(found)
    assert results[0] == results[1]
    assert results[0][:8] == [True, True, True, False, False, NODES[0], None, NODES[2]]
    assert [back for *_, back in results[0][9:]] == [False, False, True]  # only the last one was offline


def test_a_serverapp_is_told_of_the_nodes_that_flower_tells_it_of(states):
    flower, few = states
    for state in states:
        state.query("UPDATE node SET name = 'a', online_until = 7 WHERE node_id = 5")  # it has just left
    nodes = few.nodes_for(RUN)
    expected = flower.get_node_info(node_ids=list(flower.get_nodes(RUN)))
    for each in (*nodes, *expected):
        each.online_until = 0  # the states were made at two times
    assert nodes == expected
    assert [node.node_id for node in nodes] == [NODES[0]]
    assert few.nodes_for(RUN + 1) == []


@pytest.mark.parametrize("returns", [False, True])
def test_nodes_come_online_as_in_flower(states, returns):
    results = []
    for state in states:
        found = []
        state.query("UPDATE node SET online_until = 1 WHERE node_id = :node", {"node": NODES[1]})  # expired
        for node in (*NODES, STRANGER):
            found.append(state.come_online(node, 30.0, returns=returns))
        found += [state.go_offline(node) for node in (NODES[0], STRANGER)]
        for row in state.query("SELECT * FROM node ORDER BY node_id"):
            soon = abs(row["online_until"] - time.time() - 30.0 * HEARTBEAT_PATIENCE) < 60
            found.append((row["node_id"], row["status"], row["heartbeat_interval"], soon))
            found.append(row["last_deactivated_at"] is None)
        results.append(found)
    assert results[0] == results[1]
    assert results[0][:4] == [returns, True, True, False]


def test_push_sessions_are_kept_as_in_flower(states):
    tree = ObjectTree(object_id=f"{1:064x}", children=[ObjectTree(object_id=f"{2:064x}")])
    results = []
    for state in states:
        first, second = state.start_session(RUN), state.start_session(RUN)
        found = [sorted(state.expect_objects(tree, first))]
        found.append(sorted(state.expect_objects(tree, second)))  # takes over the objects
        with pytest.raises(ValueError, match="Unknown object push session"):
            state.expect_objects(tree, "none")
        names = {first: "first", second: "second"}
        for table in ("object_push_sessions", "object_push_session_roots", "object_push_session_pending"):
            for row in state.query(f"SELECT * FROM {table}"):
                row["session_id"] = names[row["session_id"]]
                if "expires_at" in row:
                    row["expires_at"] = len(str(row["expires_at"]))  # later than in Flower
                found.append(sorted(row.items()))
        results.append(found)
    assert results[0] == results[1]


def test_a_message_that_its_node_has_given_up_does_not_stop_the_push_of_the_others(states):
    """In Flower it does: the ServerApp's whole round is lost."""
    state = states[1]
    session = state.start_session(RUN)
    one, its_part, other, others_part = names = [f"{number:064x}" for number in range(1, 5)]
    for root, part in ((one, its_part), (other, others_part)):
        state.expect_objects(ObjectTree(object_id=root, children=[ObjectTree(object_id=part)]), session)
    state.objects.delete(one)
    assert all(state.store_object(RUN, session, name, b"content") for name in names)
    assert [state.objects.get(name) for name in names] == [None, None, b"content", b"content"]
    assert state.query("SELECT * FROM object_push_sessions") == []


@pytest.mark.parametrize("states", ["sqlite"], indirect=True)
def test_a_nodes_next_message_is_found_by_the_index(states):
    with states[1].session() as session:
        explain = session.connection().exec_driver_sql
        plan = [row[3] for row in explain(f"EXPLAIN QUERY PLAN {messages._CLAIM_FIRST}", ("now", 5, 0.0))]
        assert any("cohort_waiting (dst_node_id=?)" in step for step in plan)
        assert not any(step.startswith("SCAN") for step in plan)
