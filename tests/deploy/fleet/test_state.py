"""The SuperLink's state calls its duties, and Flower's app gets this state."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import SqlLinkState
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.superlink import main
from flwr.superlink.federation import NoOpFederationManager

from deploy.fleet import factories, state
from deploy.fleet.duties.duties import Duties
from deploy.fleet.state import CohortLinkState
from deploy.fleet.storage.messages import FewStatements
from deploy.fleet.storage.objects import CohortObjectStore
from deploy.flower.patches.apps import upload_progress
from tests.support.states import made

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:alembic")

RUN, NODE = 1, 7


class Called(Duties):
    """Duties that note in which order the state calls them, and Flower's methods, as `calls`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

        def note(name: str, *, returns: Any = None) -> Any:
            return lambda *arguments: self.calls.append((name, *arguments)) or returns

        self.held: Any = SimpleNamespace(message_stored=note("held"), object_stored=note("held"))
        self.past: Any = SimpleNamespace(
            message_comes=lambda _, of: self.calls.append(("past", of.message_id))
        )
        self.presence: Any = SimpleNamespace(returns=note("returns", returns=True), answer=note("answer"))
        self.unconfirmed: Any = SimpleNamespace(of=note("unconfirmed"))
        self.note = note


@pytest.fixture
def duties() -> Called:
    return Called()


@pytest.fixture
def cohort(tmp_path: Path, duties: Called) -> CohortLinkState:
    return made(tmp_path / "superlink.db", duties)


def stub(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, duties: Called, *, returns: Any) -> None:
    """Let Flower's method note its call and return a value."""
    monkeypatch.setattr(kind, name, lambda *_, **__: duties.calls.append((name,)) or returns)


