"""The HTTP endpoint of the metrics. Neither slow connections nor many connections can block it.

`/metrics` answers with the metrics. `/healthz` answers with 200 while the metrics are collected, `/readyz`
while the server is also ready for devices and runs; both answer with 503 and the reason otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

from deploy.metrics.collector import Collector
from deploy.metrics.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.metrics.collector import Sources

PORT = 9464  # the usual port of Prometheus exporters that belong to an application
MOST = 64  # the most open connections; a further one closes the oldest
PATIENCE = 5.0  # s that a connection may last
LARGEST = 8192  # the most bytes of a request
PLAIN = "text/plain; charset=utf-8"


def parse_address(text: str) -> tuple[str, int]:
    """Read "PORT", "HOST:PORT" or "[IPV6]:PORT"; without a host, only this machine can connect.

    Raises ValueError if the text is none of these.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"metrics = {text!r}: must be PORT or HOST:PORT, for example 127.0.0.1:{PORT}")
    return host, int(port)


def url(address: str) -> str:
    """Return the URL of the metrics at an address, which is as in `parse_address`."""
    host, port = parse_address(address)
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"


def check_address(address: str) -> None:
    """Check that a server could listen at an address.

    Raises ValueError if the address is invalid (see `parse_address`) or cannot be bound.
    """
    _listening(address).close()


def _listening(address: str) -> socket.socket:
    host, port = parse_address(address)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=MOST)
    except OSError as error:
        raise ValueError(
            f"metrics = {address}: cannot listen there: {error.strerror or error}; choose another address, "
            "or off"
        ) from None


@contextlib.contextmanager
def serving(address: str, sources: Sources) -> Iterator[None]:
    """Offer metrics inside a `with` block.

    Raises ValueError when the block is entered, if the address is invalid or cannot be bound.
    """
    collector = Collector(sources)
    endpoint = Endpoint(collector, address)  # bound before anything starts
    with collector, endpoint:
        yield


class Endpoint:
    """Answers requests inside a `with` block.

    `address`: the address to listen on, as in `parse_address`. It is bound at once.

    Raises ValueError if the address is invalid or cannot be bound.
    """

    def __init__(self, collector: Collector, address: str) -> None:
        self._collector = collector
        self._socket = _listening(address)
        self._loop = asyncio.new_event_loop()
        self._open: dict[asyncio.StreamWriter, None] = {}  # the connections, the oldest first
        self._thread = threading.Thread(target=self._serve, name="metrics endpoint", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)
        self._socket.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._connected, sock=self._socket, limit=LARGEST)
        )
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > MOST:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(PATIENCE):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(request))
                await writer.drain()
                writer.write_eof()
                await reader.read(1)  # wait for the other side to close, so that the whole answer arrives
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # too slow, too long or gone
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            status, kind, text = HTTPStatus.METHOD_NOT_ALLOWED, PLAIN, "only GET\n"
        else:
            status, kind, text = self._page(path)
        body = text.encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\r\n"
        )
        return head.encode() + (b"" if method == b"HEAD" else body)

    def _page(self, path: bytes) -> tuple[HTTPStatus, str, str]:
        """Return the status, the content type and the text of a page."""
        collector = self._collector
        if path == b"/metrics":
            return HTTPStatus.OK, CONTENT_TYPE, collector.text()
        if path not in (b"/healthz", b"/readyz"):
            return HTTPStatus.NOT_FOUND, PLAIN, "try /metrics, /healthz or /readyz\n"
        problem = "" if collector.is_alive() else "the metrics are no longer collected"
        if path == b"/readyz":
            problem = problem or collector.problem()
        return (
            (HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, f"{problem}\n")
            if problem
            else (HTTPStatus.OK, PLAIN, "ok\n")
        )
