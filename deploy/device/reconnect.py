"""Keeps a device's SuperNode connected, even if the SuperNode, the server or the network fails at times.

`python -m deploy.device.reconnect STATE_DIR` runs until SIGTERM, SIGINT or SIGHUP, and prints a line whenever
the state of the connection changes. To take little memory, this file and its imports use the standard library
only.
"""

import contextlib
import fcntl
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from deploy.device.default_folder import default_folder
from deploy.device.memory_limit import MemoryLimit
from deploy.flower import commands
from deploy.json_text import parse_json
from deploy.processes.supervisor import Supervisor
from deploy.tls.addresses import addresses_of
from deploy.tls.probe import REFUSED, none_reachable, source_address

# The files of a device's folder. SETTINGS, NODE_CONFIG, KEY and CA exist before the supervisor starts.
SETTINGS, NODE_CONFIG, KEY, CA = "client.json", "node.toml", "key", "ca.crt"
STATUS, LOCK = "status.json", "lock"
SERVERS = "servers"  # the addresses of all front ends of the server, as it told them last
ADMITTED = "admitted"  # this file exists once the server has admitted the device
FIRST_RESTART, LONGEST_RESTART = 1.0, 30.0  # s before a restart of the SuperNode; doubled each time
SETTLED = 60.0  # s online, after which the next pause is FIRST_RESTART again
NETWORK_LOOK = 30.0  # s between two checks of the network
PROBE_TIMEOUT = 3.0  # s for a server to show its certificate; the supervisor does nothing else meanwhile
LOG = "supernode.log"  # the log of the SuperNode
LOG_BYTES = 1_000_000  # a longer log is renamed to LOG.1, which replaces an older LOG.1
ALREADY_RUNNING = 4  # the exit code if another supervisor uses the folder


def append(folder: Path, line: str) -> None:
    """Append a line to the log in a device's folder. If the disk is full, the line is missing."""
    with contextlib.suppress(OSError):
        path = folder / LOG
        with path.open("a") as log:
            log.write(f"{line}\n")
            full = log.tell() > LOG_BYTES
        if full:
            path.replace(path.with_name(f"{LOG}.1"))


def servers_of(folder: Path, server: str) -> list[str]:
    """Return the addresses at which a device tries to reach its server.

    `server`: those with which the device in this folder joined. The server may have told more.
    """
    with contextlib.suppress(OSError, ValueError):  # none were told, or the file is damaged
        return addresses_of(f"{server},{(folder / SERVERS).read_text()}")
    return addresses_of(server)


