"""Reads the SuperLink's database for the page: the nodes, the open messages and the logs of ServerApps.

The statements name Flower's own table classes, whose digests are in names.txt;
`python -m deploy.flower.versions` tries the statements with another version of Flower.
"""

import contextlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from flwr.supercore.state.schema.corestate_models import Task, TaskLogsTable
from flwr.supercore.state.schema.linkstate_models import MessageIns, MessageRes, Run
from flwr.supercore.state.schema.linkstate_models import Node as NodeTable
from sqlalchemy import Select, create_engine, literal_column, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from deploy.json_text import parse_json

PATIENCE = 0.2  # s that a query waits for a lock
# The most pieces of a log that are read at once, and the most runs whose logs are read.
LOG_PIECES, LOG_RUNS = 500, 100
OPEN_MESSAGES = 2000  # the most messages of rounds under way that are read


@dataclass(frozen=True)
class Node:
    """A node of the SuperLink."""

    node_id: int
    status: str  # registered, online, offline or unregistered
    online_until: float  # seconds since 1970; after this time, the node counts as offline
    left: float  # seconds since 1970 of its last departure; 0 if it never left

    def is_online(self, now: float) -> bool:
        """Return whether the node is online, by the SuperLink's rule."""
        return self.status == "online" and self.online_until > now

    def seen(self, now: float) -> float | None:
        """Return when the node was last seen, in seconds since 1970; None if it never was online."""
        if self.is_online(now):
            return now
        return max(self.left, self.online_until if self.online_until < now else 0.0) or None


@dataclass(frozen=True)
class OpenMessage:
    """A TRAIN message of a round under way."""

    folder: str  # the setting output-dir of its run
    round: str
    client: str  # the name of the node
    sent: float  # seconds since 1970, on the clock of the ServerApp
    phase: str  # "asked" (not fetched yet), "working" (downloads, trains) or "replied" (the reply arrives)


class Database:
    """Reads the SuperLink's database file.

    A reader of a database in WAL mode delays no writer. If the file is missing, locked, corrupt or of another
    version of Flower, the methods return no data.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def nodes(self) -> dict[str, Node] | None:
        """Return the nodes by name; a node without a name is named "node-" and its id."""
        columns = NodeTable.node_id, NodeTable.name, NodeTable.status, NodeTable.online_until
        asked = select(*columns, NodeTable.last_deactivated_at).where(NodeTable.status != "unregistered")
        if (rows := self._rows(asked)) is None:
            return None
        found = {}
        for node_id, name, status, until, left in rows:
            node = _unsigned(node_id)
            found[str(name or f"node-{node}")] = Node(node, str(status), float(until or 0.0), _time(left))
        return found

    def open_messages(self) -> list[OpenMessage]:
        """Return the TRAIN messages of rounds under way, and those of past rounds that are still stored."""
        asked, reply = MessageIns, MessageRes
        columns = Run.override_config, asked.group_id, NodeTable.name, asked.dst_node_id
        rows = self._rows(
            select(*columns, asked.created_at, asked.delivered_at, reply.message_id)
            .join(Run, Run.run_id == asked.run_id)
            .join(NodeTable, NodeTable.node_id == asked.dst_node_id, isouter=True)
            .join(reply, reply.reply_to_message_id == asked.message_id, isouter=True)
            .where(asked.message_type.startswith("train"))
            .order_by(asked.created_at.desc())
            .limit(OPEN_MESSAGES)
        )
        found = []
        for config, group, name, node_id, created, delivered, replied in rows or ():
            phase = "replied" if replied else "working" if delivered else "asked"
            client = str(name or f"node-{_unsigned(node_id)}")
            found.append(OpenMessage(_output_dir(config), str(group), client, float(created or 0), phase))
        return found

    def log(self, run: Path, start: int | None) -> tuple[int, int, list[str]]:
        """Return lines of the log of a run's ServerApps, in the form of `deploy.page.run_sources.read_log`.

        The SuperLink's database holds the log of each ServerApp in numbered pieces. The result has these
        numbers instead of offsets. Without `start`, the last `LOG_PIECES` pieces are returned.
        """
        runs = [
            run_id
            for run_id, config in self._rows(select(Run.run_id, Run.override_config)) or ()
            if run in (Path(folder := _output_dir(config)), Path(folder).parent) and folder
        ][-LOG_RUNS:]
        number: Any = literal_column("task_logs.rowid")
        logs = TaskLogsTable.c
        asked = select(number, logs.log).join(Task, Task.task_id == logs.task_id)
        asked = asked.where(Task.run_id.in_(runs), number > (start or 0)).limit(LOG_PIECES)
        pieces = self._rows(asked.order_by(number.desc() if start is None else number))
        pieces = sorted(pieces or [])
        text = "".join(str(log) for _, log in pieces)
        end = pieces[-1][0] if pieces else start or 0
        return start or 0, end, text.splitlines()

    def _rows(self, statement: Select[*tuple[Any, ...]]) -> list[tuple[Any, ...]] | None:
        if not self.path.is_file():
            return None
        engine = create_engine(
            f"sqlite:///{self.path.resolve().as_uri()}?mode=ro&uri=true",
            connect_args={"timeout": PATIENCE},
            poolclass=NullPool,
        )
        try:
            with engine.connect() as connection:
                return [tuple(row) for row in connection.execute(statement)]
        except (SQLAlchemyError, OSError):
            return None


def _unsigned(node_id: Any) -> int:
    """Return a node id as Flower prints it; the database holds it as a signed number."""
    return int(node_id) % (1 << 64)


def _time(text: Any) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def _output_dir(config: Any) -> str:
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return str(parse_json(config).get("output-dir", ""))
    return ""
