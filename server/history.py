"""The history of a run: a JSONL file with everything needed to redraw the run. Its only writer and reader.

Each line is an object with a ``type``:

====== ===============================================================================================
type   content
====== ===============================================================================================
run    the first line: ``version`` of this format, every setting of the run, ``started``, ``flwr``
round  one line per round. Round 0 is the model before training: ``test_loss``, ``test_accuracy``. From
       round 1 on also the selection: ``clients`` (indexes in draw order) and, aligned with it,
       ``client_ids``, ``counts``, ``probabilities``, ``weights``, ``responded``, ``update_norms``,
       ``train_losses``; ``failures`` and ``clipped`` (each a ``client`` and a ``reason``);
       ``quarantined`` (ids of clients that were online but not selectable); ``skipped`` (why the round
       changed nothing; empty if it did); ``train_loss``, ``num_available``, ``seconds``
roster all registered clients in the order of their indexes: ``client_ids``, ``client_sizes``; written
       before the first round and after every change
resume the run was interrupted and continues after ``round``; later rounds are written anew:
       ``started``, ``num_rounds``
end    the last line: ``rounds``, ``seconds``, ``model`` (path), ``reason`` if the run ended early
error  the run failed: ``reason``; the last line, unless a resume follows
====== ===============================================================================================

Readers ignore unknown types and keys. NaN is written as null.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from logging import WARNING
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from flwr.common import log

from strategies.checkpoint import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from strategies import RoundRecord

FILE_NAME = "history.jsonl"
VERSION = 2
"""The format of the file; a history of another version is refused."""
Line = dict[str, Any]


class HistoryWriter:
    """Writes the lines of one run, each at once so that others can follow.

    On a full disk the run continues: lines are kept until there is room.

    Parameters
    ----------
    path : Path or None
        The file, which must not exist yet; None writes nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._descriptor: int | None = None
        self._waiting = b""  # what could not be written yet
        if path is not None:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)

    @classmethod
    def resume(cls, path: Path, round: int, run: Mapping[str, Any]) -> HistoryWriter:
        """Continue the history of a run after a round, with a ``resume`` line.

        Later rounds, which will come again, are dropped, and so is an incomplete last line. All this happens
        at once or not at all.

        Parameters
        ----------
        path : Path
            The file; created if it is missing.
        round : int
            The last round that counts; 0 if the run starts anew.
        run : mapping
            The content of a ``run`` line, which is written if the file has none.

        Raises
        ------
        OSError
            If the file cannot be read or written.
        ValueError
            If it is a history of another version.
        """
        lines = _until(read_lines(path), round) or [{"type": "run", "version": VERSION, **run}]
        again = {"type": "resume", "round": round, "started": run["started"], "num_rounds": run["num_rounds"]}
        with replacing(path) as file:
            file.writelines(map(_encoded, [*lines, again]))
        history = cls(None)
        history._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        return history

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            stopped = isinstance(error, SystemExit)
            self.write("error", reason="told to end" if stopped else f"{type(error).__name__}: {error}")
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def begin(self, run: Mapping[str, Any]) -> None:
        """Append the ``run`` line."""
        self.write("run", version=VERSION, **run)

    def write(self, kind: str, **values: Any) -> None:
        """Append one line durably: it survives a power failure."""
        if self._descriptor is None:
            return
        self._waiting += _encoded({"type": kind, **values})
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._descriptor, self._waiting) :]
            os.fsync(self._descriptor)
        except OSError as error:
            log(WARNING, "THE HISTORY CANNOT BE WRITTEN; its lines are kept until it can: %s", error.strerror)

    def write_round(self, record: RoundRecord, client_ids: Sequence[str], **more: Any) -> None:
        """Append the line of a round from 1 on; ``client_ids`` are those of all registered clients."""

        def by_id(reasons: Mapping[int, str]) -> list[dict[str, str]]:
            return [{"client": client_ids[client], "reason": why} for client, why in reasons.items()]

        self.write(
            "round",
            round=record.round,
            num_available=record.num_available,
            clients=record.selection.clients,
            client_ids=[client_ids[client] for client in record.selection.clients],
            counts=record.selection.counts,
            probabilities=record.selection.probabilities,
            weights=record.weights,
            responded=record.feedback.responded,
            update_norms=record.feedback.update_norms,
            train_losses=record.feedback.losses,
            train_loss=record.train_loss,
            failures=by_id(record.failures),
            clipped=by_id(record.clipped),
            skipped=record.skipped,
            quarantined=[client_ids[client] for client in record.quarantined],
            seconds=record.seconds,
            **more,
        )


class VersionError(ValueError):
    """A history has the format of another version of Cohort."""


