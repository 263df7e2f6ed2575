"""The SuperLink's state calls its duties, and Flower's app gets this state."""

import importlib
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import NOOP_FLWR_AID, Status
from flwr.common.serde import run_from_proto, run_to_proto
from flwr.proto.message_pb2 import Message as WireMessage
from flwr.proto.message_pb2 import Metadata as WireMetadata
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import SqlLinkState
from flwr.server.superlink.utils import check_abort
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.superlink import main
from flwr.superlink.federation import NoOpFederationManager

from deploy.fleet import factories, state
from deploy.fleet.duties.duties import Duties
from deploy.fleet.state import CohortLinkState
from deploy.fleet.storage.messages import FewStatements
from deploy.fleet.storage.objects import CohortObjectStore
from deploy.fleet.use import Use
from tests.support.states import made

RUN, NODE = 1, 7


class Called(Duties):
    """Duties that note in which order the state calls them, and Flower's methods, as `calls`."""

    def __init__(self):
        super().__init__()
        self.calls = []

        def note(name, *, returns=None):
            return lambda *arguments: self.calls.append((name, *arguments)) or returns

        self.held = SimpleNamespace(
            message_stored=note("held"),
            object_stored=note("held"),
            abandon=lambda node: None,
            wake=lambda receiver: None,
        )
        self.delivered = SimpleNamespace(forget=lambda node: None)
        self.past = SimpleNamespace(message_comes=lambda _, of: self.calls.append(("past", of.message_id)))
        self.presence = SimpleNamespace(
            returns=note("returns", returns=True), answer=note("answer"), moved_away=lambda node: None
        )
        self.unconfirmed = SimpleNamespace(of=note("unconfirmed"), forget=lambda node: None)
        self.note = note


@pytest.fixture
def duties():
    return Called()


@pytest.fixture
def cohort(database, duties):
    return made(database, duties)


def stub(monkeypatch, kind, name, duties, *, returns):
    """Let Flower's method note its call and return a value."""
    monkeypatch.setattr(kind, name, lambda *_, **__: duties.calls.append((name,)) or returns)


@pytest.mark.parametrize("stored", [True, False])
def test_a_message_is_stored_after_past_rounds_end_and_before_its_receiver_is_answered(
    cohort, duties, monkeypatch, stored
):
    stub(monkeypatch, FewStatements, "store_message", duties, returns=stored)
    stub(monkeypatch, FewStatements, "expect_objects", duties, returns=["part"])
    metadata = Metadata(RUN, "m", 1, NODE, "", "3", 1.8e9, 60.0, "train")
    message = make_message(metadata, RecordDict())
    result = cohort.store_message_and_object_tree(message, ObjectTree(object_id="0" * 64), "session")
    assert result == (stored, ["part"] if stored else [])
    told = [("expect_objects",), ("held", metadata, ["part"], "session")]
    assert duties.calls == [("past", "m"), ("store_message",), *(told if stored else [])]


@pytest.mark.parametrize("stored", [True, False])
def test_only_a_reply_that_was_stored_is_announced(cohort, duties, monkeypatch, stored):
    stub(monkeypatch, FewStatements, "store_reply", duties, returns=stored)
    reply = WireMessage(metadata=WireMetadata(message_id="0" * 64, run_id=RUN, reply_to_message_id="m"))
    result = cohort.announce_reply(reply, ObjectTree(object_id="0" * 64))
    pushes = [session for (session,) in cohort.rows("SELECT session_id FROM object_push_sessions")]
    assert result == ((pushes[0], ["0" * 64]) if stored else None)
    assert len(pushes) == stored
    told = [("held", reply.metadata, ["0" * 64], *pushes)] if stored else []
    assert duties.calls == [("store_reply",), *told]


def test_only_an_object_that_was_stored_is_announced(cohort, duties, monkeypatch):
    record = ConfigRecord({"round": 1})
    content, name = record.deflate(), record.object_id
    session = cohort.start_session(RUN)
    assert cohort.expect_objects(ObjectTree(object_id=name), session) == [name]
    assert not cohort.store_object(RUN, session, name, b"another content")
    assert duties.calls == []
    assert cohort.store_object(RUN, session, name, content)
    assert duties.calls == [("held", session, name)]
    assert cohort.objects.get(name) == content


def test_an_object_for_another_run_is_refused_and_one_without_a_session_finds_its_own(cohort, duties):
    record = ConfigRecord({"round": 1})
    session = cohort.start_session(RUN)
    cohort.expect_objects(ObjectTree(object_id=record.object_id), session)
    assert not cohort.store_object(RUN + 1, session, record.object_id, record.deflate())
    assert cohort.store_object(RUN, "", record.object_id, record.deflate())
    assert duties.calls == [("held", "", record.object_id)]


