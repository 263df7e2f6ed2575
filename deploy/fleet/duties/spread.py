"""Spreads the devices over the front ends of a server, when one has clearly more than its share of them.

Devices choose a front end at random, and go to another one when theirs dies. They would stay there when it
returns. So each front end counts every `LOOK` seconds. If it has clearly more devices than its share, it
tells some that wait for messages, drawn at random, to connect to one that has fewer. They are never told more
than the addresses of front ends that share the database, and they connect only to a server with a certificate
of their authority (`supernode.connection`). A device that trains stays.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Collection, Sequence
from typing import NamedTuple

LOOK = 10.0  # s between two looks; when a front end has come up, the others look after `COMES` s
COMES = 2.0
MOST = 200  # devices that a front end sends away at a time: each makes a TLS connection, which takes 2 ms
SLACK = 1.1  # times its share, plus one, are the most devices that a front end keeps


class Load(NamedTuple):
    """How many devices a front end has."""

    home: str
    address: str
    devices: int


def excess(loads: Sequence[Load], mine: str) -> tuple[int, list[str]]:
    """Return how many devices the front end `mine` (its home) is to send away, and the addresses for them."""
    share = sum(each.devices for each in loads) / max(1, len(loads))
    have = sum(each.devices for each in loads if each.home == mine)
    if have <= SLACK * share + 1:
        return 0, []
    return min(MOST, have - math.ceil(share)), [each.address for each in loads if each.devices < share]


class Spread:
    """What a front end tells its devices of the others."""

    def __init__(self) -> None:
        self.known: list[str] = []  # the addresses of all front ends
        self._better: list[str] = []
        self._leaving: set[int] = set()
        self._lock = threading.Lock()

    def choose(self, count: int, better: list[str], nodes: Collection[int]) -> list[int]:
        """Choose up to `count` of these nodes at random, whose next heartbeat sends them to `better`."""
        chosen = random.sample(sorted(nodes), min(count, len(nodes)))
        with self._lock:
            self._better, self._leaving = better, set(chosen)
        return chosen

    def better(self, node: int) -> list[str]:
        """Return the addresses to one of which a node is to move now: none, unless it was chosen."""
        if node not in self._leaving:
            return []
        with self._lock:
            self._leaving.discard(node)
            return self._better
