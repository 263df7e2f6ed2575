"""The TCP connections between devices and a SuperLink's Fleet API."""

import os
import socket
import stat
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

# The connections that the gate (`gate.connection_gate`) forwards, by the name of the peer; see `sender`
forwarded: dict[str, socket.socket] = {}

PING = 45.0  # s without a byte from the server, after which a SuperNode sends one of gRPC's keepalive pings
SILENCE = 65.0  # s without a byte in either direction, after which the gate ends a node's connection
# The kernel asks a peer that has sent nothing for `IDLE` seconds whether it is there, at most `TRIES` times,
# every `AGAIN` seconds. Without an answer, or while the peer takes nothing of what was sent, it ends the
# connection after `GONE` seconds.
IDLE, AGAIN, TRIES = 4, 2, 3
GONE = IDLE + TRIES * AGAIN
_OPTIONS = {
    "TCP_KEEPIDLE": IDLE,
    "TCP_KEEPALIVE": IDLE,  # the same on macOS
    "TCP_KEEPINTVL": AGAIN,
    "TCP_KEEPCNT": TRIES,
    "TCP_USER_TIMEOUT": GONE * 1000,  # ms; missing on macOS
}


def sender(context: Any) -> str:
    """Return gRPC's name of the peer that sent a request, such as ipv4:192.0.2.1:80.

    If the gate (`gate.connection_gate`) forwarded the request, gRPC's name is unix:FOLDER/PEER, and PEER is
    returned.
    """
    return unquote(context.peer()).rpartition("/")[2]


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel end a TCP connection soon after its cable is pulled. This costs the process nothing."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if hasattr(socket, name):  # not every system has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def keep_all_alive() -> None:
    """Do this for all TCP connections of this process: gRPC, which has no such option, shows none of its own.

    Does nothing on Windows, which has no list of open files.
    """
    with suppress(OSError):
        for number in map(int, os.listdir("/dev/fd")):  # noqa: PTH208
            with suppress(OSError):  # it has been closed since
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    found = socket.socket(fileno=number)
                    try:
                        if found.type == socket.SOCK_STREAM and found.family != socket.AF_UNIX:
                            keep_alive(found)
                    finally:
                        found.detach()  # its owner closes it
