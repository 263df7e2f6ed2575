"""Limits the connections to the HTTP APIs of a SuperLink and of a SuperNode.

Every user of the machine can connect to these APIs. uvicorn, the HTTP server of Flower, limits none of these:

- the number of connections, and the time for which a connection may exist without a request;
- the head of a request (its method, URL and headers). An incomplete head stays in memory;
- the number of requests that are sent at once. 256 kB of requests take 13 MB of memory;
- the number of times that a peer may change the keys of TLS in one step of the event loop (`tls_records`).

A stranger is a connection over which no request of a known sender has come (`local_apis.Guard`).
"""

import importlib
from collections.abc import Callable
from typing import Any

from deploy.fleet.admission.refusal_log import limit_uvicorn
from deploy.fleet.gate.tls_records import limit_records
from deploy.flower.patches.shared import replace

Address = tuple[str, int]

HEAD = 64 * 1024  # the most bytes of a request's head; the last read from the socket may exceed the limit
# The most connections of strangers. If there are more, the oldest are closed. All strangers are on this
# machine, so they count together.
STRANGERS = 256
# The most requests of a connection that wait for the end of an answer. A client that has the whole answer may
# send its next request before uvicorn has noted the end.
AHEAD = 4
FIRST_REQUEST = 15.0  # s after which a connection is closed if it brought no request of a known sender
HANDSHAKE = 5.0  # s that the handshake of TLS may take; uvicorn allows 60

_PROTOCOL, _LOOP = "uvicorn.protocols.http.auto", "uvicorn.loops.auto"


class Strangers:
    """The connections over which no request of a known sender has come, by address, the oldest first."""

    def __init__(self) -> None:
        self._connections: dict[Address, Any] = {}

    def add(self, address: Address, transport: Any) -> None:
        """Note a new connection, and close the oldest one if there are too many."""
        self._connections[address] = transport
        if len(self._connections) > STRANGERS:
            self.close(next(iter(self._connections)))

    def remove(self, address: Address | None) -> None:
        """Note that a connection has ended, or has brought a request of a known sender."""
        if address is not None:
            self._connections.pop(address, None)

    def __contains__(self, address: Address) -> bool:
        return address in self._connections

    def close(self, address: Address) -> None:
        """Close a connection, if it still is a stranger's."""
        if (transport := self._connections.pop(address, None)) is not None:
            transport.abort()


strangers = Strangers()


def limit() -> None:
    """Let uvicorn limit connections, and the lines that they cause in the log."""
    protocol = importlib.import_module(_PROTOCOL).AutoHTTPProtocol
    replace(_PROTOCOL, AutoHTTPProtocol=limited(protocol))
    make = importlib.import_module(_LOOP).auto_loop_factory
    replace(_LOOP, auto_loop_factory=lambda **settings: with_limited_tls(make(**settings)))
    limit_uvicorn()


def limited(protocol: Any) -> Any:
    """Return a subclass of uvicorn's protocol that has the limits of this module."""

    class Limited(protocol):  # type: ignore[misc]
        _head: int | None = 0  # bytes of the head that is being received; None while there is no head

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._address = (transport.get_extra_info("peername") or ("", 0))[:2]  # the peer may have hung up
            strangers.add(self._address, transport)
            self._deadline = self.loop.call_later(FIRST_REQUEST, strangers.close, self._address)

        def connection_lost(self, exc: Exception | None) -> None:
            self._deadline.cancel()
            strangers.remove(self._address)
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            if len(self.pipeline) >= AHEAD:
                raise ValueError("too many requests before an answer")  # the connection is closed
            self._head = 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._head = None
            # After a body in chunks, further headers may follow. uvicorn keeps these without a limit, too.
            if self._address in strangers and any(name == b"transfer-encoding" for name, _ in self.headers):
                self._head = HEAD
                raise ValueError("a body in chunks of a stranger")
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._head is not None:
                self._head += len(data)
                if self._head > HEAD:
                    self.transport.abort()

    return Limited


def with_limited_tls(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that makes an event loop as `make` does, but with limited TLS.

    Servers of this loop end slow handshakes, and connections with many records of TLS without data.
    """

    def made() -> Any:
        loop = make()
        kind = type(loop)
        loop.close()

        class Loop(kind):  # type: ignore[valid-type, misc]
            async def create_server(self, *arguments: Any, **settings: Any) -> Any:
                if context := settings.get("ssl"):
                    settings.setdefault("ssl_handshake_timeout", HANDSHAKE)
                    limit_records(context)
                return await super().create_server(*arguments, **settings)

        return Loop()

    return made