@dataclass
class RunHistory:
    """What a history tells so far about its run; it can be followed while it grows.

    Attributes
    ----------
    path : Path
        The file; its folder is named after the run.
    settings : dict
        The settings of the run.
    client_ids : list of str
        (M,) durable identities in the order of the clients' indexes.
    client_sizes : list of float
        (M,) samples held.
    rounds : list of dict
        The rounds, from round 0 (the model before training) on.
    end : dict or None
        The last line, once the run is over; None again when it is resumed.
    starts : int
        How often the run began or was resumed.
    """

    path: Path
    settings: Line = field(default_factory=dict)
    client_ids: list[str] = field(default_factory=list)
    client_sizes: list[float] = field(default_factory=list)
    rounds: list[Line] = field(default_factory=list)
    end: Line | None = None
    starts: int = 0
    _offset: int = 0  # bytes read
    _file: int | None = None  # inode of the file that they were read from

    @property
    def label(self) -> str:
        """The name of the run in tables: its selector with the given settings."""
        if not self.settings:
            return self.path.parent.name
        given = self.settings["selector_settings"]
        return f"{self.settings['selector']} ({given})" if given else str(self.settings["selector"])

    @property
    def trained(self) -> list[Line]:
        """The rounds in which clients trained: all but round 0."""
        return [line for line in self.rounds if line["round"] > 0]

    @property
    def finished(self) -> bool:
        """Whether the run reached its planned end."""
        return self.end is not None and self.end["type"] == "end"

    def read(self) -> list[Line]:
        """Read the lines that were written since the last call and return them.

        A last line without its newline is still being written and left for the next call. A resumed run
        replaces its file: then everything is read again, and the lines since the resume are returned.

        Raises
        ------
        ValueError
            If a complete line is not a JSON object of the known form, or of another version.
        """
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            now = os.fstat(file.fileno()).st_ino
            replaced = self._file not in (None, now)
            if replaced:
                vars(self).update(vars(RunHistory(self.path)))
            self._file = now
            file.seek(self._offset)
            written = file.read()
        complete = written[: written.rfind(b"\n") + 1]
        self._offset += len(complete)
        lines = []
        for text in complete.splitlines():
            try:
                line = json.loads(text)
                _check_version(self.path, line)
                self._take(line)
            except VersionError:
                raise
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self.path}: not a line of a history: {text[:80]!r}") from error
            lines.append(line)
        if replaced:
            since = max((at for at, line in enumerate(lines) if line["type"] == "resume"), default=0)
            return lines[since:]
        return lines

    def _take(self, line: Line) -> None:
        match line["type"]:
            case "run":
                self.settings = line
                self.starts += 1
            case "resume":
                self.settings = {**self.settings, "num_rounds": line["num_rounds"]}
                self.rounds = [each for each in self.rounds if each["round"] <= line["round"]]
                self.end = None
                self.starts += 1
            case "roster":
                self.client_ids, self.client_sizes = line["client_ids"], line["client_sizes"]
            case "round":
                self.rounds.append(line)
            case "end" | "error":
                self.end = line


def read_run(folder: Path) -> list[RunHistory]:
    """Read all histories below the folder of a comparison, in the order in which the runs began.

    Raises
    ------
    ValueError
        If there is none, or one of them is damaged.
    """
    runs = [RunHistory(path) for path in sorted(folder.glob(f"*/{FILE_NAME}"))]
    if not runs:
        raise ValueError(
            f"{folder}: holds no history (*/{FILE_NAME}); it must be the folder of a `cohort up`"
        )
    for run in runs:
        run.read()
    return sorted(runs, key=lambda run: str(run.settings.get("started")))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a history; none if there is no file.

    Raises
    ------
    ValueError
        If it is a history of another version.
    """
    lines = []
    for text in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and "type" in line:
            lines.append(line)
            _check_version(path, line)
    return lines


def _check_version(path: Path, line: Line) -> None:
    if line["type"] == "run" and line.get("version") != VERSION:
        raise VersionError(
            f"{path}: written by another version of Cohort (format {line.get('version', 1)}, this one reads "
            f"{VERSION}); start a new run"
        )


def _until(lines: list[dict[str, Any]], last: int) -> list[dict[str, Any]]:
    """Return the lines that stay when the run continues after a round: up to it, then resumes and errors."""
    rounds = [at for at, line in enumerate(lines) if line["type"] == "round" and 0 < line["round"] <= last]
    cut = rounds[-1] + 1 if rounds else 1  # the run's settings stay in any case
    return [
        line
        for at, line in enumerate(lines)
        if line["type"] in ("resume", "error") or (at < cut and line["type"] != "end")
    ]


def _encoded(line: Mapping[str, Any]) -> bytes:
    return (json.dumps(_plain(dict(line)), allow_nan=False) + "\n").encode()


def _plain(value: Any) -> Any:
    """Turn NumPy values into what JSON has."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
