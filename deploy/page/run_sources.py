"""Finds and reads what the page shows: the folders, histories and logs of runs."""

import contextlib
import os
import re
import stat
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from deploy.fleet.storage.postgres import is_url
from deploy.json_text import parse_json
from deploy.page.database import Database, Node, OpenMessage
from deploy.page.trial_numbers import TrialNumbers
from deploy.runs.run_state import state_of
from deploy.runs.trials import PLAN
from server.history import FILE_NAME, Tail
from strategies.clients.printable import printable
from strategies.reporters.round_line import printable_line

SERVER = "server.json"  # the file that a server for devices has in its folder
PORTION = 1 << 20  # bytes of a history that are read at once
LONGEST_READ = 0.3  # seconds that one request may spend on reading histories
RUNS, TRIALS, LOGS = 200, 64, 200  # the most of each that are listed
KEPT = 2  # the runs that stay in memory
LOG_TAIL = 1 << 16  # bytes of a log that are sent at once
SERVERAPP = "ServerApp"  # the name under which the log of the ServerApps is listed
STALE = 2.0  # seconds for which an answer of the database is used again, at most
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class NothingThereError(ValueError):
    """The path leads to no run."""


class Run:
    """What the page shows at a time: all trials of a comparison, or a single run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trials: dict[str, TrialNumbers] = {}  # by the names of their folders
        self.complete = False  # whether all lines that were written have been read
        self._tails: dict[str, Tail] = {}

    def read(self) -> None:
        """Read new lines of the histories, for at most about `LONGEST_READ` seconds."""
        end = time.monotonic() + LONGEST_READ
        for name, path in self._histories():
            if name not in self._tails and len(self._tails) < TRIALS:
                self._tails[name], self.trials[name] = Tail(path), TrialNumbers()
        waiting = list(self._tails)
        while waiting and time.monotonic() < end:
            for name in list(waiting):
                tail = self._tails[name]
                files = tail.files
                try:
                    lines = tail.read(PORTION)
                except (OSError, ValueError) as error:
                    self.trials[name].end = {"type": "error", "reason": str(error)}
                    waiting.remove(name)
                    continue
                if tail.files != files:
                    version = self.trials[name].version
                    self.trials[name] = TrialNumbers()
                    self.trials[name].version = version + 1
                for line in lines:
                    self.trials[name].take(printable_line(line))
                if not lines:
                    waiting.remove(name)
        self.complete = not waiting
        self.trials = dict(
            sorted(self.trials.items(), key=lambda each: str(each[1].settings.get("started", "\uffff")))
        )

    def state(self, name: str) -> str:
        """Return the state of a trial: waiting, running, interrupted, finished, stopped or failed."""
        trial = self.trials[name]
        if trial.end is None and not trial.settings:
            return "waiting"
        return state_of(trial.end, self._tails[name].path.parent)

    def _histories(self) -> Iterator[tuple[str, Path]]:
        own = self.folder / FILE_NAME
        if own.is_file():
            yield self.folder.name, own
            return
        for path in sorted(self.folder.glob(f"*/{FILE_NAME}")):
            yield path.parent.name, path


class RunSources:
    """The runs that the page can show: one run, or the runs in a folder, for example those of a server.

    `path`: a history, or the folder of a trial, of a comparison, of several runs, or of a server for devices.
    `wait`: whether the path may hold no run yet.
    """

    def __init__(self, path: Path, database: Path | str | None = None, *, wait: bool = False) -> None:
        path = path.absolute()
        if path.name == FILE_NAME and not path.is_dir():
            path = path.parent
        self.folder = path
        self.is_server = (path / SERVER).is_file()
        self._single = not self.is_server and (
            (path / FILE_NAME).is_file()
            or (path / PLAN).is_file()
            or (any(path.glob(f"*/{FILE_NAME}")) and not _is_shelf(path))
        )
        if not wait and not self._single and not self.is_server and not self.runs():
            raise NothingThereError(
                f"{path}: holds no history ({FILE_NAME}); must be the folder of a run, of a trial or of a "
                "server, or a history"
            )
        found = path / ("superlink.db" if self.is_server else "state/superlink.db")
        self._database = Database(database or (_postgres(path / SERVER) if self.is_server else "") or found)
        self._open: OrderedDict[str, Run] = OrderedDict()
        self._nodes: tuple[float, dict[str, Node] | None] = (-STALE, None)
        self._messages: tuple[float, list[OpenMessage]] = (-STALE, [])

    @property
    def name(self) -> str:
        """The name of the run or the folder that the page shows."""
        return self.folder.name

    def runs(self) -> list[str]:
        """Return the names of the runs, the newest first."""
        if self._single:
            return [self.folder.name]
        found = [
            each.parent.name for pattern in (FILE_NAME, PLAN) for each in self._root.glob(f"*/{pattern}")
        ]
        return sorted(set(found), reverse=True)[:RUNS]

    def run(self, name: str | None) -> Run | None:
        """Return a run with its new lines; the newest run if the name is None or unknown."""
        names = self.runs()
        if not names:
            return None
        name = name if name in names else names[0]
        if name not in self._open:
            self._open[name] = Run(self.folder if self._single else self._root / name)
        self._open.move_to_end(name)
        while len(self._open) > KEPT:
            self._open.popitem(last=False)
        self._open[name].read()
        return self._open[name]

    def nodes(self) -> dict[str, Node] | None:
        """Return the SuperLink's nodes by name; None if its database is missing or cannot be read."""
        if time.monotonic() - self._nodes[0] > STALE:
            self._nodes = (time.monotonic(), self._database.nodes())
        return self._nodes[1]

    def open_messages(self, trial: Path) -> list[OpenMessage]:
        """Return the TRAIN messages of a trial's round under way."""
        if time.monotonic() - self._messages[0] > STALE / 2:
            self._messages = (time.monotonic(), self._database.open_messages())
        return [each for each in self._messages[1] if each.folder and Path(each.folder) == trial]

    def logs(self, run: Run | None) -> dict[str, Path | None]:
        """Return the logs by name: those of the run first, those of clients last.

        The log `SERVERAPP` is in the SuperLink's database and has no path.
        """
        folders = [run.folder, run.folder.parent] if run is not None else []
        found: dict[str, Path | None] = {}
        for folder in dict.fromkeys([*folders, self.folder]):
            for path in sorted((folder / "logs").glob("*.log")):
                if path.stat().st_size:
                    found.setdefault(path.stem, path)
        ranked = sorted(found, key=lambda name: (name.startswith("client-"), name == "watchdog", name))
        if run is not None:
            ranked.sort(key=lambda name: name not in run.trials)
            # Lists the log in the database, unless the log of a trial is a file already: `cohort up` writes
            # the log of each ServerApp into a file with the name of the trial.
            if self._database.exists and not found.keys() & run.trials.keys():
                found[SERVERAPP] = None
                ranked.insert(0, SERVERAPP)
        return {name: found[name] for name in ranked[:LOGS]}

    def log(self, run: Run | None, name: str, start: int | None) -> tuple[int, int, list[str]]:
        """Return new lines of a log, see `read_log`."""
        path = self.logs(run)[name]
        if path is not None:
            return read_log(path, start)
        assert run is not None
        begin, end, lines = self._database.log(run.folder, start)
        return begin, end, [_clean(line) for line in lines]

    @property
    def _root(self) -> Path:
        return self.folder / "runs" if self.is_server else self.folder


