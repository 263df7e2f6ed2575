"""The SuperLink's state in a PostgreSQL database that several SuperLinks share: the front ends of one server.

`SharedState` and `SharedStore` are this project's state and store with another database: Flower's hooks for
PostgreSQL, and transactions that other processes' transactions may overlap. A transaction that adds, counts
or deletes objects (`alone`) excludes the others of its kind; the rest relies on the locks of rows.

A front end answers for the nodes that are connected to it: the table `cohort_connection` says which. While it
lives, it renews its row of `cohort_front_end` (`deploy.fleet.duties.front_ends`). A run is started by the
executor of the front end to which it was submitted (`cohort_run`), because its folder is on that machine.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from flwr.supercore.sql_mixin import SqlMixin
from sqlalchemy.dialects.postgresql import insert

from deploy.fleet import protocol, wire
from deploy.fleet.admission import reply_admission
from deploy.fleet.state import CohortLinkState
from deploy.fleet.storage import followers, postgres, shared_registry
from deploy.fleet.storage.messages import COLUMNS
from deploy.fleet.storage.objects import CohortObjectStore
from deploy.fleet.storage.statements import AMONG, executor, listed
from deploy.fleet.storage.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from flwr.proto.task_pb2 import Task
    from flwr.superlink.federation import FederationManager
    from sqlalchemy.orm import Session

    from deploy.fleet.duties.duties import Duties
    from deploy.fleet.duties.front_ends import FrontEnd

# The connections of the state, and also of the store: how many are kept, and how many more may be made.
POOL, MORE = 5, 10
_LOCK = 0x436F686F7274  # names the lock of the transactions that are `alone`
_ALONE = "cohort_alone"  # the key under which `session.info` says that its transaction is `alone`
_TABLES = (
    "CREATE TABLE IF NOT EXISTS cohort_server "
    "(only_one BOOLEAN PRIMARY KEY CHECK (only_one), authority TEXT)",
    "CREATE TABLE IF NOT EXISTS cohort_front_end "
    "(name TEXT PRIMARY KEY, home TEXT, version TEXT, seen DOUBLE PRECISION)",
    "CREATE TABLE IF NOT EXISTS cohort_connection (node_id BIGINT PRIMARY KEY, front_end TEXT)",
    "CREATE INDEX IF NOT EXISTS cohort_connections ON cohort_connection (front_end)",
    "CREATE TABLE IF NOT EXISTS cohort_run (run_id BIGINT PRIMARY KEY, home TEXT)",
    reply_admission.TABLE,
    followers.TABLE,
    *shared_registry.TABLES,
)
_CLAIM_SERVER = "INSERT INTO cohort_server VALUES (TRUE, ?) ON CONFLICT DO NOTHING"
_TAKE = (
    "INSERT INTO cohort_connection AS c VALUES (?, ?) ON CONFLICT (node_id) DO UPDATE "
    "SET front_end = excluded.front_end WHERE c.front_end != excluded.front_end RETURNING 1"
)
_OWNER = "SELECT front_end FROM cohort_connection WHERE node_id = ? FOR UPDATE"
_MINE = (
    "SELECT node_id FROM node JOIN cohort_connection USING (node_id) "
    "WHERE front_end = ? AND status = 'online' AND online_until > ?"
)
_SUBMITTED = "INSERT INTO cohort_run VALUES (?, ?) ON CONFLICT DO NOTHING"
_UNCONFIRMED = (
    f"SELECT {COLUMNS} FROM message_ins WHERE dst_node_id = ? AND delivered_at NOT IN ('', 'past') "
    "AND created_at + ttl > ? AND EXISTS (SELECT 1 FROM objects WHERE object_id = message_id) "
    "AND NOT EXISTS (SELECT 1 FROM message_res r WHERE r.reply_to_message_id = message_ins.message_id) "
    "ORDER BY delivered_at DESC LIMIT 1"
)
_STORED = (
    "SELECT reply_to_message_id, sum(length(objects.content)) FROM message_res "
    "JOIN object_push_session_roots ON root_object_id = message_id "
    "JOIN object_children ON parent_id = message_id JOIN objects ON object_id = child_id "
    f"WHERE reply_to_message_id {AMONG} GROUP BY reply_to_message_id"
)
_ELSEWHERE = f"SELECT run_id FROM cohort_run WHERE run_id {AMONG} AND home != ?"

_actions: ContextVar[list[Callable[[], None]] | None] = ContextVar("cohort_actions", default=None)


def claim(execute: Callable[..., Any], url: str, authority: str) -> None:
    """Add this project's tables to a database, and claim it for the server with an authority.

    `execute`: executes a statement (`storage.statements.executor`). Raises DatabaseError if the database
    belongs to a server with another authority.
    """
    for each in _TABLES:
        execute(each)
    execute(_CLAIM_SERVER, (authority,))
    postgres.check_authority(lambda query: execute(query).first(), url, authority)


class Shared(Transactions):
    """Flower's hooks for PostgreSQL, and this project's transactions in it."""

    allowed_dialects = frozenset({postgres.SCHEME})

    def _normalize_database_url(self, database_path: str) -> str:
        return database_path.replace("://", "+psycopg://", 1)

    def dialect_insert(self, table: Any) -> Any:
        """Return PostgreSQL's insert statement, which can say what happens on a conflict."""
        return insert(table)

    @property
    def select_lock_sql(self) -> str:
        """The end of a query for rows to claim."""
        return "FOR UPDATE SKIP LOCKED"

    def initialize(self, log_queries: bool = False, **engine_kwargs: Any) -> list[str]:
        """Connect to the database, bring its tables up to date, and add this project's tables and indexes."""
        given = {
            "pool_size": POOL,
            "max_overflow": MORE,
            "connect_args": postgres.settings(self.database_url),
        }
        return super().initialize(log_queries, **given, **engine_kwargs)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Begin a transaction, or stay in the one in which this thread is already."""
        if _actions.get() is not None:
            with SqlMixin.session(self) as session:
                yield session
            return
        actions: list[Callable[[], None]] = []
        token = _actions.set(actions)
        try:
            with SqlMixin.session(self) as session:
                yield session
        finally:
            _actions.reset(token)
        for action in actions:
            action()

    @contextmanager
    def alone(self) -> Iterator[Session]:
        """Begin a transaction, or go on in one, that excludes the others that are alone until it ends."""
        with self.session() as session:
            if _ALONE not in session.info:
                executor(session)("SELECT pg_advisory_xact_lock(?)", (_LOCK,))
                session.info[_ALONE] = True
            yield session

    def then(self, action: Callable[[], None]) -> None:
        """Call an action after the end of this thread's transaction; at once if there is none."""
        if (actions := _actions.get()) is None:
            action()
        else:
            actions.append(action)


