"""Lets the SuperLink's threads take turns at its database.

SQLite admits one writer at a time. In stock Flower, a thread that finds the database locked sleeps for up to
0.1 s before it tries again, and fails after 5 s; beyond five connections, each transaction opens a connection
of its own. So 50 devices that answer at the same moment mostly wait. Here a transaction begins as soon as the
one before it has ended. All use one connection and one session of SQLAlchemy: to make and to end a session
takes longer than most statements.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from flwr.supercore.sql_mixin import SqlMixin
from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


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


class Transactions(SqlMixin):
    """The kinds of transactions of a database that only one process uses, which are all the same."""

    def alone(self) -> AbstractContextManager[Session]:
        """Return a context manager whose transaction may add, count and delete objects.

        If several processes use the database, only one of them at a time is in such a transaction.
        """
        return self.session()

    def then(self, action: Callable[[], None]) -> None:
        """Call an action when other processes can see what this thread's transaction has written."""
        action()


class TakesTurns(Transactions):
    """Lets only one thread of this process at a time be in a session of any instance.

    If a thread that is in a session enters another one of the same database, it stays in the first.

    A transaction that fails ends with its session and its connection. The next one opens the file again: a
    connection that could not roll back, for example because the disk is full, would stay in the transaction.
    So the database must be a file. One in memory would be lost.
    """

    _turns = Turns()
    _open: ClassVar[dict[str, Session]] = {}  # the sessions of the thread whose turn it is, by database

    def session(self) -> AbstractContextManager[Session]:  # type: ignore[override]
        """Return a context manager that begins a transaction when it is this thread's turn."""
        outer = self._open.get(self.database_url) if self._turns.is_mine() else None
        return self._taking_a_turn() if outer is None else nullcontext(outer)

    @contextmanager
    def _taking_a_turn(self) -> Iterator[Session]:
        with self._turns:
            session = self._open[self.database_url] = self._session
            connection: Any = session.bind
            try:
                with connection.begin() as begun:
                    yield session
                    if session.in_transaction():  # it was used, and not only the connection (`executor`)
                        session.flush()
                        session.close()
                    begun.commit()  # fails if one of Flower's methods has rolled back and gone on
            except BaseException:
                del self._session
                connection.invalidate()
                raise
            finally:
                del self._open[self.database_url]

    @cached_property
    def _session(self) -> Session:
        with super().session() as session:
            engine: Any = session.bind
        return Session(engine.connect())
