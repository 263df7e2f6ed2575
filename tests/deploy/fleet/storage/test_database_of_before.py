"""A database that Flower 1.39 wrote is taken over, and one of a newer Flower is refused in one line."""

import sqlite3
from contextlib import closing
from importlib.metadata import version

import pytest
from alembic import command
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.state.alembic.utils import build_alembic_config
from sqlalchemy import create_engine

from tests.support.states import made

BEFORE = "8f4785e2dc47"  # the last change of the tables in Flower 1.39
OURS = {"cohort_waiting", "cohort_parents", "cohort_runs"}  # our indexes of Flower's tables, then as now


def answers(database, question):
    with closing(sqlite3.connect(database)) as connection:
        return {row[0] for row in connection.execute(question)}


INDEXES = "SELECT name FROM sqlite_master WHERE name LIKE 'cohort_%'"
REVISION = "SELECT version_num FROM alembic_version"
TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"


@pytest.fixture
def database(tmp_path):
    """A database with the tables of before, a node and a run."""
    file = tmp_path / "superlink.db"
    state = made(file)
    state.create_node("flwr_aid", "name", b"key", 0)
    state.create_run("app", "1", "hash", {}, NOOP_FEDERATION_ID, None, "flwr_aid", TaskType.SERVER_APP)
    engine = create_engine(f"sqlite:///{file}")
    command.downgrade(build_alembic_config(engine), BEFORE)
    engine.dispose()
    return file


def test_the_tables_of_before_are_brought_up_to_date_and_keep_nodes_and_runs(database):
    made(database.with_name("new.db"))
    newest = answers(database.with_name("new.db"), REVISION)
    assert newest != {BEFORE} or version("flwr") == "1.40.0"  # whose tables are those of 1.39
    assert answers(database, REVISION) == {BEFORE}
    before = answers(database, TABLES)

    state = made(database)
    assert answers(database, REVISION) == newest
    assert answers(database, TABLES) >= before
    assert answers(database, INDEXES) == OURS
    node = state.node_of_key(b"key")
    (run,) = state.get_run_info()
    assert node is not None
    assert run.primary_task_id is not None
    assert (run.fab_id, run.fab_hash) == ("app", "hash")
    # Both work on.
    assert state.activate(node, 30)
    assert state.claim_task(run.primary_task_id)


def test_the_tables_of_a_newer_flower_are_refused_and_stay(database):
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'of-2027'")
    with pytest.raises(SystemExit) as refused:
        made(database)
    assert str(refused.value) == (
        f"flower-superlink does not start: a newer version has changed {database} (Can't locate revision "
        "identified by 'of-2027'): install that version again, or restore the backup that was made before "
        "(docs/upgrading.md)"
    )
    assert answers(database, REVISION) == {"of-2027"}
