"""TCP ports of the loopback interface."""

from __future__ import annotations

import contextlib
import socket

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Pick TCP ports of the loopback interface that nothing listens on."""
    with contextlib.ExitStack() as held:  # all stay bound until the last is picked: no port is picked twice
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]


def is_free(port: int) -> bool:
    """Tell whether a server could listen on this port of the loopback interface."""
    with socket.socket() as probe:
        # As servers do: a port with connections in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
