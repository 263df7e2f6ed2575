"""The gate of the Fleet API: it decrypts TLS, limits connections, and forwards the bytes of peers to gRPC.

gRPC does not limit the connections of a peer, and expands the headers of a request before any Python code
sees the request. In HTTP/2, one byte can stand for a header that was sent before, and gRPC takes up to 150
bytes of memory for each such byte. gRPC limits the headers only of peers that have confirmed gRPC's settings.
Without the gate, 26 MB of headers took 3.9 GB of memory.

So gRPC listens on a Unix socket in a folder that only this user may enter, and the gate listens on the port.
The gate checks that a peer confirms gRPC's settings before its first request (`settings_check`), and slows
down a peer that sends too many frames (`frame_limit`).

A stranger is a peer that has not yet sent a request with a registered key.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import socket
import ssl
import sys
import tempfile
import termios
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from functools import partial
from ipaddress import IPv6Network, ip_address
from logging import getLogger
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from deploy.fleet.gate import http_answer
from deploy.fleet.gate.frame_limit import FRAMES, TOLD, FrameBudget, FrameCounter, SlowDown
from deploy.fleet.gate.settings_check import NotAllowedError, SettingsCheck
from deploy.fleet.gate.tls_records import RECORD, NoTlsError, TlsPeer
from deploy.fleet.sockets import SILENCE, forwarded, keep_alive

# The most open connections of all strangers, of strangers from one address, and of one node. If there are
# more, the oldest are closed.
ALL_STRANGERS, STRANGERS, PER_NODE = 1024, 512, 16
FIRST_REQUEST = 15.0  # s after which a connection is closed if it brought no request with a registered key
FROM_STRANGER = 64 * 1024  # the most bytes of a stranger that are forwarded
REFUSALS = 16  # refused requests after which a connection is closed
OVER_BUDGET = FRAMES // 8  # frames that a request costs whose node sends too many requests
CHUNK = 256 * 1024  # the most bytes of a peer that are read at a time
ANSWER = 128 * 1024  # the most bytes of gRPC that are read at a time
PIECES = 8  # how often a connection is read in a row, while bytes are there, until others have their turn
BACKLOG = 1024  # connections that the kernel accepts before this process does
LONGEST_NAME = 100  # characters of a Unix socket's name; macOS allows 103, Linux 107
_PEER = "ipv6:[" + ":".join(["ffff"] * 8) + "%interface]:65535"  # the longest name of a peer
_FOLDER = "cohort-gate-"
_EVERYWHERE = ("", "0.0.0.0", "::", "[::]")


class Gate:
    """Accepts connections on a port and forwards them to a Unix socket.

    gRPC's name of a forwarded connection ends with the name of the peer (`sockets.sender`).

    `address`: the host and port to listen on, such as 0.0.0.0:9092. With port 0, the system chooses a port.
    `certificate`, `key`: the certificates and the private key of the server, as PEM.

    `port`: the port on which the gate listens. `behind`: gRPC's name of the Unix socket on which the gRPC
    server must listen.

    Raises OSError if the port is taken, no Unix socket can be made, or the certificate and the key cannot be
    used.
    """

    def __init__(self, address: str, certificate: bytes, key: bytes) -> None:
        self._folder = _private_folder()
        self._tls = _tls(certificate, key)
        self._listening = _listen(address)
        self.port = self._listening[0].getsockname()[1]
        self.behind = f"unix:{self._folder}/fleet"
        self._connections: dict[str, _Connection] = {}  # by the name of the peer
        # The same by node, or None for those of strangers; of each, the oldest first
        self._groups: dict[int | None, dict[_Connection, None]] = {}
        # The connections closed since the last line in the log, by address and reason.
        self._closed: Counter[tuple[str, str]] = Counter()
        self._told = self._failed = -TOLD
        self._slow_down = SlowDown()
        self._budgets = WeakValueDictionary[int, FrameBudget]()  # of the connected nodes
        self._arrived = Counter[int]()  # node -> the bytes of models that it has sent, over all connections
        self._most = most_strangers()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start a thread that forwards connections. The gRPC server must already listen."""
        threading.Thread(target=self._run, name="gate", daemon=True).start()

    def admitted(self, peer: str, node: int) -> None:
        """Note that a peer sent a request with a node's key. `peer` is the name that `sender` returns."""
        connection = self._connections.get(peer)
        if connection is not None and connection.node != node:
            self._loop.call_soon_threadsafe(self._admit, connection, node)

    def arrived(self, node: int) -> int:
        """Return how many bytes of models a node has sent since this program's start (`FrameCounter`)."""
        return self._arrived[node]

    def node(self, peer: str) -> int | None:
        """Return the node whose key signed the last admitted request of a peer; None for a stranger."""
        connection = self._connections.get(peer)
        return None if connection is None else connection.node

    def slow_down(self, peer: str) -> None:
        """Let a node that sends too many requests send few frames in this second."""
        if connection := self._connections.get(peer):
            self._loop.call_soon_threadsafe(connection.budget.spend, OVER_BUDGET)

    def refused(self, peer: str) -> None:
        """Note that a request of a peer was refused. `peer` is the name that `sender` returns."""
        if connection := self._connections.get(peer):
            self._loop.call_soon_threadsafe(self._refuse, connection)

    def _admit(self, connection: _Connection, node: int) -> None:
        if connection not in self._groups.get(connection.node, ()):  # it has ended
            return
        self._ungroup(connection)
        connection.node = node
        connection.budget = self._budgets.setdefault(node, FrameBudget())
        connection.admitted.set()
        same = self._groups.setdefault(node, {})
        same[connection] = None
        for each in list(same)[: max(0, len(same) - PER_NODE)]:
            self._close(each, f"more than {PER_NODE} connections of a node")

    def _ungroup(self, connection: _Connection) -> None:
        group = self._groups[connection.node]
        del group[connection]
        if not group:
            del self._groups[connection.node]

    def _refuse(self, connection: _Connection) -> None:
        connection.refusals += 1
        if connection.refusals >= REFUSALS:
            self._close(connection, f"{REFUSALS} refused requests")

    def _close(self, connection: _Connection, reason: str) -> None:
        """Close a connection, and log closed connections every `TOLD` seconds."""
        if connection.closing:
            return
        connection.closing = True
        connection.task.cancel()
        self._closed[connection.address, reason] += 1
        now = time.monotonic()
        if now - self._told >= TOLD:
            most = self._closed.most_common(3)
            text = ", ".join(f"{count} from {address} ({why})" for (address, why), count in most)
            count = self._closed.total()
            self._closed, self._told = Counter(), now
            getLogger("flwr").warning("Closed %d connections: %s", count, text)

    def _run(self) -> None:
        for each in self._listening:
            self._keep(self._accept(each))
        self._keep(self._end_silent())
        self._loop.run_forever()

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # without this reference, the garbage collector could remove the task
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                outside, address = await self._loop.sock_accept(listening)
            except OSError as error:  # there is no free descriptor, or the peer has hung up already
                self._free_descriptor(error)
                await asyncio.sleep(0.1)
                continue
            kind, host = ("ipv6", f"[{address[0]}]") if ":" in address[0] else ("ipv4", address[0])
            peer = f"{kind}:{host}:{address[1]}"
            connection = _Connection(origin(address[0]), outside)
            connection.task = self._keep(self._serve(outside, peer, connection))
            connection.deadline = self._loop.call_later(FIRST_REQUEST, self._close_stranger, connection)
            if old := self._connections.pop(peer, None):  # the peer has reset it, and uses the port again
                old.task.cancel()
            self._connections[peer] = connection
            self._groups.setdefault(None, {})[connection] = None
            self._make_room(connection.address)
            await asyncio.sleep(0)  # let the task begin before it can be cancelled

    def _free_descriptor(self, error: OSError) -> None:
        """If no descriptor was free for a new connection, close the oldest connection of a stranger."""
        now = time.monotonic()
        if now - self._failed >= TOLD:
            self._failed = now
            getLogger("flwr").warning("A connection could not be accepted: %s", error)
        oldest = next((each for each in self._groups.get(None, ()) if not each.closing), None)
        if oldest is not None and error.errno in (errno.EMFILE, errno.ENFILE):
            self._close(oldest, "no more files can be opened")

    def _make_room(self, newest: str) -> None:
        """Close a stranger's connection if there are too many. `newest` is the address of the newest peer."""
        strangers = [each for each in self._groups.get(None, ()) if not each.closing]
        of_address = Counter(each.address for each in strangers)
        of_one, of_all = min(STRANGERS, self._most // 2), min(ALL_STRANGERS, self._most)
        if of_address[newest] > of_one:
            crowded, reason = newest, f"more than {of_one} strangers"
        elif len(strangers) > of_all:
            crowded, reason = of_address.most_common(1)[0][0], f"more than {of_all} strangers in all"
        else:
            return
        self._close(next(each for each in strangers if each.address == crowded), reason)

    def _close_stranger(self, connection: _Connection) -> None:
        if connection.node is None and not connection.task.done():
            self._close(connection, f"no request with a registered key within {FIRST_REQUEST:g} s")

    async def _end_silent(self) -> None:
        """End the connections that move no byte, although each peer sends pings.

        A peer that takes a model slowly sends none. But then the kernel waits until the peer acknowledges
        bytes, and ends the connection itself if the peer does not (`sockets.keep_alive`).
        """
        while True:
            await asyncio.sleep(SILENCE / 10)
            last = time.monotonic() - SILENCE
            for each in [each for each in self._connections.values() if each.moved < last]:
                if not unacknowledged(each.raw):
                    self._close(each, f"not a byte in {SILENCE:g} s")

    async def _serve(self, raw: socket.socket, peer: str, connection: _Connection) -> None:
        """Forward a connection in both directions until one side ends it, and close it."""
        try:
            raw.setblocking(False)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(raw)
            forwarded[peer] = raw
            outside = TlsPeer(self._tls, raw, self._loop)
            try:
                protocol = await outside.handshake()
            except NoTlsError as error:
                await http_answer.refuse(error.received, partial(self._loop.sock_sendall, raw), raw)
                raise
            if protocol != "h2":
                await http_answer.refuse(await outside.receive(RECORD), outside.send, raw)
                raise NotAllowedError("the peer does not speak HTTP/2")
            with socket.socket(socket.AF_UNIX) as inside:
                try:
                    await self._connect(inside, peer)
                except OSError as error:  # such as a full disk
                    raise NotAllowedError(f"it cannot be forwarded: {error.strerror}") from error
                await self._forward(outside, inside, connection)
        except NotAllowedError as error:
            self._close(connection, str(error))
        except (OSError, asyncio.CancelledError):  # one side has hung up, or the gate closes the connection
            pass
        finally:
            if forwarded.get(peer) is raw:
                del forwarded[peer]
            raw.close()
            connection.deadline.cancel()
            self._ungroup(connection)
            if self._connections.get(peer) is connection:
                del self._connections[peer]

    async def _connect(self, inside: socket.socket, peer: str) -> None:
        inside.setblocking(False)
        name = Path(self._folder, peer)
        inside.bind(str(name))
        try:
            await self._loop.sock_connect(inside, self.behind.removeprefix("unix:"))
        finally:
            name.unlink()  # the socket keeps its name

    async def _forward(self, outside: TlsPeer, inside: socket.socket, connection: _Connection) -> None:
        back = self._keep(self._return(inside, outside, connection))
        try:
            check, frames = SettingsCheck(), FrameCounter()
            received = of_models = pieces = 0
            # A stranger's data is read in small pieces, so each stranger takes little memory.
            while data := await outside.receive(CHUNK if connection.admitted.is_set() else RECORD):
                connection.moved = time.monotonic()
                received += len(data)
                data = check.allowed(data)
                while (count := frames.passing(data, connection.budget)) < len(data):
                    await self._loop.sock_sendall(inside, data[:count])
                    data = data[count:]
                    await self._slow_down.pause(connection.peer, connection.budget)
                await self._loop.sock_sendall(inside, data)
                if connection.node is not None:
                    self._arrived[connection.node] += frames.of_models - of_models
                    of_models = frames.of_models
                if received > FROM_STRANGER:
                    await connection.admitted.wait()
                pieces += 1
                if pieces % PIECES == 0:
                    await asyncio.sleep(0)
        finally:
            back.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await back

    async def _return(self, inside: socket.socket, outside: TlsPeer, connection: _Connection) -> None:
        """Forward what gRPC sends. When gRPC hangs up, end the connection."""
        with contextlib.suppress(OSError):
            pieces = 0
            while data := await self._loop.sock_recv(inside, ANSWER):
                await outside.send(data)
                connection.moved = time.monotonic()
                pieces += 1
                if pieces % PIECES == 0:
                    await asyncio.sleep(0)
        connection.task.cancel()


class _Connection:
    """A connection."""

    task: asyncio.Task[None]
    deadline: asyncio.TimerHandle  # closes the connection if it is still a stranger's

    def __init__(self, address: str, raw: socket.socket) -> None:
        self.address, self.raw = address, raw
        self.moved = time.monotonic()  # when it last moved a byte, s
        self.node: int | None = None  # the node whose key the last request had; None for a stranger
        self.budget = FrameBudget()  # of this connection alone, until a node is known
        self.admitted = asyncio.Event()
        self.refusals = 0
        self.closing = False

    @property
    def peer(self) -> str:
        """The peer's name in the log."""
        return self.address if self.node is None else f"Node {self.node}"


def unacknowledged(connection: socket.socket) -> bool:
    """Return whether the kernel waits until the peer acknowledges bytes; False where it does not tell."""
    count = bytearray(4)
    with contextlib.suppress(OSError):
        fcntl.ioctl(connection, termios.TIOCOUTQ, count)
    return any(count)


def most_strangers() -> int:
    """Return how many connections strangers may have, so that these use half of the files that may be open.

    A connection uses three files. Without a limit of open files, return `ALL_STRANGERS`.
    """
    import resource  # not at the top: Windows has no such module, and runs no SuperLink

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ALL_STRANGERS if soft == resource.RLIM_INFINITY else max(2, soft // 6)


def origin(address: str) -> str:
    """Return the address under which a peer is counted.

    An IPv6 peer is counted under its network of 64 bits, because one machine may have all addresses of this
    network.
    """
    found = ip_address(address)
    if found.version == 4 or found.ipv4_mapped or found.is_link_local:
        return address
    return str(IPv6Network((int(found) >> 64 << 64, 64)))


def _tls(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Return the TLS settings of the server, the same as gRPC's: TLS 1.2 or newer, HTTP/2 only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2"])
    with tempfile.NamedTemporaryFile() as file:  # OpenSSL reads files only; this one has mode 0600
        file.write(key + b"\n" + certificate)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _listen(address: str) -> list[socket.socket]:
    """Return sockets that listen on an address. As in gRPC, 0.0.0.0 and [::] stand for all addresses."""
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


def _private_folder() -> str:
    """Return the name of a new folder that only this user may enter.

    The folders of gates whose process has ended are removed.
    """
    for parent in (tempfile.gettempdir(), "/tmp"):
        _remove_old(parent)
        folder, descriptor = _locked_folder(parent)
        # A Unix socket's name must be short, and the folder's name may be long.
        name = f"/proc/self/fd/{descriptor}" if sys.platform == "linux" else folder
        if len(f"{name}/{_PEER}") <= LONGEST_NAME:
            return name
        os.close(descriptor)
        shutil.rmtree(folder)
    raise OSError(f"the name {folder} is too long for Unix sockets")


def _locked_folder(parent: str) -> tuple[str, int]:
    """Make a folder, and lock it until this process ends. Return its name and its descriptor."""
    while True:
        folder = tempfile.mkdtemp(prefix=_FOLDER, dir=parent)
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if Path(folder).exists():  # otherwise another gate removed the folder before it was locked
            return folder, descriptor
        os.close(descriptor)


def _remove_old(parent: str) -> None:
    # Other users may write into `parent`. If they put a pipe or deep folders there, this function must
    # neither wait nor fail.
    for folder in Path(parent).glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError):  # the folder is locked, or is no folder
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            finally:
                os.close(descriptor)
