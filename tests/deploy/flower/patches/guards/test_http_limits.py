"""What another user of the machine does to the HTTP API of a real SuperLink, without the secret."""

import asyncio
import socket
import ssl
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from deploy.fleet.admission.refusal_log import LINES
from deploy.flower.patches.guards import http_limits, local_apis
from deploy.processes.groups import wait_until
from deploy.processes.ports import LOOPBACK
from tests.support.tls import is_closed

pytestmark = pytest.mark.network
BEGIN = b"GET / HTTP/1.1\r\nHost: x\r\n"


def connect(superlink):
    context = ssl.create_default_context(cafile=str(superlink.authority))
    raw = socket.create_connection((LOOPBACK, superlink.control), 30)
    return context.wrap_socket(raw, server_hostname=LOOPBACK)


def answered(client):
    """Whether the API answers a request for an unknown page."""
    received = b""
    while part := client.recv(65536):
        received += part
        if received.endswith(b'{"detail":"Not Found"}'):
            return received.startswith(b"HTTP/1.1 404")
    return False


@pytest.fixture
def clients(superlink):
    """Return a function that makes connections, which are closed after the test."""
    made = []

    def more(count):
        made.extend(connect(superlink) for _ in range(count))
        return made[-count:]

    yield more
    for each in made:
        each.close()


@pytest.mark.parametrize("part", [b"a:b\r\n" * 3000, b"x" * 16_000], ids=["headers", "one header"])
@pytest.mark.parametrize(
    "begin",
    [BEGIN, b"GET /", BEGIN + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"],
    ids=["headers", "url", "trailers"],
)
def test_a_head_without_end_takes_little_memory(superlink, clients, begin, part):
    """Without a limit, 20 MB of headers took 350 MB."""
    superlink.forget_peak()
    before = superlink.memory
    (client,) = clients(1)
    sent = 0
    with suppress(OSError):
        client.sendall(begin)
        for _ in range(1000):
            client.sendall(part)
            sent += len(part)
    assert is_closed(client, 5)
    assert superlink.peak - before < 30
    assert sent < 15_000_000


def test_many_requests_at_once_take_little_memory(superlink, clients):
    """Without a limit, 16 connections with 256 kB each took 215 MB and 3 s."""
    superlink.forget_peak()
    before = superlink.memory
    for client in clients(16):
        with suppress(OSError):
            client.sendall(b"GET / HTTP/1.1\r\n\r\n" * 13_000)
        assert is_closed(client, 10)
    assert superlink.peak - before < 30
    (client,) = clients(1)
    for _ in range(3):  # one after another
        client.sendall(BEGIN + b"\r\n")
        assert answered(client)


def test_the_api_limits_records_without_data(monkeypatch):
    limited = []
    monkeypatch.setattr(http_limits, "limit_records", limited.append)

    class Loop(asyncio.SelectorEventLoop):
        async def create_server(self, *_, **settings):
            return settings["ssl_handshake_timeout"]

    loop = http_limits.with_limited_tls(Loop)()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert loop.run_until_complete(loop.create_server(ssl=context)) == http_limits.HANDSHAKE
    loop.close()
    assert limited == [context]


class Transport:
    """The connection of a peer."""

    closed = False

    def abort(self):
        self.closed = True


def test_strangers_beyond_a_limit_are_closed_the_oldest_first(monkeypatch):
    monkeypatch.setattr(http_limits, "STRANGERS", 3)
    strangers, connections = http_limits.Strangers(), [Transport() for _ in range(6)]
    for port, each in enumerate(connections):
        strangers.add((LOOPBACK, port), each)
        if port == 0:
            strangers.remove((LOOPBACK, port))  # a request of a known sender has come
    assert [each.closed for each in connections] == [False, True, True, False, False, False]
    strangers.close((LOOPBACK, 0))  # its time is over
    strangers.close((LOOPBACK, 3))
    assert [each.closed for each in connections] == [False, True, True, True, False, False]


def test_a_sender_is_known_by_the_secret_or_by_an_accepted_signature(monkeypatch):
    removed = []
    monkeypatch.setattr(http_limits.strangers, "remove", removed.append)

    def ask(path, status, *, secret, **headers):
        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": status})

        async def send(message):
            pass

        plugin = SimpleNamespace(validate_tokens_in_metadata=lambda _: (secret, None))
        state = SimpleNamespace(account_access_dep=SimpleNamespace(authn_plugin=plugin))
        encoded = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "path": path, "headers": encoded, "client": (LOOPBACK, 7)}
        api = SimpleNamespace(state=state)
        removed.clear()
        asyncio.run(local_apis.Guard(app, api)(scope, None, send))
        return list(removed)

    known = [(LOOPBACK, 7)]
    assert ask("/v1/control/list-nodes", 500, secret=True, authorization="Bearer x") == known
    assert ask("/v1/control/list-nodes", 200, secret=False, authorization="Bearer x") == []
    assert ask("/v1/runtime/acquire-task", 200, secret=False, content_length="7") == known
    assert ask("/v1/runtime/acquire-task", 401, secret=False, content_length="7") == []
    assert ask("/health", 200, secret=False, content_length="0") == []


@pytest.mark.slow
def test_a_connection_without_a_request_of_a_known_sender_is_closed(clients):
    idle, slow = clients(2)
    slow.sendall(BEGIN + b"Content-Length: 100\r\n")
    began = time.monotonic()
    assert is_closed(idle, http_limits.FIRST_REQUEST + 5)
    assert time.monotonic() - began > http_limits.FIRST_REQUEST - 5
    assert is_closed(slow, 5)


def test_a_connection_without_a_handshake_is_closed(superlink):
    with socket.create_connection((LOOPBACK, superlink.control), 30) as raw:
        assert is_closed(raw, http_limits.HANDSHAKE + 5)


def test_requests_of_strangers_write_few_short_lines(superlink, clients):
    before = len(superlink.log)
    (client,) = clients(1)
    request = b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    for _ in range(LINES + 300):
        client.sendall(request)
        assert answered(client)
    assert wait_until(lambda: superlink.log[before:].count("GET /xxx") >= LINES - 100, 10)
    added = superlink.log[before:]
    assert added.count("GET /xxx") <= LINES
    assert max(map(len, added.splitlines())) < 2200
