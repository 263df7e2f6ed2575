"""The server's side of TLS: all data passes, and records without data are limited."""

import asyncio
import contextlib
import hashlib
import hmac
import importlib
import random
import socket
import ssl
import struct
import threading

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from deploy.fleet.gate.settings_check import NotAllowedError
from deploy.fleet.gate.tls_records import EMPTY_RECORDS, RECORD, TlsPeer, limit_records
from deploy.processes.ports import LOOPBACK
from deploy.tls import certificates


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return certificates.write_certificates(tmp_path_factory.mktemp("pki")).ca.parent


def client_context(keys):
    return ssl.create_default_context(cafile=str(keys / "ca.crt"))


class Received:
    """What a server has received from a client on the other end of a pair of sockets.

    Parameters
    ----------
    keys : Path
        The folder with the server's certificate and key.
    """

    def __init__(self, keys):
        self.client, self._server = socket.socketpair()
        self.client.settimeout(30)
        self._server.setblocking(False)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.options |= ssl.OP_NO_RENEGOTIATION
        self._context.load_cert_chain(keys / "server.pem", keys / "server.key")
        self.data = b""
        self.error = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._receive()), daemon=True)
        self._thread.start()

    async def _receive(self):
        peer = TlsPeer(self._context, self._server, asyncio.get_running_loop())
        try:
            await peer.handshake()
            await peer.send(b"welcome")
            while data := await peer.receive(4 * RECORD):
                self.data += data
            await peer.send(b"the end")
        except (OSError, NotAllowedError) as error:
            self.error = error
        self._server.close()

    def wait(self):
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.client.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("most", [7, 5000, 100_000])
def test_all_data_arrives_however_the_records_are_cut(keys, version, most):
    server = Received(keys)
    context = client_context(keys)
    context.maximum_version = version
    cuts, incoming, outgoing = random.Random(most), ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=LOOPBACK)

    def send():
        data = outgoing.read()
        while data:
            size = cuts.randint(1, most)
            server.client.sendall(data[:size])
            data = data[size:]

    def read():
        while True:
            try:
                return tls.read(100)
            except ssl.SSLWantReadError:
                send()
                incoming.write(server.client.recv(65536))

    assert read() == b"welcome"
    sent = random.Random(0).randbytes(3 * RECORD + 100)
    for begin, end in ((0, 1), (1, 2), (2, 40_000), (40_000, len(sent))):
        tls.write(sent[begin:end])
        send()
    with pytest.raises(ssl.SSLWantReadError):
        tls.unwrap()
    send()
    assert read() == b"the end"
    server.wait()
    assert server.data == sent
    assert server.error is None


def test_a_peer_cannot_change_its_keys_without_end(keys, tmp_path):
    """A change of 27 bytes takes the server 30 us or more. OpenSSL allows any number of changes."""
    server = Received(keys)
    context = client_context(keys)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.keylog_filename = str(tmp_path / "secrets")
    with context.wrap_socket(server.client, server_hostname=LOOPBACK) as client:
        assert client.recv(100) == b"welcome"
        changes = _key_changes(_secret(client, tmp_path / "secrets"), EMPTY_RECORDS + 1)
        raw = socket.socket(fileno=client.detach())
    with raw:
        raw.sendall(changes)
        server.wait()
    assert isinstance(server.error, NotAllowedError)
    assert str(server.error) == "too many records of TLS without data"


def _secret(client, log):
    """Return the secret of the first keys of the newest client, which OpenSSL has written into a file."""
    assert client.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
    lines = [each for each in log.read_text().splitlines() if each.startswith("CLIENT_TRAFFIC_SECRET_0")]
    return bytes.fromhex(lines[-1].split()[2])


def _key_changes(secret, count):
    """Return records that each announce a change of the keys (RFC 8446, sections 4.6.3 and 7.2)."""

    def derive(label, length):
        label = b"tls13 " + label
        text = struct.pack("!HB", length, len(label)) + label + b"\0\1"
        return hmac.digest(secret, text, hashlib.sha384)[:length]

    records = b""
    for _ in range(count):
        content = b"\x18\0\0\1\0\x16"  # the message KeyUpdate, and the kind of a handshake's message
        head = b"\x17\3\3" + struct.pack("!H", len(content) + 16)
        records += head + AESGCM(derive(b"key", 32)).encrypt(derive(b"iv", 12), content, head)
        secret = derive(b"traffic upd", 48)
    return records


