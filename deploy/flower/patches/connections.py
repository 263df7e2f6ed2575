"""The connections of a SuperLink to its nodes, the names of their peers, and the limit of open files."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    import socket

OPEN_FILES = 65_536  # the wanted limit of open files

# The open connections that the gate (`guards.gate`) forwards, by the name of the peer (see `sender`).
forwarded: dict[str, socket.socket] = {}


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


def sender(context: Any) -> str:
    """Return gRPC's name of the peer that sent a request, such as ipv4:192.0.2.1:80.

    If the gate (`guards.gate`) forwarded the request, gRPC's name is unix:FOLDER/PEER, and PEER is
    returned.
    """
    return unquote(context.peer()).rpartition("/")[2]
