"""The server's side of TLS: it decrypts one record at a time, and limits the records without data.

Some records of TLS hold no data of the application: a part of the handshake, a change of the keys (KeyUpdate
in TLS 1.3), an attempt to negotiate again (TLS 1.2), or a warning. A call of OpenSSL does not return while
such records arrive, and each change of the keys takes 30 us or more. When OpenSSL read the socket itself, a
stranger stopped the gate with 0.4 MB of such records a second.

`TlsPeer` is for the gate. `limit_records` is for servers of asyncio and uvloop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

from deploy.fleet.gate.settings_check import NotAllowedError

RECORD = 16 * 1024  # the most bytes of data in a record (RFC 8446, section 5.1)
# The most records without data in the life of a connection, and their most bytes. A handshake has up to six;
# gRPC's TLS does not change the keys, and allows its peers 32 changes.
EMPTY_RECORDS, EMPTY_BYTES = 48, 16 * 1024
_HEAD = 5  # bytes before a record's content: its kind (1), the version (2) and the content's length (2)
_KINDS = range(20, 24)
_LONGEST = RECORD + 2048  # the most bytes of a record's content in TLS 1.2


class TlsRefusedError(NotAllowedError, ssl.SSLError):
    """A peer sends too many records without data."""

    def __str__(self) -> str:
        return str(self.args[0])


class NoTlsError(TlsRefusedError):
    """A peer does not speak TLS. `received` is what it has sent."""

    def __init__(self, received: bytes) -> None:
        super().__init__("the peer does not speak TLS")
        self.received = received


class TlsPeer:
    """A TLS peer of this server, over a socket that must not block. One task may receive while another sends.

    Its methods raise OSError if the connection breaks, the peer hangs up or a record is not valid, and
    NotAllowedError if the peer does not speak TLS or sends too many records without data.
    """

    def __init__(self, context: ssl.SSLContext, raw: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._raw, self._loop = raw, loop
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        limit_records(context)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._ended = False  # whether the peer has announced the end of its data

    async def handshake(self) -> str | None:
        """Perform the handshake. Return the protocol that both sides speak (ALPN), or None."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill(RECORD):
                    raise ConnectionResetError from None
            except NotAllowedError:
                raise
            except ssl.SSLError:
                with contextlib.suppress(OSError):  # tell the peer why, unless the socket would block
                    self._raw.send(self._outgoing.read())
                raise
            else:
                await self._flush()
                return self._tls.selected_alpn_protocol()

    async def receive(self, most: int) -> bytes:
        """Return the next data, or b"" if the peer has sent all its data or has hung up.

        An answer to a change of the keys stays in `_outgoing` until the next data is sent.

        `most`: the most bytes to return, and to read from the socket: a multiple of `RECORD`. Each record
        counts as `RECORD` bytes.
        """
        parts: list[bytes] = []
        while len(parts) < most // RECORD and not self._ended:
            try:
                data = self._tls.read(RECORD)
            except ssl.SSLWantReadError:
                if parts or not await self._fill(most):
                    break
            else:
                self._ended = not data
                parts.append(data)
        return b"".join(parts)

    async def send(self, data: bytes) -> None:
        """Send data."""
        parts = []
        for begin in range(0, len(data), RECORD):  # so that `_outgoing` never holds more than a record
            self._tls.write(data[begin : begin + RECORD])
            parts.append(self._outgoing.read())
        await self._loop.sock_sendall(self._raw, b"".join(parts))

    async def _flush(self) -> None:
        if data := self._outgoing.read():
            await self._loop.sock_sendall(self._raw, data)

    async def _fill(self, most: int) -> bool:
        """Receive at most `most` bytes. Return False if the peer sends no more."""
        data = await self._loop.sock_recv(self._raw, most)
        self._incoming.write(data)
        return bool(data)


def limit_records(context: ssl.SSLContext) -> None:
    """Let asyncio or uvloop end connections with this context after too many records without data."""
    context.sslobject_class = _OneRecordAtATime


class _OneRecordAtATime(ssl.SSLObject):
    """A TLS connection that passes the received records to OpenSSL one at a time."""

    _received: ssl.MemoryBIO  # into this buffer, the event loop writes what it receives
    _record: ssl.MemoryBIO  # from this buffer, OpenSSL reads
    _head = b""  # the head, or its beginning, of a record that has not arrived completely
    _empty_records = _empty_bytes = 0

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **settings: Any) -> _OneRecordAtATime:
        record = ssl.MemoryBIO()
        made: _OneRecordAtATime = super()._create(record, outgoing, **settings)  # type: ignore[misc]
        made._received, made._record = incoming, record
        return made

    def read(self, *arguments: Any) -> Any:
        return self._call(super().read, *arguments)

    def do_handshake(self) -> None:
        self._call(super().do_handshake)

    def unwrap(self) -> None:
        self._call(super().unwrap)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of OpenSSL, and give OpenSSL a record each time it wants more.

        If OpenSSL wants more after a record, the record had no data.

        Raises ssl.SSLError if the function raises it, if the peer does not speak TLS, or if the peer sends
        too many records without data.
        """
        given = 0  # the bytes of the last record that was given to OpenSSL
        while True:
            try:
                return function(*arguments)
            except ssl.SSLWantReadError:
                self._empty_records += given > 0
                self._empty_bytes += given
                if self._empty_records > EMPTY_RECORDS or self._empty_bytes > EMPTY_BYTES:
                    raise TlsRefusedError("too many records of TLS without data") from None
                given = self._give()
                if not given:
                    raise

    def _give(self) -> int:
        """Give OpenSSL the next record, and return how many bytes it has; 0 if its end has not arrived."""
        self._head += self._received.read(_HEAD - len(self._head)) if len(self._head) < _HEAD else b""
        if len(self._head) < _HEAD:
            return 0
        length = _content_length(self._head)
        if length is None:
            raise NoTlsError(self._head + self._received.read())
        if self._received.pending < length:
            return 0
        self._record.write(self._head + self._received.read(length))
        self._head = b""
        return _HEAD + length


def _content_length(head: bytes | bytearray) -> int | None:
    """Return the length of a record's content, from the record's head; None if this is no head of TLS."""
    length = int.from_bytes(head[3:_HEAD])
    return length if head[0] in _KINDS and head[1] == 3 and length <= _LONGEST else None
