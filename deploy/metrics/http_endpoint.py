"""The HTTP endpoint of the metrics. Neither slow connections nor many connections can block it.

`/metrics` answers with the metrics. `/healthz` answers with 200 while the metrics are collected, `/readyz`
while the server is also ready for devices and runs; both answer with 503 and the reason otherwise.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Self

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deploy.metrics.collector import Collector, Sources
from deploy.metrics.exposition import CONTENT_TYPE
from deploy.page.http_server import listening, make_server

PORT = 9464  # the usual port of Prometheus exporters that belong to an application
PATIENCE = 5.0  # s that a connection may last
PLAIN = "text/plain; charset=utf-8"
HEADERS = {"connection": "close", "cache-control": "no-store", "x-content-type-options": "nosniff"}


def parse_address(text: str) -> tuple[str, int]:
    """Read "PORT", "HOST:PORT" or "[IPV6]:PORT"; without a host, only this machine can connect."""
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
    """Check that a server could listen at an address."""
    _listening(address).close()


def _listening(address: str) -> socket.socket:
    host, port = parse_address(address)
    try:
        return listening(port, host)
    except OSError as error:
        raise ValueError(
            f"metrics = {address}: cannot listen there: {error.strerror or error}; choose another address, "
            "or off"
        ) from None


@contextlib.contextmanager
def serving(address: str, sources: Sources) -> Iterator[None]:
    """Offer metrics inside a `with` block."""
    collector = Collector(sources)
    endpoint = Endpoint(collector, address)  # bound before anything starts
    with collector, endpoint:
        yield


class Endpoint:
    """Answers requests inside a `with` block. `address`, as in `parse_address`, is bound at once."""

    def __init__(self, collector: Collector, address: str) -> None:
        self._collector = collector
        self._socket = _listening(address)
        self._server = make_server(self._answer, longest=PATIENCE)
        self._thread = threading.Thread(target=self._serve, name="metrics endpoint", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)
        self._socket.close()

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] in ("GET", "HEAD"):
            status, kind, text = self._page(scope["path"])
        else:
            status, kind, text = 405, PLAIN, "only GET\n"
        response = Response(text, status, HEADERS | {"content-type": kind})
        await response(scope, receive, send)

    def _page(self, path: str) -> tuple[int, str, str]:
        """Return the status, the content type and the text of a page."""
        collector = self._collector
        if path == "/metrics":
            return 200, CONTENT_TYPE, collector.text()
        if path not in ("/healthz", "/readyz"):
            return 404, PLAIN, "try /metrics, /healthz or /readyz\n"
        problem = "" if collector.is_alive() else "the metrics are no longer collected"
        if path == "/readyz":
            problem = problem or collector.problem()
        return (503, PLAIN, f"{problem}\n") if problem else (200, PLAIN, "ok\n")