class DeviceSupervisor(Supervisor):
    """Keeps one device's SuperNode running."""

    grace = 8.0  # s from SIGTERM to SIGKILL, enough for the SuperNode to sign off

    def __init__(self, folder: Path, command: list[str] | None = None) -> None:
        super().__init__()
        settings = parse_json((folder / SETTINGS).read_text())
        self.folder = folder
        self.name: str = settings["name"]
        self.server: str = settings["server"]
        self._command = command
        self._memory = MemoryLimit(settings["memory_limit"])
        self._printed = self._saved = ""  # the last text that was printed, and the last in STATUS
        self._refuses = False  # whether the device has refused the server's current app
        self._reason = ""  # why the SuperNode is about to end, if known
        self._online_since: float | None = None  # time.monotonic(), s
        self._lost = ""  # why the SuperNode has no connection; "" while it has one
        self._next_pause = FIRST_RESTART  # s
        self._node = 0  # the SuperNode's process id
        # The address from which this device reaches each address of the server
        self._sources: dict[str, str] = {}
        self._checked_network = 0.0  # time.monotonic(), s

    def supervise(self) -> int:
        """Keep the SuperNode running until a signal asks the supervisor to end; return the exit code."""
        with (self.folder / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                print(
                    f"{self.folder}: another `cohort client join` runs with this state; "
                    "the options given now take effect when it is restarted",
                    file=sys.stderr,
                )
                return ALREADY_RUNNING
            self.stop_at(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            self.run()
            self._say("off", "ended")
        return 0

    def may_start(self) -> bool:
        problem = none_reachable(self._servers(), self.folder / CA)
        if problem:
            self._say("waiting", f"{problem}; trying again until it works")
        return not problem

    def command(self) -> Sequence[str]:
        self._reason = self._lost = ""
        self._sources = self._sources_now()
        self._checked_network = time.monotonic()
        return self._command or commands.python(
            *("-m", "deploy.device.supernode"),
            *commands.supernode_options(
                fleet=",".join(self._servers()),
                authority=self.folder / CA,
                key=self.folder / KEY,
                node_config=str(self.folder / NODE_CONFIG),
            ),
        )

    def environment(self) -> Mapping[str, str]:
        files = {commands.TRUST: self.folder / SETTINGS, commands.SERVERS: self.folder / SERVERS}
        return {**os.environ, **{name: str(file) for name, file in files.items()}}

    def _servers(self) -> list[str]:
        return servers_of(self.folder, self.server)

    def _sources_now(self) -> dict[str, str]:
        found = {each: source_address(each) for each in self._servers()}
        return {each: source for each, source in found.items() if source}

    def started(self, program: subprocess.Popen[bytes]) -> None:
        self._node = program.pid

    def check(self) -> bool:
        if killed := self._memory.check(self._node):
            self._hear(killed)
        now = time.monotonic()
        if now - self._checked_network > NETWORK_LOOK:
            self._checked_network = now
            current = self._sources_now()
            known = current.keys() & self._sources.keys()
            if known and all(current[each] != self._sources[each] for each in known):
                # TCP would give up the connection from the old address only after a quarter of an hour.
                was, now_is = (
                    ", ".join(sorted({of[each] for each in known})) for of in (self._sources, current)
                )
                self._reason = f"this device's address was {was} and is {now_is}"
                return False
            self._sources |= current
            # The SuperNode itself tries again and again, and does not say that a certificate is refused.
            problem = self._lost and none_reachable(self._servers(), self.folder / CA, PROBE_TIMEOUT)
            if problem and REFUSED in problem:
                self._say_lost(problem)
        return True

    def ended(self, code: int | None) -> float:
        if code is not None:
            reason = self._reason or f"its SuperNode ended with code {code}: see {self.folder / LOG}"
            self._say("waiting", f"{reason}; trying again until it works")
        if self._online_since is not None and time.monotonic() - self._online_since > SETTLED:
            self._next_pause = FIRST_RESTART
        self._online_since = None
        pause = self._next_pause
        self._next_pause = min(2 * pause, LONGEST_RESTART)
        # Devices that lose the server at the same time must not all return at the same time.
        return pause * random.uniform(0.75, 1.25)

    def line(self, line: bytes) -> None:
        self._hear(line.decode(errors="replace"))

    def _hear(self, line: str) -> None:
        """Write a line of output into the log, and learn the state of the connection from the line.

        If the disk is full, the line is missing from the log, and the SuperNode goes on.
        """
        append(self.folder, line)
        if found := re.search(r"SuperNode ID: (\d+)", line):
            with contextlib.suppress(OSError):
                (self.folder / ADMITTED).touch()
            self._online_since = time.monotonic()
            self._say("online", f"online as {self.name} (node {found[1]})")
        elif found := re.search(rf"{commands.REFUSED_BUNDLE} ([0-9a-f]{{64}})", line):
            self._refuses = True
            self._say(
                "online",
                f"online as {self.name}, but refuses the server's app, whose bundle is {found[1]}; "
                f"to run it from now on: cohort client trust {found[1]}{self._state_dir()}",
            )
        elif commands.ACCEPTED_BUNDLE in line and self._refuses:
            self._refuses = False
            self._say("online", f"online as {self.name} again")
        elif commands.CONNECTION_FAILED in line and not self._reason:
            self._say_lost(self._lost or f"{self.server}: connection lost")
        elif commands.CONNECTED_AGAIN in line:
            self._lost = ""
            self._say("online", f"online as {self.name} again")
        elif commands.NO_GRPC in line:
            self._reason = f"{self.server} {commands.NO_GRPC}: check the address, or ask the operator"
        elif "[code: 2004]" in line:
            self._reason = (
                "not let in: another device is connected with this key, or the server has revoked it"
                if (self.folder / ADMITTED).exists()
                else f"not let in yet: the operator must register the key of {self.name}, or another device "
                "has this key or name"
            )
        elif found := re.search(rf"{commands.WRONG_CLOCK}.*behind", line):
            self._reason = f"sent away by the server: {found[0].removeprefix('Invalid timestamp: ')}"
        # The supervisor reads no lines after it has asked the SuperNode to end, so this line means that the
        # server has ended the SuperNode.
        elif "terminated gracefully" in line and not self._reason:
            self._reason = "sent away by the server: its key was revoked, or this device's clock is wrong"

    def _state_dir(self) -> str:
        """Return the option with which a command of `cohort client` finds this device; "" by default."""
        folder = self.folder.absolute()
        return "" if folder == default_folder().absolute() else f" --state-dir {shlex.quote(str(folder))}"

    def _say_lost(self, reason: str) -> None:
        self._lost = reason
        self._say("waiting", f"{reason}; trying again until it works")

    def _say(self, state: str, text: str) -> None:
        """Print a text, and save it for `cohort client status`. A repetition of the last text is ignored."""
        if text == self._printed == self._saved:
            return
        now = datetime.now().astimezone()
        status = self.folder / STATUS
        status_now = {
            "state": state,
            "text": text,
            "since": now.isoformat(timespec="seconds"),
            "pid": os.getpid(),
        }
        with contextlib.suppress(OSError):  # the disk is full: the next call with this text tries again
            if text != self._printed:
                self._printed = text
                print(f"{now:%H:%M:%S} {text}", flush=True)
            status.with_suffix(".new").write_text(json.dumps(status_now))
            status.with_suffix(".new").replace(status)
            self._saved = text


if __name__ == "__main__":
    sys.exit(DeviceSupervisor(Path(sys.argv[1])).supervise())
