"""Fixed statements run in the transaction of SQLAlchemy's session, and their errors are SQLAlchemy's."""

import sqlite3

import pytest
from sqlalchemy import create_engine, exc, text
from sqlalchemy.orm import Session

from deploy.fleet.storage.statements import executor


@pytest.fixture
def session(tmp_path):
    """Return a session on a database with a table of two columns; the first column is unique."""
    engine = create_engine(f"sqlite:///{tmp_path}/superlink.db")
    with Session(engine) as made:
        made.execute(text("CREATE TABLE node (id INTEGER PRIMARY KEY, name TEXT)"))
        made.commit()
        yield made
    engine.dispose()


def test_a_statement_belongs_to_the_transaction_of_the_session(session):
    with session.begin():
        executor(session)("INSERT INTO node VALUES (?, ?)", [(1, "a"), (2, "b")])
        assert session.scalar(text("SELECT count(*) FROM node")) == 2
        session.rollback()
    assert executor(session)("SELECT count(*) FROM node").scalar() == 0


def test_rows_are_tuples(session):
    execute = executor(session)
    execute("INSERT INTO node VALUES (?, ?)", [(1, "a"), (2, "b")])
    assert execute("SELECT * FROM node").all() == list(execute("SELECT * FROM node")) == [(1, "a"), (2, "b")]
    assert execute("SELECT * FROM node").first() == (1, "a")
    assert execute("SELECT name FROM node WHERE id = ?", (2,)).scalar() == "b"
    assert execute("SELECT name FROM node WHERE id = 3").first() is None
    assert execute("SELECT name FROM node WHERE id = 3").scalar() is None
    assert execute("UPDATE node SET name = 'c'").rowcount == 2
    assert execute("UPDATE node SET name = 'd' RETURNING name").first() == ("d",)
    session.commit()  # no statement is under way
    assert session.scalar(text("SELECT group_concat(name) FROM node")) == "d,d"


def test_errors_are_those_of_sqlalchemy(session):
    execute = executor(session)
    execute("INSERT INTO node VALUES (1, 'a')")
    with pytest.raises(exc.IntegrityError, match="UNIQUE") as failed:
        execute("INSERT INTO node VALUES (1, 'b')")
    assert isinstance(failed.value.orig, sqlite3.IntegrityError)
    with pytest.raises(exc.OperationalError, match=r"sqlite3\.OperationalError"):
        execute("SELECT * FROM missing")
