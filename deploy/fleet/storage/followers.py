"""Which process follows a run, and resumes it if its ServerApp dies: one, among those of all front ends.

Each run has a row in `cohort_follower` from its submission to its end. Its follower says every `BEAT` seconds
that it lives, as long as its front end lives too: without one it could not resume the run. If it has not for
`LEASE` seconds, another process may become the follower.
"""

from __future__ import annotations

from typing import Any

from deploy.fleet.storage import postgres
from deploy.fleet.storage.postgres import NOW

BEAT = 3.0  # s between two signs of life
LEASE = 15.0  # s; a SuperLink that is started again takes less
TABLE = (
    "CREATE TABLE IF NOT EXISTS cohort_follower "
    "(place TEXT, run TEXT, name TEXT, home TEXT, seen DOUBLE PRECISION, PRIMARY KEY (place, run))"
)
_CLAIM = (
    f"INSERT INTO cohort_follower AS f VALUES (%s, %s, %s, %s, {NOW}) ON CONFLICT (place, run) DO UPDATE "
    "SET name = excluded.name, home = excluded.home, seen = excluded.seen "
    f"WHERE f.name = excluded.name OR f.seen < {NOW} - {LEASE}"
)
_HOME = "SELECT home FROM cohort_follower WHERE place = %s AND run = %s"
_LIVES = (
    "UPDATE cohort_follower f SET seen = CASE WHEN EXISTS (SELECT 1 FROM cohort_front_end e "
    f"WHERE e.home = f.home AND e.seen > {NOW} - {postgres.LEASE}) THEN {NOW} ELSE seen END "
    "WHERE place = %s AND run = %s AND name = %s"
)
_END = "DELETE FROM cohort_follower WHERE place = %s AND run = %s AND name = %s"
_LEAVE = "UPDATE cohort_follower SET seen = 0 WHERE place = %s AND run = %s AND name = %s"
_LEFT = f"SELECT run FROM cohort_follower WHERE place = %s AND seen < {NOW} - {LEASE}"


class Followers:
    """The followers of the runs in one folder. All methods raise DatabaseError if the database is away.

    `url`: the database's address. `place`: names the folder; the same at each front end that has this folder.
    """

    def __init__(self, url: str, place: str) -> None:
        self._url, self._place = url, place
        self._connection: Any = None

    def claim(self, run: str, name: str, home: str) -> str:
        """Become the follower of a run. Return "", or the home of the process that follows it already.

        `run`: the name of the run's folder. `name`: of this process, and of no other. `home`: of its front
        end (`deploy.fleet.duties.front_ends`).
        """
        while not self._ask(_CLAIM, run, name, home).rowcount:
            if found := self._ask(_HOME, run).fetchone():  # otherwise it has just been given up
                return str(found[0])
        return ""

    def lives(self, run: str, name: str) -> bool:
        """Say that a follower lives. Return whether it still is the follower."""
        return bool(self._ask(_LIVES, run, name).rowcount)

    def end(self, run: str, name: str) -> None:
        """Note that a run has ended or is given up: nobody must follow it any more."""
        self._ask(_END, run, name)

    def leave(self, run: str, name: str) -> None:
        """Leave a run to the next follower."""
        self._ask(_LEAVE, run, name)

    def left(self) -> set[str]:
        """Return the names of the runs whose follower has ended or is cut off."""
        return {str(run) for (run,) in self._ask(_LEFT).fetchall()}

    def _ask(self, statement: str, *values: str) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = postgres.connect(self._url)
        with postgres.in_one_line(self._url):
            return self._connection.execute(statement, (self._place, *values))
