"""A contract with Flower: the page finds in the database what the SuperLink's state has written into it."""

import json
import time
from pathlib import Path

import pytest
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from sqlalchemy.exc import SQLAlchemyError

from deploy.fleet.protocol import signed
from deploy.fleet.storage.postgres import is_url
from deploy.page.database import Database, Node, OpenMessage
from deploy.page.run_sources import RunSources
from tests.support.histories import write_history
from tests.support.states import made

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:alembic")


@pytest.fixture
def state(database):
    return made(database)


@pytest.fixture
def read(database):
    """Return what the page reads the database with."""
    return Database(database if is_url(database) else Path(database))


def new_run(state, folder):
    """Return the id of a new run with this output folder, and that of its running ServerApp's task."""
    setting = {"output-dir": str(folder)}
    run = state.create_run(
        "app", "1", "hash", setting, NOOP_FEDERATION_ID, None, "flwr_aid", TaskType.SERVER_APP
    )
    (found,) = state.get_run_info(run_ids=[run])
    assert state.claim_task(found.primary_task_id)
    assert state.activate_task(found.primary_task_id)
    return run, found.primary_task_id


def new_node(state, name):
    node = state.create_node("flwr_aid", "owner", str(name).encode(), 0, name=name)
    assert state.activate(node, 30)
    return node


def test_the_nodes(read, state):
    began = time.time()
    online, offline, removed = (new_node(state, name) for name in ("pi-1", None, "pi-3"))
    idle = state.create_node("flwr_aid", "owner", b"idle", 0, name="pi-4")
    state.go_offline(offline)
    state.delete_node("flwr_aid", removed)
    nodes = read.nodes()
    named = {"pi-1": online, f"node-{offline}": offline, "pi-4": idle}
    assert {name: (node.node_id, node.status) for name, node in nodes.items()} == {
        name: (each.node_id, each.status)
        for name, node in named.items()
        for each in state.get_node_info(node_ids=[node])
    }
    now = time.time()
    assert [nodes[name].is_online(now) for name in named] == [True, False, False]
    assert nodes["pi-1"].seen(now) == now
    assert began - 1 <= nodes[f"node-{offline}"].seen(now) <= now
    assert nodes["pi-4"].seen(now) is None
    # Whose heartbeats stop is offline, although no column says so yet.
    assert not nodes["pi-1"].is_online(now + 1000)
    assert now < nodes["pi-1"].seen(now + 1000) < now + 1000


def test_a_node_that_left_was_last_seen_when_it_left():
    assert Node(1, "offline", online_until=5.0, left=7.0).seen(9.0) == 7.0


def test_the_messages_of_a_round_under_way(read, state, tmp_path):
    (run, _), node = new_run(state, tmp_path / "run"), new_node(state, "pi-1")

    def message(number, kind, *, to=""):
        """Return a message to the node, or the node's reply to the message with the id `to`."""
        source, target = (node, SUPERLINK_NODE_ID) if to else (SUPERLINK_NODE_ID, node)
        metadata = Metadata(
            run_id=run,
            message_id=f"{number:064x}",
            src_node_id=source,
            dst_node_id=target,
            reply_to_message_id=to,
            group_id="3",
            created_at=time.time(),
            ttl=100 if to else 300,  # a reply must not outlive its message
            message_type=kind,
        )
        return Message(metadata=metadata, content=RecordDict())

    train = message(1, "train")
    assert state.store_message(train)
    assert state.store_message(message(2, "evaluate"))
    sent = train.metadata.created_at
    steps = (
        ("asked", lambda: True),
        ("working", lambda: state.next_message(node)),
        ("replied", lambda: state.store_reply(message(3, "train", to=train.metadata.message_id))),
    )
    for phase, step in steps:
        assert step()
        (found,) = read.open_messages()
        assert found == OpenMessage(str(tmp_path / "run"), "3", "pi-1", pytest.approx(sent), phase)


def test_the_log_of_a_serverapp(database, state, tmp_path):
    (tmp_path / "server.json").write_text(json.dumps({"database": database if is_url(database) else ""}))
    for name in ("one", "two"):
        write_history(tmp_path / "runs" / name, [2.0, 1.0], "md")
    (_, one), (_, two), (broken, _) = (
        new_run(state, tmp_path / "runs" / name) for name in ("one", "two", "3")
    )
    state.rows("UPDATE run SET override_config = 'not JSON' WHERE run_id = ?", (signed(broken),))
    state.add_task_log(one, "\x1b[92mINFO\x1b[0m one\nand\x07\n")
    state.add_task_log(two, "of another run\n")
    sources = RunSources(tmp_path)
    run = sources.run("one")
    assert list(sources.logs(run)) == ["ServerApp"]
    start, end, lines = sources.log(run, "ServerApp", None)
    assert (start, lines) == (0, ["INFO one", "and\\x07"])
    assert sources.log(run, "ServerApp", end) == (end, end, [])
    state.add_task_log(one, "more\n")
    start, later, lines = sources.log(run, "ServerApp", end)
    assert (start, lines) == (end, ["more"])
    assert end < later < 2**53  # the page's numbers are those of JavaScript
    assert "ServerApp" not in sources.logs(None)


@pytest.mark.parametrize("content", [None, b"", b"not a database"])
def test_a_file_without_the_tables_has_no_data(tmp_path, content):
    file = tmp_path / "superlink.db"
    if content is not None:
        file.write_bytes(content)
    database = Database(file)
    assert database.nodes() is None
    assert database.open_messages() == []
    assert database.log(file.parent, 7) == (7, 7, [])


def test_a_postgresql_that_is_away_or_has_no_tables_has_no_data_and_the_page_cannot_write(postgres, tmp_path):
    url = postgres.database(empty=True)
    for each in (url, postgres.url("none")):
        database = Database(each)
        assert database.nodes() is None
        assert database.open_messages() == []
        assert database.log(tmp_path, 7) == (7, 7, [])
    with Database(url)._engine.connect() as connection, pytest.raises(SQLAlchemyError, match="read-only"):
        connection.exec_driver_sql("CREATE TABLE mine (id INTEGER)")
