"""Lets the SuperLink's threads take turns at its database.

SQLite admits one writer at a time. In stock Flower, a thread that finds the database locked sleeps for up to
0.1 s before it tries again, and fails after 5 s; beyond five connections, each transaction opens a connection
of its own. So 50 devices that answer at the same moment mostly wait. Here a transaction begins as soon as the
one before it has ended, and a single connection serves all transactions.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from flwr.supercore.sql_mixin import SqlMixin
from sqlalchemy.orm import Session

from deploy.fleet.storage.statements import EXECUTE, on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection


class Turns:
    """A lock that threads get in the order in which they ask. The thread that has the lock may take it again.

    Python's own locks have no order: a ServerApp that looks for the replies of 1,000 devices again and again
    would always get the lock before a waiting device.
    """

    def __init__(self) -> None:
        self._state = threading.Lock()
        self._waiting: deque[tuple[int, threading.Lock]] = deque()
        self._owner = 0  # the thread that has the lock; 0 if none has it
        self._depth = 0  # how often the owner has taken the lock without releasing it

    def is_mine(self) -> bool:
        """Tell whether this thread has the lock."""
        return self._owner == threading.get_ident()

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._state:
            if self._owner in (0, me):
                self._owner, self._depth = me, self._depth + 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append((me, turn))
        turn.acquire()  # waits until `__exit__` in another thread has made this thread the owner

    def __exit__(self, *_: object) -> None:
        with self._state:
            self._depth -= 1
            if self._depth:
                return
            self._owner = 0
            if self._waiting:
                self._owner, turn = self._waiting.popleft()
                self._depth = 1
                turn.release()


class TakesTurns(SqlMixin):
    """Lets only one thread of this process at a time be in a session of any instance.

    If a thread that is in a session enters another one of the same database, it stays in the first.
    """

    _turns = Turns()
    _open: ClassVar[dict[str, Transaction]] = {}  # those of the thread whose turn it is, by database

    def session(self) -> AbstractContextManager[Any]:  # type: ignore[override]
        """Return a context manager that begins a transaction when it is this thread's turn."""
        outer = self._open.get(self.database_url) if self._turns.is_mine() else None
        return self._taking_a_turn() if outer is None else nullcontext(outer)

    @contextmanager
    def _taking_a_turn(self) -> Iterator[Transaction]:
        with self._turns:
            transaction = self._open[self.database_url] = Transaction(*self._connection)
            try:
                yield transaction
                transaction.commit()
            except BaseException:
                transaction.rollback()
                raise
            finally:
                del self._open[self.database_url]

    @cached_property
    def _connection(self) -> tuple[Connection, Callable[..., Any]]:
        """The only connection to the database, and the function that executes statements on it."""
        with super().session() as session:
            connection = session.connection().engine.connect()
        return connection, on(connection)


class Transaction:
    """A transaction. It has all names of a session of SQLAlchemy, for Flower's own methods.

    The session is made when the first of these names is used: it takes longer to begin and to end than most
    transactions of this project take, which only use `statements.executor`.
    """

    def __init__(self, connection: Connection, execute: Callable[..., Any]) -> None:
        self.info = {EXECUTE: execute}
        self._connection = connection
        self._session: Session | None = None

    def __getattr__(self, name: str) -> Any:
        if self._session is None:
            self._session = Session(self._connection)
        return getattr(self._session, name)

    @property
    def _driver(self) -> Any:
        return self._connection.connection.driver_connection

    def commit(self) -> None:
        """Commit what was executed."""
        if self._session is not None:
            self._session.commit()
            self._session.close()
        if self._driver.in_transaction:
            self.info[EXECUTE]("COMMIT")

    def rollback(self) -> None:
        """Undo what was executed."""
        if self._session is not None:
            self._session.close()
        self._driver.rollback()
