"""Fixtures of several folders."""

import contextlib
import os
import socket
import sqlite3
from types import SimpleNamespace

import pytest
from flwr.supercore import sql_mixin
from sqlalchemy import inspect

from deploy.fleet import state, use
from deploy.fleet.duties import presence
from deploy.fleet.supernode import connection, node
from deploy.flower.patches import retries, shared
from tests.support.fleet import App, SuperLink


@pytest.fixture(scope="session", autouse=True)
def _migrated_once():
    """Copy the tables of the first new database into later ones: Flower's migrations take 0.3 s for each."""
    run_migrations = sql_mixin.run_migrations
    copies = []  # the version, and the statements that make the tables
    revisions = set()  # of PostgreSQL's databases

    def run(engine):
        if engine.dialect.name != "sqlite":  # its databases are copies of one that has the tables
            if not inspect(engine).has_table("alembic_version") or _revision(engine) not in revisions:
                run_migrations(engine)
                revisions.add(_revision(engine))
            return
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
def _presences_of_the_module():
    made = []
    init = presence.Presence.__init__

    def remember(self, *given):
        init(self, *given)
        made.append(self)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(presence.Presence, "__init__", remember)
        yield made
    for each in made:
        each._closing = True


@pytest.fixture(autouse=True)
def _no_presence_is_left(presences):
    """The threads of a test's own duties mark no node and log nothing once the test is over."""
    before = len(presences)  # those of the module's fixtures
    yield
    for each in presences[before:]:
        each._closing = True


def _revision(engine):
    with engine.connect() as connection:
        return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()


def _version_of(database):
    try:
        return database.execute("SELECT version_num FROM alembic_version ORDER BY 1").fetchall()
    except sqlite3.OperationalError:  # a database of before Flower's migrations
        return None


@pytest.fixture(scope="session", name="superlink")
def running_superlink(request, tmp_path_factory):
    """Return a SuperLink that all attacks share. `make test-postgres` asks for one with PostgreSQL."""
    on_postgres = os.environ.get("COHORT_TEST_DATABASE") == "postgres"
    database = request.getfixturevalue("postgres").database() if on_postgres else None
    running = SuperLink(tmp_path_factory.mktemp("superlink"), database)
    yield running
    running.end()


@pytest.fixture
def app(superlink):
    """Return what a ServerApp sees of a new run on the SuperLink."""
    app = App(superlink)
    yield app
    app.close()


@pytest.fixture(name="node")
def online_node(superlink):
    found = superlink.node("node")
    found.activate()
    return found


@pytest.fixture
def taken_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.fixture
def clock(monkeypatch):
    """Return a clock for the patches that only the test moves; it records their sleeps."""
    clock = SimpleNamespace(now=1000.0, slept=[])
    time = SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda s: clock.slept.append(s))
    for module in (connection, node, retries, shared, state, use):
        monkeypatch.setattr(module, "time", time)
    return clock
