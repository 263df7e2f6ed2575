"""Proxies between a SuperNode and its SuperLink: one of TCP that can be a bad network, and an HTTP proxy."""

import contextlib
import ctypes
import enum
import random
import socket
import struct
import sys
import threading
import time
from base64 import b64encode

from deploy.fleet.gate.connection_gate import unacknowledged
from deploy.processes.groups import wait_until

CHUNK = 65536  # bytes
_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # SO_ATTACH_FILTER and SO_DETACH_FILTER of Linux
_DROP = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # a program for BPF: accept no byte


class Trouble(enum.Enum):
    """What the network does."""

    NONE = "none"
    REFUSE = "refuse"  # connections break, and new ones too
    SILENCE = "silence"  # a pulled cable: nothing arrives, in either direction, and nobody is told
    STALE = "stale"  # another proxy on the way keeps the connections open, and forwards nothing
    HALF_OPEN = "half-open"  # what the SuperNode sends arrives; no answer comes back
    DELAY = "delay"  # each chunk comes late


def unplug(connection):
    """Let the kernel drop whatever arrives for a connection, so that it acknowledges nothing (Linux only).

    First wait until all that was sent is acknowledged. Otherwise the kernel would send it again and again,
    which would reach the other end, as it does not through a pulled cable.
    """
    if sys.platform == "linux":
        wait_until(lambda: not unacknowledged(connection), 1.0)
        program = struct.pack("HP", 1, ctypes.addressof(_DROP))
        connection.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


def plug_in(connection):
    """Undo `unplug`, if it was done."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)


class Proxy:
    """Forwards connections on a port of its own to another port of this machine.

    Parameters
    ----------
    target : int
        The port to which connections go. It may change while no client connects.
    """

    def __init__(self, target):
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._trouble, self._delay = Trouble.NONE, 0.0
        self._changed = threading.Condition()
        self._closed = False
        self._pairs = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def suffer(self, trouble, delay=0.0):
        """Begin to be a bad network."""
        with self._changed:
            self._trouble, self._delay = trouble, delay
            if trouble is Trouble.SILENCE:
                for connection in [each for pair in self._pairs for each in pair]:
                    unplug(connection)
            self._changed.notify_all()
        if trouble is Trouble.REFUSE:
            self.reset()

    def heal(self, *, reset=False):
        """Be a good network again; what was held back arrives now, unless connections are reset."""
        if reset:
            self.reset()
        with self._changed:
            self._trouble = Trouble.NONE
            for connection in [each for pair in self._pairs for each in pair]:
                plug_in(connection)
            self._changed.notify_all()

    def reset(self):
        """Break all connections, as a router does that has forgotten them."""
        with self._changed:
            pairs = set(self._pairs)
        for pair in pairs:
            self._break(pair)

    def close(self):
        """End all threads and connections."""
        with self._changed:
            self._closed, self._trouble = True, Trouble.NONE
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client):
        if self._trouble is Trouble.REFUSE or not self._passes(upwards=True):
            _reset(client)
            return
        try:
            server = self._reach()
        except OSError:
            _reset(client)
            return
        pair = client, server
        for each in pair:  # else short messages wait up to 40 ms for the acknowledgement of those before
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            self._pairs.add(pair)
        for source, sink, upwards in ((client, server, True), (server, client, False)):
            threading.Thread(target=self._pump, args=(pair, source, sink, upwards), daemon=True).start()

    def _reach(self):
        return socket.create_connection(("127.0.0.1", self.target))

    def _pump(self, pair, source, sink, upwards):
        try:
            while part := source.recv(CHUNK):
                if not self._passes(upwards):
                    break
                sink.sendall(part)
            self._passes(upwards)  # the end of a connection is held back as well
        except OSError:
            pass
        self._break(pair)

    def _passes(self, upwards):
        """Wait until the network lets a chunk pass; return False if the proxy is closed."""
        with self._changed:
            if self._trouble is Trouble.DELAY:
                delay = self._delay
            else:
                delay = 0.0
                stopped = {Trouble.SILENCE, Trouble.STALE} | (set() if upwards else {Trouble.HALF_OPEN})
                self._changed.wait_for(lambda: self._closed or self._trouble not in stopped)
        time.sleep(delay)
        return not self._closed

    def _break(self, pair):
        with self._changed:
            if pair not in self._pairs:
                return
            self._pairs.remove(pair)
        for each in pair:
            _reset(each)


class Balancer(Proxy):
    """Forwards each connection to one of several ports at random, of those at which a program listens."""

    def _reach(self):
        *others, last = random.sample(self.target, len(self.target))
        for port in others:
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", port))
        return socket.create_connection(("127.0.0.1", last))


class HttpProxy(Proxy):
    """An HTTP proxy with a password, whose tunnels lead to other proxies, by the host that they ask for.

    Parameters
    ----------
    target : int
        The port to which the tunnels to all other hosts lead.
    tunnels : mapping of str to Proxy
        By host.
    """

    LOGIN = "ward:p%40ss"  # as in an address; the password is p@ss

    def __init__(self, target, tunnels=()):
        super().__init__(target)
        self.tunnels = dict(tunnels)
        self.asked = []  # the first lines of the requests with the right password
        self.url = f"http://{self.LOGIN}@127.0.0.1:{self.port}"

    def _connect(self, client):
        head = b""
        while b"\r\n\r\n" not in head and (part := client.recv(CHUNK)):
            head += part
        first, *headers = head.decode().split("\r\n")
        if "basic " + b64encode(b"ward:p@ss").decode() not in [
            value.replace("Basic", "basic") for _, _, value in (each.partition(": ") for each in headers)
        ]:
            client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            client.close()
            return
        self.asked.append(first)
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        host = first.split()[1].rpartition(":")[0]
        Proxy._connect(self.tunnels.get(host, self), client)


def _reset(connection):
    """Close a connection with an RST."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
    connection.close()
