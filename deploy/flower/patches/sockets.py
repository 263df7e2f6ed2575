"""Finds the sockets of this process that are connections, and the names of their peers."""

from __future__ import annotations

import errno
import os
import socket
import stat
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    Peer = tuple[str, int]  # address and port


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