def test_a_peer_cannot_begin_a_handshake_with_much_or_in_many_pieces(keys):
    hello = b"\1" + struct.pack("!I", 131_000)[1:] + b"\3\3" + bytes(131_000)
    for size, sent in ((RECORD, 2 * RECORD), (1, EMPTY_RECORDS + 1)):
        server = Received(keys)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server has had enough
            for begin in range(0, sent, size):
                server.client.sendall(b"\x16\3\1" + struct.pack("!H", size) + hello[begin : begin + size])
        server.wait()
        assert str(server.error) == "too many records of TLS without data"


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"\x16\x02\x00\x00\x01", b"\x16\x03\x01\xff\xff"])
def test_another_protocol_is_refused(keys, data):
    server = Received(keys)
    server.client.sendall(data)
    server.wait()
    assert str(server.error) == "the peer does not speak TLS"


class Echo:
    """A server whose TLS an event loop performs, with limited records. It answers each line.

    Parameters
    ----------
    keys : Path
        The folder with the server's certificate and key.
    loop : Callable
        Makes the event loop.
    """

    def __init__(self, keys, loop):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys / "server.pem", keys / "server.key")
        limit_records(context)
        self._loop = loop()
        start = asyncio.start_server(self._answer, LOOPBACK, 0, ssl=context, limit=1 << 20)
        self._server = self._loop.run_until_complete(start)
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    async def _answer(self, reader, writer):
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                writer.write(line)
                await writer.drain()
        writer.close()

    def connect(self, context):
        raw = socket.create_connection((LOOPBACK, self.port), 30)
        return context.wrap_socket(raw, server_hostname=LOOPBACK)

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


def loops():
    """Return the event loops that uvicorn may use."""
    found = [pytest.param(asyncio.new_event_loop, id="asyncio")]
    with contextlib.suppress(ModuleNotFoundError):
        found.append(pytest.param(importlib.import_module("uvloop").new_event_loop, id="uvloop"))
    return found


@pytest.fixture(params=loops())
def echo(keys, request):
    server = Echo(keys, request.param)
    yield server
    server.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_with_limited_records_receives_all_data(echo, keys, version):
    context = client_context(keys)
    context.maximum_version = context.minimum_version = version
    sent = random.Random(0).randbytes(30 * RECORD).replace(b"\n", b"") + b"\n"
    with echo.connect(context) as client:
        for data in (sent, b"\n", b"x" * 7 + b"\n", *[b"y\n"] * 2 * EMPTY_RECORDS):
            client.sendall(data)
            received = b""
            while not received.endswith(b"\n"):
                received += client.recv(65536)
            assert received == data
        assert client.unwrap().recv(1) == b""


def test_a_server_with_limited_records_closes_a_peer_that_changes_its_keys_without_end(echo, keys, tmp_path):
    context = client_context(keys)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.keylog_filename = str(tmp_path / "secrets")
    for count, alive in ((EMPTY_RECORDS - 10, True), (EMPTY_RECORDS + 1, False)):
        client = echo.connect(context)
        changes = _key_changes(_secret(client, tmp_path / "secrets"), count)
        with socket.socket(fileno=client.detach()) as raw:
            raw.settimeout(0.2 if alive else 30.0)
            raw.sendall(changes)
            assert is_open(raw) == alive
    with socket.create_connection((LOOPBACK, echo.port), 30) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert not is_open(raw)
    with echo.connect(client_context(keys)) as client:
        client.sendall(b"the others\n")
        assert client.recv(100) == b"the others\n"


def is_open(raw):
    """Whether the other side leaves a connection open until the time of the socket is over."""
    try:
        while raw.recv(65536):
            pass
    except TimeoutError:
        return True
    except OSError:
        pass
    return False
