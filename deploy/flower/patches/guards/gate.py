"""The gate of the Fleet API: it forwards connections to gRPC, but only few bytes of strangers.

gRPC expands the headers of a request before any Python code sees the request. In HTTP/2, one byte can stand
for a header that was sent before, and gRPC takes up to 150 bytes of memory for each such byte. gRPC's own
limit of headers (16 kB) holds only for peers that confirm this limit. So 400 kB of a stranger took 60 MB of
memory, and gRPC has no option that prevents this.

gRPC therefore listens on a Unix socket in a folder that only this user may enter, and the gate listens on the
port. The gate does not decrypt anything: it limits the bytes of strangers, by `EACH`, `OF_ADDRESS` and `ALL`.
A stranger is a peer that has not yet sent a request with a registered key.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter, defaultdict
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

# The most bytes of a stranger's connection that are forwarded. An honest device's key is checked after 2 kB
# for TLS and the record of its first request. The record has up to 16 kB, as it also holds part of the body.
EACH = 24 * 1024
# The most bytes of all strangers at one address that gRPC may hold; further bytes wait. So 128 devices behind
# one address may connect at the same moment.
OF_ADDRESS = 512 * 1024
ALL = 1024 * 1024  # the same for all addresses
# The bytes that are reserved for a connection when its first byte is forwarded. An honest device's key is
# checked after 2.4 kB, unless its first request is large.
FIRST = 4 * 1024
# While bytes wait for room, a stranger's connection that takes this room is closed `OLD` seconds after its
# first byte was forwarded. If the connection brought more than `FIRST`, a quarter of this time is allowed.
OLD = 2.0
WAIT = 15.0  # s for which bytes may wait; after that, their connection is closed
INTERVAL = 0.05  # s between two checks whether there is room for bytes that wait
MAPPED = 128 * 1024  # freed blocks of memory of at least this many bytes go back to the system
CHUNK = 256 * 1024  # the most bytes that are read at a time
BACKLOG = 1024  # connections that the kernel accepts before this process does
LONGEST_NAME = 100  # characters of a Unix socket's name; macOS allows 103, Linux 107
_PEER = "ipv6:[" + ":".join(["ffff"] * 8) + "%interface]:65535"  # the longest name of a peer
_M_MMAP_THRESHOLD = -3  # in <malloc.h>
_EVERYWHERE = ("", "0.0.0.0", "::", "[::]")


class Gate:
    """Forwards connections from a port to a Unix socket.

    gRPC's name of a forwarded connection ends with the name of the peer (`connections.sender`).

    Parameters
    ----------
    address : str
        The host and port to listen on, such as 0.0.0.0:9092. With port 0, the system chooses a port.

    Attributes
    ----------
    port : int
        The port.
    behind : str
        gRPC's name of the Unix socket on which the server must listen.

    Raises
    ------
    OSError
        If the port is taken, or no Unix socket can be made.
    """

    def __init__(self, address: str) -> None:
        _return_memory()
        self._listening = _listen(address)
        self.port = self._listening[0].getsockname()[1]
        self._folder = _private_folder()
        self.behind = f"unix:{self._folder}/fleet"
        self._strangers: dict[str, _Stranger] = {}  # by the name of the peer
        self._held: Counter[str] = Counter()  # the bytes of strangers that gRPC may hold, by address
        # The strangers whose bytes wait, by their address and whether they have brought nothing yet.
        self._queues: defaultdict[tuple[str, bool], list[_Stranger]] = defaultdict(list)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start to forward connections, in a thread of its own. The server must already listen."""
        threading.Thread(target=self._run, name="gate", daemon=True).start()

    def admit(self, peer: str) -> None:
        """Note that a peer sent a request with a registered key. `peer` is its name, see `sender`."""
        if peer in self._strangers:
            self._loop.call_soon_threadsafe(self._admit, peer)

    def _admit(self, peer: str) -> None:
        if stranger := self._strangers.pop(peer, None):
            self._release(stranger)
            stranger.admitted.set()

    def _release(self, stranger: _Stranger) -> None:
        self._held[stranger.address] -= stranger.held
        if not self._held[stranger.address]:
            del self._held[stranger.address]
        stranger.held = 0

    def _run(self) -> None:
        for each in self._listening:
            self._keep(self._accept(each))
        self._keep(self._close_old())
        self._loop.run_forever()

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop itself would let it be collected as garbage
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                outside, address = await self._loop.sock_accept(listening)
            except OSError as error:  # there is no free descriptor, or the peer has hung up already
                getLogger("flwr").warning("A connection could not be accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            kind, host = ("ipv6", f"[{address[0]}]") if ":" in address[0] else ("ipv4", address[0])
            stranger = _Stranger(address[0])
            peer = f"{kind}:{host}:{address[1]}"
            self._strangers[peer] = stranger
            stranger.task = self._keep(self._serve(outside, peer, stranger))

    async def _serve(self, outside: socket.socket, peer: str, stranger: _Stranger) -> None:
        """Forward a connection in both directions until one side ends it, and close it."""
        try:
            with contextlib.suppress(OSError), outside, socket.socket(socket.AF_UNIX) as inside:
                await self._forward(outside, inside, peer, stranger)
        finally:
            if self._strangers.get(peer) is stranger:
                del self._strangers[peer]
                self._release(stranger)

    async def _forward(
        self, outside: socket.socket, inside: socket.socket, peer: str, stranger: _Stranger
    ) -> None:
        down = None
        try:
            outside.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data = await self._read(outside, stranger)
            if data:  # a peer that sends nothing gets no connection to gRPC
                await self._connect(inside, peer)
                down = self._keep(self._return(inside, outside, stranger))
            while data:
                await self._loop.sock_sendall(inside, data)
                data = await self._read(outside, stranger)
        except (OSError, asyncio.CancelledError):  # one side has hung up, or the gate closes the connection
            pass
        stranger.closing = True
        if down is not None:
            down.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await down
        if stranger.held:
            outside.close()
            await self._ended(inside)

    async def _read(self, outside: socket.socket, stranger: _Stranger) -> bytes:
        """Return the next bytes of a peer, as soon as they may be forwarded.

        Returns b"" if the peer has hung up, or if its bytes have waited for `WAIT` seconds.
        """
        try:
            if not stranger.admitted.is_set() and stranger.brought >= EACH:
                await asyncio.wait_for(stranger.admitted.wait(), WAIT)
            if stranger.admitted.is_set():
                return await self._loop.sock_recv(outside, CHUNK)
            data = await self._loop.sock_recv(outside, EACH - stranger.brought)
            if not stranger.admitted.is_set():
                await asyncio.wait_for(self._room(stranger, len(data)), WAIT)
        except TimeoutError:
            return b""
        return data

    async def _room(self, stranger: _Stranger, size: int) -> None:
        """Wait until some bytes of a stranger may be forwarded, and count them."""
        wanted = max(stranger.brought + size, FIRST) - stranger.held
        if wanted > 0:
            which = stranger.address, not stranger.held
            queue = self._queues[which]
            queue.append(stranger)
            try:
                while not stranger.admitted.is_set() and not self._is_next(stranger, wanted):
                    await asyncio.sleep(INTERVAL)
            finally:
                queue.remove(stranger)
                if not queue:
                    del self._queues[which]
        if not stranger.admitted.is_set():
            stranger.began = stranger.began or time.monotonic()
            stranger.brought += size
            stranger.held += max(wanted, 0)
            self._held[stranger.address] += max(wanted, 0)

    def _is_next(self, stranger: _Stranger, wanted: int) -> bool:
        """Whether a stranger is next and has room. Strangers that have brought nothing come first."""
        first = self._queues.get((stranger.address, True)) or self._queues[stranger.address, False]
        return first[0] is stranger and not self._is_full(stranger.address, wanted)

    def _is_full(self, address: str, wanted: int) -> bool:
        return self._held[address] + wanted > OF_ADDRESS or self._held.total() + wanted > ALL

    async def _close_old(self) -> None:
        """Close old connections (see `OLD`) that take the room for which the bytes of others wait."""
        while True:
            await asyncio.sleep(INTERVAL)
            if not self._queues:
                continue
            full = {address for address in self._held if self._is_full(address, EACH)}
            now = time.monotonic()
            for each in self._strangers.values():
                age = now - each.began if each.held else 0
                old = age > (OLD / 4 if each.held > FIRST else OLD)
                if old and each.address in full and each.task is not None and not each.closing:
                    each.closing = True
                    each.task.cancel()

    async def _ended(self, inside: socket.socket) -> None:
        """End a connection to gRPC, and wait until gRPC has freed its memory."""
        with contextlib.suppress(OSError, TimeoutError):
            inside.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(WAIT):
                while await self._loop.sock_recv(inside, CHUNK):
                    pass

    async def _return(self, inside: socket.socket, outside: socket.socket, stranger: _Stranger) -> None:
        with contextlib.suppress(OSError):
            while data := await self._loop.sock_recv(inside, CHUNK):
                await self._loop.sock_sendall(outside, data)
        if stranger.task is not None and not stranger.closing:
            stranger.closing = True
            stranger.task.cancel()

    async def _connect(self, inside: socket.socket, peer: str) -> None:
        inside.setblocking(False)
        name = self._folder / peer
        inside.bind(str(name))
        try:
            await self._loop.sock_connect(inside, self.behind.removeprefix("unix:"))
        finally:
            name.unlink()  # the socket keeps its name


class _Stranger:
    """A connection whose peer has not shown a registered key.

    Parameters
    ----------
    address : str
        The address of the peer.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.brought = 0  # the bytes that were forwarded
        self.held = 0  # the bytes that count as held by gRPC: `brought`, but at least `FIRST`
        self.began = 0.0  # when the first byte was forwarded (time.monotonic())
        self.closing = False
        self.admitted = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


def _return_memory() -> None:
    """Let glibc return large blocks of memory to the system as soon as they are free.

    By default, glibc keeps freed blocks of up to 32 MB once it has seen blocks of this size, and later blocks
    do not fit into them. Other systems have no such setting.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED)


def _listen(address: str) -> list[socket.socket]:
    """Return sockets that listen on an address, as gRPC would: 0.0.0.0 and [::] are all addresses."""
    host, _, port = address.rpartition(":")
    if host in _EVERYWHERE and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a container may have no IPv6
            return [_open("::", int(port), socket.AF_INET6, both=True)]
    found: list[socket.socket] = []
    host = "0.0.0.0" if host in _EVERYWHERE else host.strip("[]")
    for family, *_, where in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM):
        number = found[0].getsockname()[1] if found else int(port)
        found.append(_open(str(where[0]), number, family))
    return found


def _open(host: str, port: int, family: int, *, both: bool = False) -> socket.socket:
    opened = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    opened.setblocking(False)
    return opened


def _private_folder() -> Path:
    """Return a new folder that only this user may enter, with a name short enough for Unix sockets."""
    for parent in (None, "/tmp"):
        folder = Path(tempfile.mkdtemp(prefix="cohort-", dir=parent))
        if len(f"{folder}/{_PEER}") <= LONGEST_NAME:
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            return folder
        folder.rmdir()
    raise OSError(f"the name {folder} is too long for Unix sockets")
