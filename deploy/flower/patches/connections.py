"""Closes strangers' connections to a port, and raises the limit of open files.

A stranger is a peer that has not yet sent a request with a registered key.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import sys
import threading
import time
from collections import Counter, defaultdict
from ipaddress import IPv6Address, ip_address
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Callable

    Peer = tuple[str, int]  # address and port

INTERVAL = 1.0  # s between two checks of the connections
FIRST_REQUEST = 15.0  # s after which a connection is closed if it brought no request with a registered key
# The largest number of open connections: of strangers from one address, and of one node. If there are more,
# the oldest are closed.
STRANGERS, PER_NODE = 512, 16
TOLD = 60.0  # s between two lines in the log about closed connections
REFUSALS = 16  # refused requests after which a connection is closed
OPEN_FILES = 65_536  # the wanted limit of open files


def raise_file_limit() -> None:
    """Raise the limit of open files to `OPEN_FILES`, or as far as the system allows.

    Every connection is an open file.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Connections:
    """The connections to a port of this process.

    gRPC does not limit the connections of a peer, and does not give access to its sockets. So a thread finds
    the sockets among this process's open files. When the thread shuts a socket down, gRPC sees a peer that
    hung up.

    Parameters
    ----------
    admit : Callable[[str], None]
        Called with the name of a peer that sent a request with a registered key. (default: nothing is called)
    """

    def __init__(self, admit: Callable[[str], None] = lambda _: None) -> None:
        self._admit = admit
        self._lock = threading.Lock()
        self._admitted: dict[Peer, int] = {}  # peer: its node
        self._refused: Counter[Peer] = Counter()
        self._first_seen: dict[Peer, float] = {}
        self._look = threading.Event()
        self._closed: Counter[str] = Counter()  # the connections closed since the last line, by address
        self._told = -TOLD

    def watch(self, port: int, also: Callable[[], None]) -> None:
        """Start a thread that checks the connections to a port every `INTERVAL`, and then calls `also`."""

        def look() -> None:
            while True:
                self._look.wait(INTERVAL)
                self._look.clear()
                try:
                    self.close_strangers(port)
                    also()
                except Exception as error:  # the next check may succeed
                    getLogger("flwr").warning("Connections could not be checked: %s", error)
                time.sleep(INTERVAL / 10)

        threading.Thread(target=look, name="connections", daemon=True).start()

    def admitted(self, peer: str, node: int) -> None:
        """Note that a peer sent a request with a node's key. `peer` is the name that `sender` returns."""
        self._admit(peer)
        with self._lock:
            self._admitted[peer_of(peer)] = node

    def refused(self, peer: str) -> None:
        """Note that a request of a peer was refused. `peer` is the name that `sender` returns."""
        with self._lock:
            who = peer_of(peer)
            self._refused[who] += 1
            often = self._refused[who] >= REFUSALS
        if often:
            self._look.set()

    def close_strangers(self, port: int) -> None:
        """Close connections beyond a limit: `FIRST_REQUEST`, `STRANGERS`, `REFUSALS` or `PER_NODE`."""
        now = time.monotonic()
        connected = dict(connections_to(port))
        try:
            with self._lock:
                self._admitted = {who: node for who, node in self._admitted.items() if who in connected}
                self._refused = Counter({who: n for who, n in self._refused.items() if who in connected})
                self._first_seen = {who: self._first_seen.get(who, now) for who in connected}
                by_age = sorted(connected, key=self._first_seen.__getitem__)
                strangers = [who for who in by_age if who not in self._admitted]
                closed = {who for who, count in self._refused.items() if count >= REFUSALS}
                closed.update(who for who in strangers if now - self._first_seen[who] > FIRST_REQUEST)
                by_address: defaultdict[str, list[Peer]] = defaultdict(list)
                for who in strangers:
                    by_address[who[0]].append(who)
                of_node: defaultdict[int, list[Peer]] = defaultdict(list)
                for who in by_age:
                    if who in self._admitted:
                        of_node[self._admitted[who]].append(who)
            for same in by_address.values():
                closed.update(same[: max(0, len(same) - STRANGERS)])
            for same in of_node.values():
                closed.update(same[: max(0, len(same) - PER_NODE)])
            for who in closed:
                with contextlib.suppress(OSError):
                    connected[who].shutdown(socket.SHUT_RDWR)
        finally:
            for each in connected.values():
                each.close()
        self._closed.update(who[0] for who in closed)
        if self._closed and now - self._told >= TOLD:
            text = ", ".join(f"{count} from {address}" for address, count in self._closed.most_common(3))
            count = self._closed.total()
            self._closed, self._told = Counter(), now
            getLogger("flwr").warning("Closed %d connections beyond a limit: %s", count, text)


def sender(context: Any) -> str:
    """Return gRPC's name of the peer that sent a request, such as ipv4:192.0.2.1:80.

    If the gate (`guards.gate`) forwarded the request, gRPC's name is unix:FOLDER/PEER, and PEER is
    returned.
    """
    return unquote(context.peer()).rpartition("/")[2]


def peer_of(text: str) -> Peer:
    """Return the address and port in gRPC's name of a peer, such as ipv4:192.0.2.1:80 or ipv6:%5B::1%5D:80.

    The port is 0 if the name has none.
    """
    host, _, port = unquote(text).partition(":")[2].rpartition(":")
    return _address(host.strip("[]")), int(port) if port.isdigit() else 0


def _address(text: str) -> str:
    try:
        found = ip_address(text)
    except ValueError:
        return text
    return str((found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found)


def connections_to(port: int | None = None) -> list[tuple[Peer, socket.socket]]:
    """Return the peer and a socket of each connection to a port of this process.

    The sockets are duplicates, which the caller must close. If `port` is None, the connections to and from
    all ports are returned.

    Raises
    ------
    OSError
        If this process has no free descriptors.
    """
    # Only descriptors of sockets are duplicated. A process that closes any descriptor of a file loses all its
    # locks on the file. If the database's descriptor were duplicated, closing the duplicate would cost SQLite
    # its locks.
    found = []
    for descriptor in [each for each in _descriptors() if _is_socket(each)]:
        try:
            each = socket.socket(fileno=os.dup(descriptor))
        except OSError as error:  # the socket was closed since the listing, or no descriptor is free
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # without this connection, the result would be wrong
        else:
            if (peer := _peer_over_ip(each, port)) is None:
                each.close()
            else:
                found.append((peer, each))
    return found


def _descriptors() -> list[int]:
    return [int(path.name) for path in Path("/dev/fd").iterdir()]


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:  # the descriptor was closed since the listing
        return False


def _peer_over_ip(connection: socket.socket, port: int | None) -> Peer | None:
    """Return the peer of a socket. Return None if the socket is not an IP connection to this port."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        if port not in (None, connection.getsockname()[1]):
            return None
        host, number = connection.getpeername()[:2]
    except OSError:  # the socket is not connected
        return None
    return _address(host), number
