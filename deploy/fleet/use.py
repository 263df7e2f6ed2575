"""What each run has used: bytes and seconds, added up between two writes to the database."""

import threading
import time
from typing import NamedTuple

from deploy.flower.patches.shared import LOOK


class Use(NamedTuple):
    """What a run has used: bytes that were sent to nodes and received from them, seconds of ClientApps."""

    sent: int = 0
    received: int = 0
    seconds: float = 0.0


class Traffic:
    """The sums of each run. They are due `LOOK` seconds after they were taken last."""

    def __init__(self) -> None:
        self._sums: dict[int, Use] = {}  # by run
        self._taken = time.monotonic()
        self._lock = threading.Lock()

    def add(self, run: int, use: Use) -> dict[int, Use]:
        """Add to the sums of a run. Return the sums of all runs if they are due, else an empty dictionary."""
        with self._lock:
            before = self._sums.get(run, Use())
            sums = before.sent + use.sent, before.received + use.received, before.seconds + use.seconds
            self._sums[run] = Use(*sums)
            due = time.monotonic() - self._taken >= LOOK
        return self.take() if due else {}

    def take(self) -> dict[int, Use]:
        """Return the sums of all runs, and begin again at zero."""
        with self._lock:
            sums, self._sums, self._taken = self._sums, {}, time.monotonic()
        return sums
