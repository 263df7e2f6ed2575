"""Keeps runs alive when the clock of the SuperLink's machine jumps forwards, for example after sleep.

In stock Flower a jump by a minute or more ends every run, for two reasons:

- A task, such as the ServerApp of a run, expires at the clock time that its last heartbeat has set.
- A ServerApp cannot push a message that expires during the time that the clock has skipped.
"""

import threading
import time
from datetime import datetime, timedelta
from logging import getLogger
from typing import Any

from deploy.fleet import protocol
from deploy.fleet.storage.statements import stored_time

JUMP = 5.0  # s; the clock has jumped if it has advanced by this much more than `time.monotonic()`
GRACE = 60.0  # s after a jump in which messages from before the jump are accepted

MISSED_HEARTBEATS = 4
"""A ServerApp counts as dead after this many times 30 s without a heartbeat. Stock Flower has 2 times 30 s.

A ServerApp sends a heartbeat every 17 to 23 s. While the database is locked, it repeats the heartbeat for up
to `shared.FAILING` s."""
_PROLONG = "UPDATE task SET active_until = ? WHERE active_until IS NOT NULL AND finished_at IS NULL"


class ClockJumps:
    """After a jump, gives every task time for a new heartbeat, and ServerApps time to push messages.

    A message from before the jump may expire before a node receives it. The ServerApp then gets an error
    reply, as for every message that has expired.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead = _ahead()
        # The length of the latest jump, and the end of the `GRACE` after it (time.monotonic(), s).
        self._jump, self._until = timedelta(), 0.0

    def check(self, state: Any) -> None:
        """If the clock has jumped since the last call, prolong all tasks of a state.

        Call this before a method of the state compares the times of tasks with the clock.
        """
        with self._lock:
            ahead = _ahead()
            if ahead - self._ahead > JUMP:
                getLogger("flwr").warning("The clock has jumped by %.0f s", ahead - self._ahead)
                _prolong_tasks(state)
                self._jump = timedelta(seconds=ahead - self._ahead)
                self._until = time.monotonic() + GRACE
            self._ahead = ahead

    def now_for_messages(self) -> datetime:
        """Return the time by which the age of a message that is pushed is judged."""
        now = protocol.now()
        return now - self._jump if time.monotonic() < self._until else now


def _ahead() -> float:
    """Return how many seconds the clock is ahead of a clock that never jumps. A jump changes the number."""
    return time.time() - time.monotonic()


def _prolong_tasks(state: Any) -> None:
    state.rows(
        _PROLONG, (stored_time(protocol.now() + timedelta(seconds=MISSED_HEARTBEATS * protocol.HEARTBEAT)),)
    )
