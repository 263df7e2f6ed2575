"""Keeps a device's SuperNode connected, whatever happens to it, to the server and to the network.

`python -m deploy.device.supervisor STATE_DIR` runs until it is asked to end. It stays as long as the device is
in the federation, so nothing but the standard library is imported. What it tells is one line whenever
something changes; what the SuperNode prints goes to a log of bounded size.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.tls.reach import source_address, unreachable

if TYPE_CHECKING:
    from types import FrameType

# The files of a device's folder; the first four are there before this starts.
SETTINGS, NODE_CONFIG, KEY, CA = "client.json", "node.toml", "key", "ca.crt"
STATUS, LOCK, LOG = "status.json", "lock", "supernode.log"
ADMITTED = "admitted"  # it is there once the server has let this device in
LOG_BYTES = 1_000_000  # then it becomes LOG.1: a device's disk is small, and wears
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # s before the next attempt; doubled each time
SETTLED = 60.0  # s online after which the pauses begin anew
STOP_GRACE = 8.0  # s for the SuperNode to sign off
LOOK = 1.0  # s between two looks at the clock while the SuperNode is quiet
MEMORY_LOOK, NETWORK_LOOK = 2.0, 30.0  # s
ALREADY_RUNNING = 4  # exit code


def memory_of(group: int) -> dict[int, float]:
    """Return what each process of a process group holds for itself alone, MB (Linux; elsewhere nothing)."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is gone by now, or not to be looked at
            # The name, in parentheses, may hold anything; after it come state, parent and group.
            if int((folder / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                _, resident, shared, *_ = map(int, (folder / "statm").read_text().split())
                found[int(folder.name)] = (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return found


class Supervisor:
    """One device's SuperNode, started again and again until a signal ends it.

    Parameters
    ----------
    folder : Path
        The device's state, as `cohort client join` wrote it (see `deploy.device.state`).
    command : list[str] | None
        What to run in place of the SuperNode.
    """

    def __init__(self, folder: Path, command: list[str] | None = None) -> None:
        settings = json.loads((folder / SETTINGS).read_text())
        self.folder = folder
        self.name: str = settings["name"]
        self.server: str = settings["server"]
        self.command = command or [
            *(sys.executable, "-P", "-m", "deploy.device.node"),
            *("--superlink", self.server),
            *("--root-certificates", str(folder / CA)),
            *("--auth-supernode-private-key", str(folder / KEY)),
            *("--node-config", str(folder / NODE_CONFIG)),
        ]
        self.memory_limit: float | None = settings["memory_limit"]  # MB
        self._stop_signal = 0
        self._said = ""
        self._reason = ""  # why the SuperNode is about to go, from what it printed
        self._online_since: float | None = None  # time.monotonic(), s

    def run(self) -> int:
        """Keep the SuperNode running; return the exit code once a signal has ended it."""
        with (self.folder / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                print(
                    f"{self.folder}: another `cohort client join` runs with this state; what was given now "
                    "counts when that is started again",
                    file=sys.stderr,
                )
                return ALREADY_RUNNING
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, self._stop)
            pause = FIRST_PAUSE
            while not self._stop_signal:
                problem = unreachable(self.server, self.folder / CA)
                if problem:
                    self._say("waiting", f"{self.server}: {problem}; trying again until it works")
                else:
                    self._run_node()
                if self._online_since is not None and time.monotonic() - self._online_since > SETTLED:
                    pause = FIRST_PAUSE
                self._online_since = None
                # Of many devices that a restart of the server cut off, not all shall return at once.
                self._sleep(pause * random.uniform(0.75, 1.25))
                pause = min(2 * pause, LONGEST_PAUSE)
            self._say("off", "ended")
        return 0

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stop_signal = number

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stop_signal and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))  # a handled signal does not end a sleep

    def _run_node(self) -> None:
        """Start the SuperNode, stay with it until it is gone, and say why it went."""
        self._reason = ""
        node = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # with all that it starts a group, which can be ended at once
        )
        try:
            self._follow(node)
        finally:
            self._end(node)
        if not self._stop_signal:
            reason = (
                self._reason or f"its SuperNode ended with code {node.returncode}: see {self.folder / LOG}"
            )
            self._say("waiting", f"{reason}; trying again until it works")

    def _follow(self, node: subprocess.Popen[bytes]) -> None:
        """Return once the SuperNode is gone or should be."""
        assert node.stdout is not None
        address = source_address(self.server)
        looked_at_memory = looked_at_network = time.monotonic()
        unfinished = b""
        while not self._stop_signal:
            # Not reaped yet: until `_end` has ended its group, the number of that must stay taken.
            gone = _has_ended(node)
            readable = select.select([node.stdout], [], [], 0 if gone else LOOK)[0]
            if readable and (part := os.read(node.stdout.fileno(), 65536)):
                *lines, unfinished = (unfinished + part).split(b"\n")
                for line in lines:
                    self._hear(line.decode(errors="replace"))
                continue
            if gone:
                return
            if readable:  # it has closed its output, and goes on
                time.sleep(LOOK)
            now = time.monotonic()
            if self.memory_limit is not None and now - looked_at_memory > MEMORY_LOOK:
                looked_at_memory = now
                self._limit_memory(node.pid, self.memory_limit)
            if now - looked_at_network > NETWORK_LOOK:
                looked_at_network = now
                current = source_address(self.server)
                if address and current and current != address:
                    # TCP would hold on to a connection from the old address for a quarter of an hour.
                    self._reason = f"this device's address was {address} and is {current}"
                    return
                address = current or address

    def _hear(self, line: str) -> None:
        """Note what the SuperNode says of its connection, and keep the line."""
        path = self.folder / LOG
        with path.open("a") as log:
            log.write(f"{line}\n")
            full = log.tell() > LOG_BYTES
        if full:
            path.replace(path.with_name(f"{LOG}.1"))
        if found := re.search(r"SuperNode ID: (\d+)", line):
            (self.folder / ADMITTED).touch()
            self._online_since = time.monotonic()
            self._say("online", f"online as {self.name} (node {found[1]})")
        elif "Connection attempt failed" in line and not self._reason:
            self._say("waiting", f"{self.server}: connection lost; trying again until it works")
        elif "Connection successful" in line:
            self._say("online", f"online as {self.name} again")
        elif "[code: 2004]" in line:
            self._reason = (
                "not let in: the server still counts the last connection (up to 60 s), or has revoked the key"
                if (self.folder / ADMITTED).exists()
                else f"not let in yet: the operator must register the key of {self.name}, or another has it"
            )
        elif "terminated gracefully" in line:  # and we have not asked for that
            self._reason = "sent away by the server: its key was revoked, or this device's clock is wrong"

    def _limit_memory(self, group: int, limit: float) -> None:
        """Kill the process that holds most, should all together hold more than `limit` MB."""
        held = memory_of(group)
        if sum(held.values()) > limit:
            largest = max(held, key=lambda pid: held[pid])
            self._hear(f"{sum(held.values()):.0f} MB of {limit:g} MB: killed process {largest}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(largest, signal.SIGKILL)

    def _end(self, node: subprocess.Popen[bytes]) -> None:
        """End the SuperNode's whole group: let it sign off, then insist."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGTERM)
            end = time.monotonic() + STOP_GRACE
            while time.monotonic() < end and not _has_ended(node):
                time.sleep(0.05)
            os.killpg(node.pid, signal.SIGKILL)  # also what outlived it
        node.wait()
        assert node.stdout is not None
        node.stdout.close()

    def _say(self, state: str, text: str) -> None:
        """Print a line and write it down for `cohort client status`, if it is new."""
        if text == self._said:
            return
        self._said = text
        now = datetime.now().astimezone()
        print(f"{now:%H:%M:%S} {text}", flush=True)
        status = self.folder / STATUS
        told = {"state": state, "text": text, "since": now.isoformat(timespec="seconds"), "pid": os.getpid()}
        status.with_suffix(".new").write_text(json.dumps(told))
        status.with_suffix(".new").replace(status)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether a child has ended, without reaping it."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


if __name__ == "__main__":
    sys.exit(Supervisor(Path(sys.argv[1])).run())
