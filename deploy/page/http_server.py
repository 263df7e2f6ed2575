"""An HTTP server on one port that limits the number of connections and the time of each."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from deploy.processes.ports import LOOPBACK

CONNECTIONS = 64  # the most open connections; a further one closes the oldest
LONGEST = 20.0  # s; a connection is closed after this time, whatever it does
HEADER_BYTES = 16_384  # the most bytes of a request's head


class _ShortConnection(H11Protocol):
    """A connection that is closed after `longest` seconds (default: `LONGEST`), whatever it does."""

    longest: float | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = self.loop.time()
        self._limit = self.loop.call_later(self.longest or LONGEST, transport.abort)
        mine = [each for each in self.connections if isinstance(each, _ShortConnection)]
        excess = max(0, len(mine) - CONNECTIONS)
        for oldest in sorted(mine, key=lambda each: each._since)[:excess]:
            oldest.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._limit.cancel()
        super().connection_lost(error)


def listening(port: int, host: str = LOOPBACK) -> socket.socket:
    """Return a socket that listens on a port, for `serve`; 0 stands for a free port."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if found.family == socket.AF_INET6:  # an IPv6 address opens no port over IPv4
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        found.bind((host, port))
        found.listen(CONNECTIONS)
    except OSError:
        found.close()
        raise
    return found


def make_server(
    app: ASGIApp, *, longest: float | None = None, started: Callable[[], None] = lambda: None
) -> uvicorn.Server:
    """Return a server of an app. `started` is called when it answers. `longest` replaces `LONGEST`."""
    config = uvicorn.Config(
        app,
        http=type("Connection", (_ShortConnection,), {"longest": longest}),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,  # a line would hold the secret of a page
        server_header=False,
        proxy_headers=False,
        backlog=CONNECTIONS,
        timeout_keep_alive=2,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=HEADER_BYTES,
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

    return Server(config)


def serve(app: ASGIApp, listener: socket.socket, started: Callable[[], None]) -> None:
    """Serve an app on a socket (see `listening`) until SIGINT or SIGTERM."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(make_server(app, started=started).serve(sockets=[listener]))


def step_back() -> None:
    """Lower the priority of this process, so that the processes of the run go first."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)


def end_with_parent() -> None:
    """End this process when its standard input closes: then its parent has ended, perhaps by SIGKILL."""

    def watch() -> None:
        while sys.stdin.buffer.read(1024):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