def test_the_objects_of_a_request_are_stored_together_or_not_at_all(cohort, duties):
    records = [ConfigRecord({"round": number}) for number in range(3)]
    contents = {each.object_id: each.deflate() for each in records}
    first, second, third = contents
    session = cohort.start_session(RUN)
    cohort.expect_objects(ObjectTree(object_id=first), session)
    assert cohort.store_objects(RUN, session, {first: contents[first]})
    duties.calls.clear()
    session = cohort.start_session(RUN)
    cohort.expect_objects(ObjectTree(object_id=second, children=[ObjectTree(object_id=first)]), session)
    for run, wrong in (
        (RUN, contents | {first: b"another content"}),
        (RUN, contents),  # the third one is not expected
        (RUN + 1, {second: contents[second]}),
    ):
        assert not cohort.store_objects(run, session, wrong)
        assert cohort.objects.get(second) == b""
    assert duties.calls == []
    both = {second: contents[second], first: contents[first]}  # the first is stored already
    for _ in range(2):
        assert cohort.store_objects(RUN, session, both)
    assert duties.calls == [("held", session, second), ("held", session, first)] * 2
    assert cohort.rows("SELECT * FROM object_push_sessions") == []
    assert cohort.objects.first([second, first, third], 1000) == list(both.values())
    assert cohort.objects.first([second, first], 1) == [contents[second]]


def test_a_node_that_is_online_is_activated_only_if_it_returns(cohort, duties):
    node = cohort.create_node("aid", "name", b"key", 0.0)
    steps = [("returns", node), ("unconfirmed", node)]
    for _ in range(2):
        assert cohort.activate(node, 30.0)
        assert duties.calls == steps
        duties.calls.clear()
    duties.presence.returns = duties.note("returns")  # it is connected
    assert not cohort.activate(node, 30.0)
    assert duties.calls == steps[:1]


def test_a_state_cleans_up_once_a_second(cohort, duties, monkeypatch, clock):
    name = "_cleanup_expired_task_tokens"
    stub(monkeypatch, SqlLinkState, name, duties, returns=None)
    for _ in range(3):
        cohort._cleanup_expired_task_tokens()
    assert duties.calls == [(name,)]
    clock.now += state.LOOK
    cohort._cleanup_expired_task_tokens()
    assert duties.calls == [(name,)] * 2


def test_a_key_is_looked_up_once_a_minute_and_a_new_or_revoked_key_at_once(
    cohort, duties, clock, monkeypatch
):
    assert cohort.node_of_key(b"key") is None
    node = cohort.create_node("aid", "name", b"key", 30.0)
    for _ in range(2):
        assert cohort.node_of_key(b"key") == node
    cohort.delete_node("aid", node)
    assert cohort.node_of_key(b"key") is None
    assert duties.calls == [("answer", node)]  # its held heartbeat

    lookups = []
    monkeypatch.setattr(FewStatements, "node_of_key", lambda _, key: lookups.append(key) or len(lookups))
    cohort.forget_keys()
    assert [cohort.node_of_key(b"key") for _ in range(3)] == [1, 1, 1]
    clock.now += state.KEY_SECONDS
    assert cohort.node_of_key(b"key") == 2


def test_all_traffic_is_stored_when_a_task_ends(cohort, duties, clock, monkeypatch):
    state_of_run = "INSERT INTO run (run_id, primary_task_id) VALUES (?, ?)"
    for run in (1, -4):
        cohort.rows(state_of_run, (run, run))
    used = "SELECT bytes_sent, bytes_recv, clientapp_runtime FROM run ORDER BY run_id DESC"
    cohort._traffic.take()  # at the test's time
    for _ in range(3):
        cohort.note_use(1, Use(sent=10))
    cohort.note_use(2**64 - 4, Use(received=5))
    assert cohort.rows(used) == [(0, 0, 0.0)] * 2
    clock.now += state.LOOK
    cohort.note_use(1, Use(received=1))
    assert cohort.rows(used) == [(30, 1, 0.0), (0, 5, 0.0)]
    cohort.note_use(1, Use(sent=7))
    for run in (1, 2**64 - 4, 1):
        cohort.note_use(run, Use(seconds=0.5))
    stub(monkeypatch, SqlLinkState, "finish_task", duties, returns=True)
    assert cohort.finish_task(3, "completed", details="")
    assert cohort.rows(used) == [(37, 1, 1.0), (0, 5, 0.5)]


