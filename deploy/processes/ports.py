"""Finds free TCP ports of the loopback interface."""

import contextlib
import socket

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Return `count` different TCP ports of the loopback interface on which no program listens."""
    # All sockets stay bound until the last port is picked, so that no port is picked twice.
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]


def is_free(port: int) -> bool:
    """Tell whether a server could listen on this port of the loopback interface."""
    with socket.socket() as probe:
        # Servers set this option too. With it, a port that only has connections in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
