"""The open connections to a SuperLink's Fleet API, and the name of the peer that sent a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    import socket

# The connections that the gate (`guards.connection_gate`) forwards, by the name of the peer; see `sender`
forwarded: dict[str, socket.socket] = {}


def sender(context: Any) -> str:
    """Return gRPC's name of the peer that sent a request, such as ipv4:192.0.2.1:80.

    If the gate (`guards.connection_gate`) forwarded the request, gRPC's name is unix:FOLDER/PEER, and PEER is
    returned.
    """
    return unquote(context.peer()).rpartition("/")[2]
