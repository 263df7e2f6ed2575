"""Fixtures of several folders."""

import contextlib
import socket
import sqlite3
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.supercore import sql_mixin

from deploy.fleet import state, use
from deploy.fleet.duties import presence
from deploy.fleet.supernode import connection, node
from deploy.flower.patches import retries, shared
from tests.support.fleet import App, Node, SuperLink


@pytest.fixture(scope="session", autouse=True)
def _migrated_once() -> Iterator[None]:
    """Copy the tables of the first new database into later ones: Flower's migrations take 0.3 s for each."""
    run_migrations = sql_mixin.run_migrations
    copies: list[tuple[Any, str]] = []  # the version, and the statements that make the tables

    def run(engine: Any) -> None:
        with contextlib.closing(engine.raw_connection()) as connection:
            database = connection.driver_connection
            tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if copies and not tables:
                database.executescript(copies[0][1])
            if copies and (not tables or _version_of(database) == copies[0][0]):
                return
        run_migrations(engine)
        if not copies and not tables:
            with contextlib.closing(engine.raw_connection()) as connection:
                database = connection.driver_connection
                copies.append((_version_of(database), "\n".join(database.iterdump())))

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sql_mixin, "run_migrations", run)
        yield


@pytest.fixture(scope="module", autouse=True, name="presences")
def _presences_of_the_module() -> Iterator[list[presence.Presence]]:
    made: list[presence.Presence] = []
    init = presence.Presence.__init__

    def remember(self: presence.Presence, *given: Any) -> None:
        init(self, *given)
        made.append(self)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(presence.Presence, "__init__", remember)
        yield made
    for each in made:
        each._closing = True


@pytest.fixture(autouse=True)
def _no_presence_is_left(presences: list[presence.Presence]) -> Iterator[None]:
    """The threads of a test's own duties mark no node and log nothing once the test is over."""
    before = len(presences)  # those of the module's fixtures
    yield
    for each in presences[before:]:
        each._closing = True


def _version_of(database: Any) -> Any:
    try:
        return database.execute("SELECT version_num FROM alembic_version ORDER BY 1").fetchall()
    except sqlite3.OperationalError:  # a database of before Flower's migrations
        return None


@pytest.fixture(scope="session", name="superlink")
def running_superlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    """Return a SuperLink that all attacks share."""
    running = SuperLink(tmp_path_factory.mktemp("superlink"))
    yield running
    running.end()


@pytest.fixture
def app(superlink: SuperLink) -> Iterator[App]:
    """Return what a ServerApp sees of a new run on the SuperLink."""
    app = App(superlink)
    yield app
    app.close()


@pytest.fixture(name="node")
def online_node(superlink: SuperLink) -> Node:
    found = superlink.node("node")
    found.activate()
    return found


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a clock for the patches that only the test moves; it records their sleeps."""
    clock = SimpleNamespace(now=1000.0, slept=[])
    time = SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda s: clock.slept.append(s))
    for module in (connection, node, retries, shared, state, use):
        monkeypatch.setattr(module, "time", time)
    return clock