@pytest.mark.parametrize(
    ("begun", "reason"),
    [
        ((), "Run is pending."),
        (("claim_task",), "Run is starting."),
        (("claim_task", "activate_task"), ""),
        (("claim_task", "activate_task", "completed"), "Run is finished."),
        (("claim_task", "activate_task", "stopped"), "Run is finished. Stopped by user."),
    ],
)
def test_why_a_run_takes_no_requests_is_told_as_by_flower(cohort, begun, reason):
    run = cohort.create_run("app", "1", "hash", {}, NOOP_FEDERATION_ID, None, "aid", TaskType.SERVER_APP)
    (found,) = cohort.get_run_info(run_ids=[run])
    task = found.primary_task_id
    assert task is not None
    for step in begun:
        if step in ("completed", "stopped"):
            assert cohort.finish_task(task, step, "")
        else:
            assert getattr(cohort, step)(task)
    statuses = [Status.PENDING, Status.STARTING, Status.FINISHED]
    assert cohort.why_not_running(run) == reason == (check_abort(run, statuses, cohort) or "")
    assert cohort.why_not_running(run + 1) == "Run is unknown."


def test_a_node_learns_of_a_run_what_it_would_learn_from_flower(cohort):
    node = cohort.create_node(NOOP_FLWR_AID, "name", b"key", 0.0)
    assert cohort.activate(node, 30.0)
    settings = {"a": 1, "b": 0.5, "c": "text", "d": True}
    run = cohort.create_run("a/b", "1", "hash", settings, NOOP_FEDERATION_ID, None, "x", TaskType.SERVER_APP)
    (stored,) = cohort.get_run_info(run_ids=[run])
    found, known = run_from_proto(cohort.run_for(node, run)), run_from_proto(run_to_proto(stored))
    for name in (
        "run_id",
        "fab_id",
        "fab_version",
        "fab_hash",
        "override_config",
        "federation_id",
        "series_id",
    ):
        assert getattr(found, name) == getattr(known, name), name
    assert found.override_config == settings
    assert cohort.run_for(node, run + 1) is None
    cohort._federations.has_node = lambda *_: False
    assert cohort.run_for(node, run) is None


# --- how Flower's app gets the state --------------------------------------------------------------------


@pytest.fixture
def handed_over(monkeypatch, duties):
    """Hand the state over, and undo this after the test."""
    for name in ("HEARTBEAT_PATIENCE",):
        core = importlib.import_module(factories._CORE_STATE)
        monkeypatch.setattr(core, name, getattr(core, name))
    for module, name in (
        (main, "get_objectstore_linkstate_factories"),
        (importlib.import_module(factories._VALIDATOR), "now"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    factories.hand_over(duties)


@pytest.mark.usefixtures("handed_over")
def test_the_app_uses_this_projects_state_and_store(tmp_path):
    app = main.create_app(
        SimpleNamespace(
            simulation=False,
            database=str(tmp_path / "superlink.db"),
            superexec_auth_secret=None,
            artifact_provider=None,
            fleet_api_type="http",
            authn_plugin=main.load_control_authn_plugin(),
            event_log_plugin=None,
            fleet_event_log_plugin=None,
            enable_supernode_auth=True,
        ),
        lambda config, states: SimpleNamespace(state_factory=states),
    )
    found = app.state.linkstate_factory.state()
    assert factories.is_handed_over(found)
    assert isinstance(found.object_store, CohortObjectStore)
    assert not factories.is_handed_over(SqlLinkState(":memory:", NoOpFederationManager(), found.object_store))


def test_a_superlink_without_a_database_does_not_start():
    with pytest.raises(SystemExit, match="needs --database"):
        factories.make(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), Duties())


CALLED_BY_FLOWER = {
    *("store_message_and_object_tree", "get_message_ins", "get_message_res", "delete_messages"),
    *("start_session", "store_object", "delete_node", "session", "initialize"),
    *("finish_task", "get_task_by_token", "_cleanup_expired_task_tokens"),
}


def test_only_methods_that_flower_calls_replace_one_of_flower():
    """An override that Flower does not call would be bound to Flower's name for nothing."""
    flower = [each for each in CohortLinkState.__mro__ if each.__module__.startswith("flwr.")]
    own = {
        name
        for each in CohortLinkState.__mro__
        if each.__module__.startswith("deploy.")
        for name, value in vars(each).items()
        if callable(value) and not name.startswith("__")
    }
    assert {name for name in own if any(name in vars(each) for each in flower)} == CALLED_BY_FLOWER


def test_a_superlink_whose_flower_lacks_a_name_of_the_state_does_not_start(monkeypatch):
    monkeypatch.delattr(main, "get_objectstore_linkstate_factories")
    with pytest.raises(AttributeError, match="get_objectstore_linkstate_factories"):
        factories.hand_over(Duties())