def _postgres(settings: Path) -> str:
    """Return the address of a server's PostgreSQL database; "" if its settings name none."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = str(parse_json(settings.read_text()).get("database", ""))
        return found if is_url(found) else ""
    return ""


def read_log(path: Path, start: int | None) -> tuple[int, int, list[str]]:
    """Return the lines of a log after an offset, but at most the last `LOG_TAIL` bytes of the log.

    `path`: the log. A link is not followed. `start`: the offset, in bytes. (default: `LOG_TAIL` bytes before
    the end)

    Returns the offsets of the first line and of the end of the last line; the lines, without control
    characters.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path}: not a file")
        if start is None or not 0 <= start <= status.st_size or status.st_size - start > LOG_TAIL:
            start = max(0, status.st_size - LOG_TAIL)
            file.seek(start)
            if start:
                start += len(file.readline(LOG_TAIL))
        file.seek(start)
        found = file.read(LOG_TAIL)
    whole = found[: found.rfind(b"\n") + 1]
    if not whole and len(found) == LOG_TAIL:
        whole = found  # so many bytes without a line end count as one line
    text = whole.decode(errors="replace")
    lines = [_clean(line) for line in text.split("\n")]
    return start, start + len(whole), lines[:-1] if text.endswith("\n") else lines


def _clean(line: str) -> str:
    """Return a line of a log without colours and control characters."""
    return printable(_COLOUR.sub("", line), 2000, keep="\t")


def _is_shelf(path: Path) -> bool:
    """Return whether a folder holds runs, and is not itself a comparison."""
    if path.name == "runs" or (path.parent / SERVER).is_file():
        return True
    return any(path.glob(f"*/{PLAN}")) or any(path.glob(f"*/*/{FILE_NAME}"))
