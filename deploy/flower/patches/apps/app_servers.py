"""A SuperNode's app servers: one for each bundle that it runs."""

import hashlib
import json
import os
import select
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from logging import getLogger
from typing import Any

from deploy.flower.commands import APP_SERVER, APP_SERVERS
from deploy.flower.fork_client import ForkServer, Gone
from deploy.flower.patches.apps.app_server import READY, REFUSED, WANTED

IDLE = 600.0  # s without a message, after which a SuperNode closes its connection to an app server
MOST = 4  # the most app servers to which a SuperNode is connected at a time
# A message waits while its app server imports the app, but not longer than this many s after the app server's
# start. If the import takes longer, the message's own process imports the app.
FIRST_WAIT = 20.0
LONGEST_IMPORT = 600.0  # the most s that the import of an app in an app server may take
# If two app servers of a bundle have ended during one message, the bundle gets no other for this many s.
PAUSE = 60.0


class _AppServer:
    """An app server as the SuperNode sees it."""

    def __init__(self, pid: int, end: socket.socket) -> None:
        self.pid, self._end = pid, end
        self.began = self.used = time.monotonic()
        self.forks: ForkServer | None = None  # asks this app server for processes; None before READY
        self.refused = ""  # why the app cannot be forked
        self._line = b""

    def advance(self, bundle: bytes, seconds: float) -> None:
        """Wait until the app is imported or refused, at most `seconds`.

        If the app server asks for the bundle in this time, send the bundle. Raises Gone if the app server has
        ended.
        """
        end = time.monotonic() + seconds
        while self.forks is None and not self.refused:
            if not select.select([self._end], [], [], max(0.0, end - time.monotonic()))[0]:
                return
            try:
                # One byte at a time: the bytes after the line belong to `forks`.
                byte = self._end.recv(1)
            except OSError as error:
                raise Gone from error
            if not byte:
                raise Gone
            self._line += byte
            if byte == b"\n":
                self._read(bundle)

    def _read(self, bundle: bytes) -> None:
        line, self._line = self._line, b""
        if line == WANTED:
            try:
                self._end.sendall(bundle)
            except OSError as error:
                raise Gone from error
        elif line == READY:
            self.forks = ForkServer(self._end)
        elif line.startswith(REFUSED):
            self.refused = line.removeprefix(REFUSED).decode().strip()

    def close(self) -> None:
        """Close this SuperNode's connection to the app server.

        Several SuperNodes may share an app server. It ends when the last of them has closed its connection.
        During the import, it ends as soon as the SuperNode that started it closes the connection.
        """
        self._end.close()


class AppServers:
    """Starts and ends a SuperNode's app servers, and lets them fork the processes of messages.

    Only one thread may use this object.
    """

    def __init__(self) -> None:
        # By the bundle's hash, in the order in which the app servers were last used.
        self._servers: OrderedDict[str, _AppServer] = OrderedDict()
        self._not_before: dict[str, float] = {}  # by a bundle's hash: when the bundle may get an app server

    def fork(
        self,
        server: ForkServer,
        run: Any,
        bundle: Any,
        command: Sequence[str],
        output: int | None,
        channel: int,
    ) -> bool:
        """Fork the process of a message from the app server of the message's bundle.

        `output`: the file descriptor for the process's output. With None, the process shares this process's
        output. `channel`: the file descriptor of the socket over which the process sends its requests to this
        SuperNode, see `deploy.flower.channel`.

        Returns whether a process was forked. If not, a process must be started that imports the app itself.
        """
        digest = run.fab_hash
        for attempt in range(2):  # an app server that several SuperNodes share may just have ended
            app = self._of(server, run, bundle)
            if app is None:
                return False
            try:
                app.advance(bundle.content, app.began + FIRST_WAIT - time.monotonic())
                if app.refused:
                    getLogger("flwr").warning(
                        "Each message imports the app of bundle %s anew: %s", digest[:8], app.refused
                    )
                    self._end(digest, float("inf"))
                    return False
                if app.forks is None:
                    if time.monotonic() - app.began > LONGEST_IMPORT:
                        self._end(digest, float("inf"))
                    return False
                app.forks.run(command, output=(1, 2) if output is None else (output, output), channel=channel)
            except Gone:
                self._end(digest, PAUSE if attempt else 0.0)
                continue
            app.used = time.monotonic()
            self._servers.move_to_end(digest)
            return True
        getLogger("flwr").warning(
            "The app server of bundle %s has ended; this message imports the app itself", digest[:8]
        )
        return False

    def _of(self, server: ForkServer, run: Any, bundle: Any) -> _AppServer | None:
        digest = run.fab_hash
        if digest in self._servers:
            return self._servers[digest]
        if time.monotonic() < self._not_before.get(digest, 0.0):
            return None
        ours, its = socket.socketpair()
        with its:
            # Of the SuperNodes that share a fork server, those with the same environment also share an app
            # server for each bundle. Only the folder in which bundles are unpacked (FLWR_HOME) may differ.
            same = sorted((name, value) for name, value in os.environ.items() if name != "FLWR_HOME")
            shared = hashlib.sha256(json.dumps([digest, same]).encode()).hexdigest()
            command = [APP_SERVER, run.fab_id, run.fab_version, digest, str(len(bundle.content))]
            try:
                pid = server.run(command, channel=its.fileno(), shared=shared)
            except Gone:
                ours.close()
                raise
        self._servers[digest] = _AppServer(pid, ours)
        while len(self._servers) > MOST:
            self._end(next(iter(self._servers)), 0.0)
        return self._servers[digest]

    def end_idle(self) -> None:
        """End the app servers that had no message for `IDLE` seconds."""
        while self._servers:
            digest, oldest = next(iter(self._servers.items()))
            if time.monotonic() - max(oldest.used, oldest.began) < IDLE:
                return
            self._end(digest, 0.0)

    def _end(self, digest: str, pause: float) -> None:
        self._servers.pop(digest).close()
        self._not_before[digest] = time.monotonic() + pause
        while len(self._not_before) > 100:
            del self._not_before[next(iter(self._not_before))]


def supported() -> bool:
    """Tell whether messages are forked from app servers: on Linux, unless COHORT_APP_SERVERS is "0".

    An app server counts its threads before it forks, in /proc, which only Linux has. And on macOS, a process
    that has used certain system libraries cannot fork.
    """
    return sys.platform == "linux" and os.environ.get(APP_SERVERS) != "0"