@pytest.mark.parametrize("stored", [True, False])
def test_a_message_is_stored_after_past_rounds_end_and_before_its_receiver_is_answered(
    cohort: CohortLinkState, duties: Called, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    name = "store_message_and_object_tree"
    stub(monkeypatch, SqlLinkState, name, duties, returns=(stored, ["part"] if stored else []))
    metadata = SimpleNamespace(message_id="m", reply_to_message_id="", run_id=RUN)
    message: Any = SimpleNamespace(metadata=metadata)
    result = cohort.store_message_and_object_tree(message, ObjectTree(object_id="0" * 64), "session")
    assert result == (stored, ["part"] if stored else [])
    told = [("held", metadata, ["part"], "session")]
    assert duties.calls == [("past", "m"), (name,), *(told if stored else [])]


def test_only_an_object_that_was_stored_is_announced(
    cohort: CohortLinkState, duties: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = ConfigRecord({"round": 1})
    content, name = record.deflate(), record.object_id
    session = cohort.start_session(RUN)
    assert cohort.preregister_object_tree(ObjectTree(object_id=name), session) == [name]
    assert not cohort.store_object(RUN, session, name, b"another content")
    assert duties.calls == []
    assert cohort.store_object(RUN, session, name, content)
    assert duties.calls == [("held", session, name)]
    assert cohort.get_object(RUN, name) == content


def test_an_object_without_a_session_or_for_another_run_goes_to_flowers_method(
    cohort: CohortLinkState, duties: Called
) -> None:
    record = ConfigRecord({"round": 1})
    session = cohort.start_session(RUN)
    cohort.preregister_object_tree(ObjectTree(object_id=record.object_id), session)
    assert not cohort.store_object(RUN + 1, session, record.object_id, record.deflate())
    assert cohort.store_object(RUN, "", record.object_id, record.deflate())
    assert duties.calls == [("held", "", record.object_id)]


def test_a_node_that_is_online_is_activated_only_if_it_returns(
    cohort: CohortLinkState, duties: Called
) -> None:
    node = cohort.create_node("aid", "name", b"key", 0.0)
    steps = [("returns", node), ("unconfirmed", node)]
    for _ in range(2):
        assert cohort.activate_node(node, 30.0)
        assert duties.calls == steps
        duties.calls.clear()
    duties.presence.returns = duties.note("returns")  # it is connected
    assert not cohort.activate_node(node, 30.0)
    assert duties.calls == steps[:1]


def test_a_state_cleans_up_once_a_second(
    cohort: CohortLinkState, duties: Called, monkeypatch: pytest.MonkeyPatch, clock: Any
) -> None:
    name = "_cleanup_expired_task_tokens"
    stub(monkeypatch, SqlLinkState, name, duties, returns=None)
    for _ in range(3):
        cohort._cleanup_expired_task_tokens()
    assert duties.calls == [(name,)]
    clock.now += state.LOOK
    cohort._cleanup_expired_task_tokens()
    assert duties.calls == [(name,)] * 2


def test_a_key_is_looked_up_once_a_minute_and_a_new_or_revoked_key_at_once(
    cohort: CohortLinkState, duties: Called, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cohort.get_node_id_by_public_key(b"key") is None
    node = cohort.create_node("aid", "name", b"key", 30.0)
    for _ in range(2):
        assert cohort.get_node_id_by_public_key(b"key") == node
    cohort.delete_node("aid", node)
    assert cohort.get_node_id_by_public_key(b"key") is None
    assert duties.calls == [("answer", node)]  # its held heartbeat

    lookups: list[bytes] = []
    monkeypatch.setattr(
        FewStatements, "get_node_id_by_public_key", lambda _, key: lookups.append(key) or len(lookups)
    )
    cohort._forget_keys()
    assert [cohort.get_node_id_by_public_key(b"key") for _ in range(3)] == [1, 1, 1]
    clock.now += state.KEY_SECONDS
    assert cohort.get_node_id_by_public_key(b"key") == 2


def test_all_traffic_is_stored_when_a_task_ends(
    cohort: CohortLinkState, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[tuple[object, ...]] = []

    def store_traffic(_: object, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        stored.append((run_id, bytes_sent, bytes_recv))

    def add_clientapp_runtime(_: object, run_id: int, runtime: float) -> None:
        stored.append((run_id, runtime))

    def finish_task(_: object, task_id: int, sub_status: str, details: str) -> bool:
        stored.append(("finished", task_id))
        return True

    for function in (store_traffic, add_clientapp_runtime, finish_task):
        monkeypatch.setattr(SqlLinkState, function.__name__, function)
    cohort._traffic.take()  # at the test's time
    for _ in range(3):
        cohort.store_traffic(1, bytes_sent=10, bytes_recv=0)
    cohort.store_traffic(2, bytes_sent=0, bytes_recv=5)
    assert stored == []
    clock.now += state.LOOK
    cohort.store_traffic(1, bytes_sent=0, bytes_recv=1)
    assert stored == [(1, 30, 1), (2, 0, 5)]
    cohort.store_traffic(1, bytes_sent=7, bytes_recv=0)
    for run in (1, 4, 1):
        cohort.add_clientapp_runtime(run, 0.5)
    assert cohort.finish_task(3, "completed", details="")
    assert stored[2:] == [(1, 7, 0), (1, 1.0), (4, 0.5), ("finished", 3)]


def test_a_request_for_the_progress_of_replies_is_no_request_for_an_object(cohort: CohortLinkState) -> None:
    name = f"{upload_progress.ASKED}a;b"
    assert cohort.get_object(RUN, name) == b"{}"  # before the Fleet API starts
    cohort.received = lambda run, messages: dict.fromkeys(sorted(messages), run)
    assert json.loads(cohort.get_object(RUN, name) or b"") == {"a": RUN, "b": RUN}
    assert cohort.get_object(RUN, "a") is None


# --- how Flower's app gets the state --------------------------------------------------------------------


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch, duties: Called) -> None:
    """Hand the state over, and undo this after the test."""
    for name in ("OBJECT_PUSH_SESSION_TTL_SECONDS", "HEARTBEAT_PATIENCE"):
        core = importlib.import_module(factories._CORE_STATE)
        monkeypatch.setattr(core, name, getattr(core, name))
    for module, name in (
        (main, "get_objectstore_linkstate_factories"),
        (importlib.import_module(factories._VALIDATOR), "now"),
        (importlib.import_module("flwr.supercore.sql_mixin"), "SQLITE_PRAGMAS"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    factories.hand_over(duties)


@pytest.mark.usefixtures("handed_over")
def test_the_app_uses_this_projects_state_and_store(tmp_path: Path) -> None:
    app = main.create_app(
        SimpleNamespace(  # type: ignore[arg-type]
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
        lambda config, states: SimpleNamespace(state_factory=states),  # type: ignore[arg-type, return-value]
    )
    found = app.state.linkstate_factory.state()
    assert factories.is_handed_over(found)
    assert isinstance(found.object_store, CohortObjectStore)
    assert not factories.is_handed_over(SqlLinkState(":memory:", NoOpFederationManager(), found.object_store))


def test_a_superlink_without_a_database_does_not_start() -> None:
    with pytest.raises(SystemExit, match="needs --database"):
        factories.make(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), Duties())


@pytest.mark.parametrize(
    ("kind", "new"),
    [
        (CohortLinkState, {"come_online", "_forget_keys", "_store_traffic", "_taking_a_turn"}),
        (CohortObjectStore, {"_taking_a_turn"}),
    ],
)
def test_each_other_method_replaces_one_of_flower(kind: type, new: set[str]) -> None:
    """An override that Flower does not call any more would be dead code, and its duty would not be done."""
    flower = [each for each in kind.__mro__ if each.__module__.startswith("flwr.")]
    own = {
        name
        for each in kind.__mro__
        if each.__module__.startswith("deploy.")
        for name, value in vars(each).items()
        if callable(value) and not name.startswith("__")
    }
    assert {name for name in own if not any(name in vars(each) for each in flower)} == new


def test_a_superlink_whose_flower_lacks_a_name_of_the_state_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(main, "get_objectstore_linkstate_factories")
    with pytest.raises(AttributeError, match="get_objectstore_linkstate_factories"):
        factories.hand_over(Duties())
