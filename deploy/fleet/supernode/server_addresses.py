"""The addresses of a server's front ends (docs/scale.md), and the one that a SuperNode uses now."""

import random
import threading
from collections.abc import Callable, Sequence
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from deploy.fleet import wire

# Texts in the details of temporary errors: the SuperLink's database is locked, its disk is full, or too many
# requests are under way.
PASSING = ("OperationalError", "Concurrent RPC limit exceeded")
# The text that the SuperLink sends in place of the details of any unexpected error (`deploy.fleet.errors`).
HIDDEN = "Internal server error."
# Texts in the details if the SuperLink has answered with an error that may pass. The SuperNode stays at this
# address for `ENDURED` such errors.
ANSWERED = (*PASSING, HIDDEN, "cannot answer now", "sends too many requests", "are under way")
ENDURED = 5


class Line(NamedTuple):
    """A channel to one address of a server."""

    address: str
    channel: grpc.Channel
    methods: dict[str, Callable[..., Any]]


class Server:
    """The addresses of a server's front ends, tried in random order, and a channel to one of them at a time.

    `addresses`: those that are always tried. `make`: returns a new channel to an address. `file`: where to
    keep the addresses that the server tells; None: nowhere.
    """

    def __init__(
        self, addresses: Sequence[str], make: Callable[[str], grpc.Channel], file: Path | None = None
    ) -> None:
        self._given, self._make, self._file = list(addresses), make, file
        self._told: list[str] = []
        self._lock = threading.Lock()
        self._others = random.sample(self._given, len(self._given))  # the next one first
        self._errors = 0  # answers with errors since the last good one
        self._unfit: set[str] = set()  # the addresses at which no server of this device was
        self.idle = threading.Event()  # set while the SuperNode works on no message
        self.line = self.open(self._others.pop(0))

    def open(self, address: str) -> Line:
        """Return a channel to an address, which is not used yet."""
        channel = self._make(address)
        return Line(address, channel, wire.calls(channel))

    def failed(self, line: Line, details: str) -> None:
        """Note that a request has failed, and connect to the next address if the connection is lost."""
        with self._lock:
            if self.line is not line:  # another thread has done so
                return
            self._errors += 1
            answered = any(text in details for text in ANSWERED)
            if self._others and (not answered or self._errors >= ENDURED):
                self._use(self.open(self._others[0]))

    def answered(self, line: Line) -> None:
        """Note that a request has succeeded."""
        if self._errors or self._unfit:
            with self._lock:
                self._errors = 0
                self._unfit.discard(line.address)

    def is_unfit(self, line: Line) -> bool:
        """Note that no server of this device is at an address. Return whether that holds for all."""
        with self._lock:
            self._unfit.add(line.address)
            return self._unfit.issuperset([self.line.address, *self._others])

    def move(self, line: Line) -> None:
        """Use another channel from now on, to which the server asked this device to move."""
        with self._lock:
            self._use(line)

    def _use(self, line: Line) -> None:
        before, self.line, self._errors = self.line, line, 0
        self._others = [each for each in self._others if each != line.address]
        if before.address != line.address:
            self._others.append(before.address)
        before.channel.close()  # the requests that are under way are repeated
        getLogger("flwr").info("The SuperLink's address is %s from now on", line.address)

    def learn(self, addresses: Sequence[str]) -> None:
        """Know these addresses from now on, besides those that were given."""
        with self._lock:
            if not addresses or list(addresses) == self._told:
                return
            self._told = list(addresses)
            known = {*self._given, *self._told, self.line.address}
            self._others = [each for each in self._others if each in known]
            new = known.difference(self._others, [self.line.address])
            # Those that have failed stay behind those that were not tried
            self._others[:0] = random.sample(sorted(new), len(new))
        if self._file is not None:
            try:
                kept = self._file.with_suffix(".new")
                kept.write_text(",".join(addresses))
                kept.replace(self._file)
            except OSError as error:
                getLogger("flwr").warning("The server's addresses cannot be kept: %s", error)