class SharedStore(Shared, CohortObjectStore):
    """The store of objects in a shared database."""

    def _lock_objectstore_mutation(self) -> None:
        with self.alone():
            pass


class SharedState(Shared, CohortLinkState):
    """The state of one front end of a server. The parameters are those of `CohortLinkState`, and `front_end`.

    `front_end`: this front end, which tells the others what has happened here.
    """

    front_end: FrontEnd

    def __init__(
        self,
        database: str,
        federation_manager: FederationManager,
        object_store: CohortObjectStore,
        duties: Duties,
        front_end: FrontEnd,
    ) -> None:
        super().__init__(database, federation_manager, object_store, duties)
        self.front_end = front_end
        duties.held.tell = duties.past.tell = front_end.tell

    def initialize(self, log_queries: bool = False, **engine_kwargs: Any) -> list[str]:
        """Connect to the database, and claim it for the server to which this front end belongs.

        Raises DatabaseError if it belongs to another one.
        """
        tables = super().initialize(log_queries, **engine_kwargs)
        with self.alone() as session:
            claim(executor(session), self.front_end.url, self.front_end.authority)
        return tables

    # --- messages ----------------------------------------------------------------------------------------

    def stored_bytes(self, message_ids: Collection[str]) -> dict[str, int]:
        """Return how many bytes are stored of each incomplete reply to these messages, by message."""
        return {asked: int(size) for asked, size in self.rows(_STORED, (listed(message_ids),))}

    def _unconfirmed(self, node_id: int) -> Any:
        """Return the message (PullMessagesResponse) that a node has received last, if it must have it again.

        That is, unless the node has confirmed it or has replied. None if there is no such message.
        """
        with self.session() as session:
            execute = executor(session)
            rows = execute(_UNCONFIRMED, (protocol.signed(node_id), protocol.now().timestamp())).all()
            for message in self.messages_of(execute, rows):
                if (tree := self.objects.tree_of(message.metadata.message_id)) is not None:
                    trees = [tree]
                    return wire.METHODS["PullMessages"].response(
                        messages_list=[message], message_object_trees=trees
                    )
        return None

    # --- nodes -------------------------------------------------------------------------------------------

    def _take(self, node_id: int) -> None:
        """Answer for a node from now on: it is connected to this front end.

        If another one answered for it, the answer with a message may have been lost on its way from there.
        """
        if not self.rows(_TAKE, (protocol.signed(node_id), self.front_end.name)):
            return
        self._duties.moved_away(node_id)  # what is known here is older
        self.front_end.tell("moved", node_id)
        if (answer := self._unconfirmed(node_id)) is not None:
            self._duties.unconfirmed.note(node_id, answer)
            if self._unconfirmed(node_id) is None:  # the node's confirmation came in between
                self._duties.unconfirmed.forget(node_id)
        self._duties.held.wake(("node", node_id))

    def next_message(self, node_id: int) -> Any:
        """Return the next message to a node, None if there is none, or if another front end answers for it.

        The request may come over an old connection, on which the node does not listen any more.
        """
        with self.session() as session:
            owner = executor(session)(_OWNER, (protocol.signed(node_id),)).scalar()
            return super().next_message(node_id) if owner in (None, self.front_end.name) else None

    def activate(self, node_id: int, heartbeat_interval: float) -> bool:
        """Mark a node as online, unless it is connected to this front end already."""
        self._take(node_id)
        return super().activate(node_id, heartbeat_interval)

    def note_heartbeat(self, node_id: int, heartbeat_interval: float) -> bool:
        """Note that a node is online, and that it is connected to this front end."""
        self._take(node_id)
        return super().note_heartbeat(node_id, heartbeat_interval)

    def go_offline(self, node_id: int) -> bool:
        """Mark a node as offline, unless it is connected elsewhere. Return whether it was online here."""
        with self.session() as session:
            node = protocol.signed(node_id)
            if executor(session)(_OWNER, (node,)).scalar() not in (None, self.front_end.name):
                return False
            return super().go_offline(node_id)

    def online_nodes(self) -> list[int]:
        """Return the ids of the nodes that count as online and for which this front end answers."""
        found = self.rows(_MINE, (self.front_end.name, protocol.now().timestamp()))
        return [protocol.unsigned(node) for (node,) in found]

    def delete_node(self, owner_aid: str, node_id: int) -> None:
        """Revoke a node's key, and let the other front ends forget it."""
        super().delete_node(owner_aid, node_id)
        self.then(lambda: self.front_end.tell("revoked", node_id))

    # --- runs and their tasks ----------------------------------------------------------------------------

    def create_run(self, *arguments: Any, **named: Any) -> int:
        """Store a new run, and where it was submitted. Return its id; 0 if that is not possible."""
        with self.session():
            run = super().create_run(*arguments, **named)
            if run:
                self.rows(_SUBMITTED, (protocol.signed(run), self.front_end.home))
        return run

    def get_tasks(self, *, statuses: Sequence[str] | None = None, **named: Any) -> Sequence[Task]:
        """Return tasks; to an executor, which asks for pending ones, only those of runs from here."""
        tasks = super().get_tasks(statuses=statuses, **named)
        if not tasks or list(statuses or ()) != ["pending"]:
            return tasks
        runs = listed({protocol.signed(each.run_id) for each in tasks})
        elsewhere = {protocol.unsigned(run) for (run,) in self.rows(_ELSEWHERE, (runs, self.front_end.home))}
        return [each for each in tasks if each.run_id not in elsewhere]
