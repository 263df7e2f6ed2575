"""A server's invitations in the database that its front ends share, and their addresses.

An invitation that one front end has made can be used at any of them, once. Its use is noted and the key is
registered in one transaction, which excludes other ones (`alone`).
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from deploy.fleet import protocol
from deploy.fleet.storage import postgres
from deploy.fleet.storage.postgres import NOW
from deploy.flower.registered_clients import DAY, RegistrationRefused, Registry

KEPT = 7 * DAY  # s for which devices get the address of a front end after its end
INVITED = "invited"  # what a front end is told when invitations were made or withdrawn
TABLES = (
    # The token's hash; when the invitation expires, and when it was used (Unix time, s); the device's key.
    "CREATE TABLE IF NOT EXISTS cohort_invitation (token TEXT PRIMARY KEY, name TEXT, "
    "expires DOUBLE PRECISION, key TEXT, used DOUBLE PRECISION)",
    "CREATE TABLE IF NOT EXISTS cohort_address (home TEXT PRIMARY KEY, address TEXT, devices INTEGER, "
    "seen DOUBLE PRECISION)",
)
ADDRESSES = (
    f"SELECT address FROM cohort_address WHERE seen > {NOW} - {KEPT} GROUP BY address ORDER BY address"
)
# The front ends that are alive: the folder and machine of each, its address, and how many devices it has
LOADS = (
    "SELECT home, address, devices FROM cohort_address WHERE home IN "
    f"(SELECT home FROM cohort_front_end WHERE seen > {NOW} - {postgres.LEASE}) ORDER BY home"
)
_TELL = f"SELECT pg_notify('{postgres.CHANNEL}', '{INVITED}')"
_MADE = "INSERT INTO cohort_invitation VALUES (?, ?, ?, NULL, NULL)"
MOVED = "INSERT INTO cohort_invitation VALUES (?, ?, ?, ?, ?)"
_UNUSED = "SELECT name, expires FROM cohort_invitation WHERE key IS NULL"
_WITHDRAWN = "DELETE FROM cohort_invitation WHERE name = ? RETURNING 1"
_ONE = "SELECT name, expires, key FROM cohort_invitation WHERE token = ?"
_USED = "UPDATE cohort_invitation SET key = ?, used = ? WHERE token = ?"
_SHOWN = (
    f"SELECT token, coalesce(used + {DAY}, expires) FROM cohort_invitation "
    f"WHERE coalesce(used + {DAY}, expires) > {NOW}"
)
_REGISTERED = "SELECT 1 FROM node WHERE name = ? AND status != 'unregistered' LIMIT 1"
_NAMES = "SELECT node_id, name FROM node WHERE status != 'unregistered'"


class SharedRegistry(Registry):
    """The clients of a folder, and the invitations of all front ends.

    Invitations in the folder, from before the server shared a database, stay valid at this front end.

    `rows`: executes a statement (in SQLite's dialect) with parameters, and returns the rows. `alone`: begins
    a transaction that excludes others of its kind, in which `rows` takes part.
    """

    def __init__(
        self,
        folder: Path,
        rows: Callable[..., Sequence[Any]],
        alone: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        super().__init__(folder)
        self._rows, self._one_at_a_time = rows, alone
        # Until when a device may show each token, by the token's hash: strangers send tokens, too, and what
        # they send must not reach the database
        self._shown: dict[str, float] = {}
        self._changed = threading.Lock()

    def refresh(self) -> None:
        """Learn which invitations there are."""
        with self._changed:
            self._shown = dict(self._rows(_SHOWN))

    def knows(self, token: str) -> bool:
        """Tell whether this is the token of an invitation that a device may show now, as of `refresh`."""
        return time.time() <= self._shown.get(_hash(token), 0.0) or super().knows(token)

    def invite(self, name: str, seconds: float) -> str:
        """Make an invitation for the client `name`, valid for `seconds`. Return the invitation's token."""
        token = secrets.token_urlsafe(32)
        self._rows(_MADE, (_hash(token), name, time.time() + seconds))
        self._rows(_TELL)
        return token

    def invited(self) -> dict[str, float]:
        """Return, by client's name, when each unused invitation expires (Unix time, in seconds)."""
        return super().invited() | dict(self._rows(_UNUSED))

    def is_registered(self, name: str) -> bool:
        """Tell whether a client of any front end has this name."""
        return super().is_registered(name) or bool(self._rows(_REGISTERED, (name,)))

    def withdraw(self, name: str) -> bool:
        """Remove all invitations of a client, and return whether there were any."""
        found = self._rows(_WITHDRAWN, (name,))
        if found:
            self._rows(_TELL)
        return super().withdraw(name) or bool(found)

    def accept(self, token: str, key: str, register: Callable[[str, str], str]) -> str:
        """Register the key of a device that shows a token, and return the client's name."""
        with self._one_at_a_time():
            found = self._rows(_ONE, (_hash(token),))
            if not found:
                return super().accept(token, key, register)
            ((name, expires, used_by),) = found
            self.check_use(name, expires, used_by, key)
            if used_by is None:
                self._rows(_USED, (key, time.time(), _hash(token)))
            node = register(name, key)
        with self._changed:
            self._shown[_hash(token)] = time.time() + DAY
        self.record(name, node, key)
        return str(name)

    def names(self) -> dict[str, str]:
        """Return the names of the nodes of all front ends, by node id."""
        return {str(protocol.unsigned(node)): name for node, name in self._rows(_NAMES) if name}

    def addresses(self) -> list[str]:
        """Return the addresses of all front ends."""
        return [address for (address,) in self._rows(ADDRESSES)]

    def devices(self) -> dict[str, int]:
        """Return how many devices are connected to each front end, by its machine and folder."""
        return {home: count for home, _, count in self._rows(LOADS)}


def connected(folder: Path, url: str) -> SharedRegistry:
    """Return the registry of a server for a program that has no state, such as `cohort server invite`."""

    def rows(statement: str, values: Sequence[Any] = ()) -> Sequence[Any]:
        with postgres.connect(url) as connection:
            return postgres.rows(connection, statement, values)

    @contextmanager
    def alone() -> Iterator[None]:
        raise RegistrationRefused("only a SuperLink accepts invitations")
        yield

    return SharedRegistry(folder, rows, alone)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
