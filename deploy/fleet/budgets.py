"""Limits what each node may ask in a second: by a budget of points and of bytes.

A request costs points before its signature is checked, and bytes when its body has been read. If a node's
budget is spent, its requests are refused with UNAVAILABLE, after which a SuperNode tries again.
"""

import threading
import time

# Points, of which one is about a millisecond of the SuperLink's CPU time. A SuperNode that joins objects
# (`joined_objects`) spends 10 points on a message and its reply, if all objects are small. So 40 messages a
# second are within the budget. A device that only adds two numbers answers 17 a second. A stock SuperNode
# sends a request for each object of a model: 4,000 at once, and then 400 a second.
POINTS, MOST_POINTS = 400.0, 4000.0
COSTS = {
    # Marks a node as online, in several transactions. A device sends one when it starts. So a device that is
    # started again every second is within the budget, and one that is started ten times at once.
    "ActivateNode": 400,
    "DeactivateNode": 100,
    "RegisterNode": 100,  # Flower refuses both
    "UnregisterNode": 100,
    "GetFab": 20,  # once in a run
    "GetRun": 10,
    "SendNodeHeartbeat": 8,  # a SuperNode sends one in minutes, and one in a second after an error
    "PushMessages": 4,
    "PullMessages": 2,
}
REFUSED = 20  # points that a refused request costs in addition; honest requests are rarely refused
# Bytes of bodies. Those of objects that were stored are given back, because replies have limits of their own
# (`admission`). The announcement of a reply has 70 bytes for each of its objects: 25 kB for 100 arrays,
# and 400 kB for a model of 28 GB. The most that a node has under way is 8 objects of 6 MiB.
BYTES, MOST_BYTES = 1e6, 64e6


class Budgets:
    """The budgets of all nodes."""

    def __init__(self) -> None:
        self._points: dict[int, _Bucket] = {}
        self._bytes: dict[int, _Bucket] = {}
        self._lock = threading.Lock()

    def begin(self, node: int, method: str) -> bool:
        """Spend the points of a request. Return False if the node's budget is spent."""
        with self._lock:
            points = self._points.setdefault(node, _Bucket(POINTS, MOST_POINTS))
            if points.left <= 0 or (node in self._bytes and self._bytes[node].left <= 0):
                return False
            points.spend(COSTS.get(method, 1))
            return True

    def refused(self, node: int) -> None:
        """Spend the points of a refused request."""
        with self._lock:
            self._points[node].spend(REFUSED)

    def spend_bytes(self, node: int, count: int) -> None:
        """Spend the bytes of a body, or give them back (a negative number)."""
        with self._lock:
            self._bytes.setdefault(node, _Bucket(BYTES, MOST_BYTES)).spend(count)


class _Bucket:
    """An amount that grows by `rate` in a second, up to `most`. It may be overdrawn."""

    def __init__(self, rate: float, most: float) -> None:
        self._rate, self._most = rate, most
        self._left, self._when = most, time.monotonic()

    @property
    def left(self) -> float:
        now = time.monotonic()
        self._left = min(self._most, self._left + self._rate * (now - self._when))
        self._when = now
        return self._left

    def spend(self, amount: float) -> None:
        self._left = min(self._most, self.left - amount)
