"""Writes and reads the history of a run: a JSONL file with everything that is needed to plot the run.

Each line is an object with a ``type``:

======= ===============================================================================================
type    content
======= ===============================================================================================
run     the first line: ``version`` (of this format), every setting of the run, ``started`` (the time),
        ``flwr`` (the version of Flower)
round   one line per round, with ``test_loss`` and ``test_accuracy`` if the model was evaluated after the
        round (setting ``evaluate-every``). Round 0 is the model before training.
        The lines from round 1 on also hold:
        the selection: ``clients`` (indexes in draw order) and, aligned with ``clients``, ``client_ids``,
        ``counts``, ``probabilities``, ``importance``, ``weights``, ``responded``, ``update_norms``,
        ``reported_norms`` (the ‖w_m - w_t‖ that the clients report, divided by the learning rate; before the
        guard), ``train_losses``, ``reply_seconds`` (from the TRAIN messages until the server had the reply),
        ``training_seconds`` and ``batteries`` (%), both as the clients report them; the last three are empty
        if nothing is known;
        only with ``mode = "buffered"`` (otherwise empty, 0 and empty): ``staleness``: how many rounds ended
        while each client trained; ``num_stale``: the number of updates that were rejected as too stale;
        ``in_flight``: ids of the first 1000 clients that train when the round ends;
        ``failures`` and ``clipped``: lists of objects, each with a ``client`` and a ``reason``;
        ``quarantined``: ids of the available clients that were left out because they were in quarantine;
        ``silent``: ids of the clients in ``quarantined`` whose quarantine is for silence in earlier rounds;
        the others are in quarantine for offences;
        ``skipped``: why the round left the model unchanged; empty if it changed the model;
        ``train_loss``: the mean of ``train_losses``, weighted by ``weights``; ``num_available``: the
        number of selectable clients (available, and neither quarantined nor resting); ``seconds``: the time
        from the poll to the new model; ``phases``: the seconds of the parts of the round (``poll``,
        ``train``, ``aggregate``), empty if the engine sends no messages;
        ``absent``: indexes of the clients that were not selectable; null if they are more than 1000;
        ``eligible``: the conditions of the setting ``eligible`` in this round, which all available clients
        meet; ``num_ineligible``: how many clients are online and willing to train, but do not meet the
        conditions;
        ``messages_sent``, ``bytes_sent``, ``messages_received``, ``bytes_received`` since the line of the
        previous round, if the engine sends messages;
        ``group_metrics``: the ``loss`` and ``accuracy`` of each group, on the samples of the group's clients
        that evaluated the model
roster  all known clients, removed ones too, in the order of their indexes: ``client_ids``, ``client_sizes``,
        ``client_groups`` (names, null for none); written before the first round and when clients are added
sizes   the clients whose sizes have changed since the last ``roster`` or ``sizes`` line: ``clients``
        (indexes) and, aligned with ``clients``, ``client_sizes``
lost    some lines could not be written and are missing here: ``lines`` (their number), ``first_round`` and
        ``last_round`` (of the missing ``round`` lines; null if no ``round`` line is missing)
resume  the run was interrupted and continues: ``round`` (the last round whose line was kept; later rounds
        are repeated), ``started``, ``num_rounds``
warning the training diverges or stands still, or no client reports what the selector learns from:
        ``round`` (after which this was noticed), ``reason``; at most one line of each kind per start or
        resume of the run
end     the last line of a run that has finished: ``rounds``, ``seconds``, ``model`` (path), ``best_round``,
        ``reason`` (why before the last planned round, else empty). A resume removes this line
error   the last line of a run that failed or was stopped: ``reason``. A resume keeps this line. A ServerApp
        that was killed or interrupted writes neither ``end`` nor ``error``
======= ===============================================================================================

No other module writes or reads the file. Readers ignore unknown types and keys. NaN is written as null. Texts
may come from clients: `RunHistory.read` replaces control characters in all texts by escapes; `Tail` and
`read_lines` do not.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import asdict, dataclass, field
from logging import WARNING
from typing import TYPE_CHECKING, Any, Self

from flwr.common import log

from strategies.checkpoint import replacing
from strategies.reporters.lines import encoded, printable_line, round_line

from .fields import checked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from strategies import RoundRecord

FILE_NAME = "history.jsonl"
TOLD_TO_END = "told to end"  # the reason of a run that somebody stopped
KEPT = 16 * 1024 * 1024
"""The most bytes of lines that wait in memory while the disk is full. If more wait, the oldest are lost,
except ``run`` and ``resume`` lines."""
VERSION = 2
"""The format of the file; a history of another version is refused."""
Line = dict[str, Any]
_NEVER_LOST = ("run", "resume")


class HistoryWriter:
    """Writes the lines of one run. Each line is written immediately, so another process can follow the run.

    If the disk is full, the run continues. At most `KEPT` bytes of lines wait in memory until the disk has
    room. A line of the type ``lost`` takes the place of lost lines.

    Parameters
    ----------
    path : Path or None
        The file, which must not exist yet. None: nothing is written.

    Attributes
    ----------
    lost : int
        How many lines were lost so far.
    """

    def __init__(self, path: Path | None) -> None:
        self.lost = 0
        self._descriptor: int | None = None
        self._begun = b""  # the unwritten rest of a line of which the first part is written
        self._waiting: deque[_Waiting] = deque()  # the lines that follow the partly written line
        self._gap: _Gap | None = None  # the lost lines, older than each waiting line that may be lost
        if path is not None:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)

    @classmethod
    def resume(cls, path: Path, round: int, run: Mapping[str, Any]) -> HistoryWriter:
        """Continue the history of a run after a round, with a ``resume`` line.

        All lines after the line of this round are removed, since the later rounds are repeated; only
        ``resume`` and ``error`` lines stay. ``end`` lines and damaged lines are removed everywhere, and so is
        an incomplete last line. The file is replaced as a whole or not at all.

        Parameters
        ----------
        path : Path
            The file; created if it is missing.
        round : int
            The last round whose line stays; 0: round 0 is repeated, too.
        run : mapping
            The content of a ``run`` line, which is written if the file has no line. The ``resume`` line gets
            its ``started`` and ``num_rounds``.

        Raises
        ------
        OSError
            If the file cannot be read or written.
        ValueError
            If the file is a history of another version.
        """
        lines = _until(read_lines(path), round) or [{"type": "run", "version": VERSION, **run}]
        again = {"type": "resume", "round": round, "started": run["started"], "num_rounds": run["num_rounds"]}
        with replacing(path) as file:
            file.writelines(map(encoded, [*lines, again]))
        history = cls(None)
        history._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        return history

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Flower interrupts a ServerApp whose task the SuperLink has given up, for example after a restart.
        # The history then ends as after a kill, without a last line, so that the run is resumed.
        if error is not None and not isinstance(error, KeyboardInterrupt):
            stopped = isinstance(error, SystemExit)
            self.write("error", reason=TOLD_TO_END if stopped else f"{type(error).__name__}: {error}")
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def begin(self, run: Mapping[str, Any]) -> None:
        """Append the ``run`` line."""
        self.write("run", version=VERSION, **run)

    def write(self, kind: str, **values: Any) -> None:
        """Append one line durably: it survives a power failure."""
        self._write({"type": kind, **values})

    def _write(self, line: Line) -> None:
        if self._descriptor is None:
            return
        kind = line["type"]
        round = line.get("round") if kind == "round" else None
        self._waiting.append(_Waiting(encoded(line), round, kind in _NEVER_LOST))
        try:
            while self._begun or self._gap or self._waiting:
                if not self._begun:
                    self._begun = self._next()
                self._begun = self._begun[os.write(self._descriptor, self._begun) :]
            os.fsync(self._descriptor)
        except OSError as error:
            self._drop()
            lost = f"; {self._gap} are lost" if self._gap else ""
            log(
                WARNING,
                "THE HISTORY CANNOT BE WRITTEN; its lines wait in memory%s: %s",
                lost,
                error.strerror,
            )

    def _next(self) -> bytes:
        """Return the next line to be written."""
        if self._gap is None or (self._waiting and self._waiting[0].needed):
            return self._waiting.popleft().text
        gap, self._gap = self._gap, None
        return encoded({"type": "lost", **asdict(gap)})

    def _drop(self) -> None:
        """Drop the oldest lines beyond `KEPT` bytes."""
        size = sum(len(line.text) for line in self._waiting)
        kept: deque[_Waiting] = deque()
        for line in self._waiting:
            if size <= KEPT or line.needed:
                kept.append(line)
                continue
            size -= len(line.text)
            self.lost += 1
            self._gap = (self._gap or _Gap()).with_(line)
        self._waiting = kept

    def write_round(self, record: RoundRecord, client_ids: Sequence[str], **more: Any) -> None:
        """Append the line of a round >= 1; ``client_ids`` are the ids (M,) of all known clients."""
        self._write(round_line(record, client_ids.__getitem__, **more))


@dataclass(frozen=True)
class _Waiting:
    """A line of the history that is not written yet."""

    text: bytes
    round: int | None  # the round, if the line is of the type ``round``
    needed: bool  # whether the history cannot be read without this line


@dataclass(frozen=True)
class _Gap:
    """The lines that are lost at one place of the history."""

    lines: int = 0
    first_round: int | None = None
    last_round: int | None = None

    def with_(self, line: _Waiting) -> _Gap:
        first = line.round if self.first_round is None else self.first_round
        return _Gap(self.lines + 1, first, self.last_round if line.round is None else line.round)

    def __str__(self) -> str:
        rounds = f" (rounds {self.first_round} to {self.last_round})" if self.first_round is not None else ""
        return f"{self.lines} lines{rounds}"


class VersionError(ValueError):
    """A history has the format of another version of Cohort."""


@dataclass
class RunHistory:
    """The content of a history so far. The history can be read while the run goes on.

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
    client_groups : list of str or None
        (M,) names of the clients' groups, None for a client without a group.
    rounds : list of dict
        The rounds, from round 0 (the model before training) on.
    end : dict or None
        The last line, once the run has finished, failed or was stopped; None again when the run is resumed.
    starts : int
        How many times the run was started or resumed.
    """

    path: Path
    settings: Line = field(default_factory=dict)
    client_ids: list[str] = field(default_factory=list)
    client_sizes: list[float] = field(default_factory=list)
    client_groups: list[str | None] = field(default_factory=list)
    rounds: list[Line] = field(default_factory=list)
    end: Line | None = None
    starts: int = 0
    _offset: int = 0  # bytes read
    _lines: int = 0  # lines read
    _file: int | None = None  # inode of the file that was read last

    @property
    def label(self) -> str:
        """The name of the run in tables: the selector, with its settings if some were given."""
        if not self.settings:
            return self.path.parent.name
        name, given = self.settings.get("selector", "?"), self.settings.get("selector_settings")
        return f"{name} ({given})" if given else name

    @property
    def trained(self) -> list[Line]:
        """The rounds in which clients trained: all but round 0."""
        return [line for line in self.rounds if line["round"] > 0]

    @property
    def finished(self) -> bool:
        """Whether the run ended by itself, for example after its last round or at its target accuracy."""
        return self.end is not None and self.end["type"] == "end"

    @property
    def stopped(self) -> bool:
        """Whether somebody told the run to end: its last line is ``error`` with the reason `TOLD_TO_END`."""
        return self.end is not None and self.end.get("reason") == TOLD_TO_END

    def read(self, *, skip_damaged: bool = False) -> list[Line]:
        """Read the lines that were written since the last call and return them.

        If the last line has no newline yet, it is still being written, and the next call reads it. A resume
        replaces the file of the run. The next call then reads the whole new file, and returns the lines from
        the ``resume`` line on.

        Parameters
        ----------
        skip_damaged : bool (default: False)
            True: damaged lines are left out, with one warning. False: a damaged line raises an error. A line
            is damaged if it is complete, but not a JSON object of the known form (see `server.fields`), or if
            it contradicts earlier lines.

        Raises
        ------
        ValueError
            If a line is damaged and ``skip_damaged`` is False, or if the history is of another version. The
            message names the file and the number of the line. The next call continues after this line.
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
        lines, problems = [], []
        for text in complete.split(b"\n")[:-1]:
            self._offset += len(text) + 1
            self._lines += 1
            try:
                line = _parsed(self.path, text)
                if b"\\" in text:
                    line = printable_line(line)
                self._take(line)
            except VersionError:
                raise
            except ValueError as error:
                problem = f"{self.path}, line {self._lines}: not a line of a history: {error}: {text[:80]!r}"
                if not skip_damaged:
                    raise ValueError(problem) from error
                problems.append(problem)
                continue
            lines.append(line)
        if problems:
            more = f" ({len(problems) - 1} more like this)" if len(problems) > 1 else ""
            log(WARNING, "%s; the line is left out%s", problems[0], more)
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
                count = len(line["client_ids"])  # earlier rounds may hold indexes >= count
                self.client_ids = line["client_ids"] + self.client_ids[count:]
                self.client_groups = line["client_groups"] + self.client_groups[count:]
                self.client_sizes = [*map(_size, line["client_sizes"]), *self.client_sizes[count:]]
            case "sizes":
                self._check_clients(line)
                if not self.client_ids:
                    raise ValueError("there is no roster yet")
                for client, size in zip(line["clients"], line["client_sizes"], strict=True):
                    self.client_sizes[client] = _size(size)
            case "round":
                self._check_clients(line)
                if self.rounds and line["round"] < self.rounds[-1]["round"]:
                    raise ValueError(f"round {line['round']} follows round {self.rounds[-1]['round']}")
                self.rounds.append(line)
            case "end" | "error":
                self.end = line

    def _check_clients(self, line: Line) -> None:
        if self.client_ids and max(line.get("clients", ()), default=-1) >= len(self.client_ids):
            raise ValueError(f"clients holds {max(line['clients'])}, and {len(self.client_ids)} are known")


class Tail:
    """Reads the lines of a history in parts and does not keep them, so it needs little memory.

    A resume of the run replaces the file. Then the next call of `read` begins again with the first line.

    Parameters
    ----------
    path : Path
        The file. It may be missing.

    Attributes
    ----------
    files : int
        How many files were read from the first line on: more than one after a resume.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = 0
        self._offset = 0  # bytes read
        self._file: int | None = None  # inode of the file that was read last

    def read(self, most: int = 1 << 22) -> list[Line]:
        """Return the next complete lines, and leave out damaged lines; an empty list if there are none.

        Parameters
        ----------
        most : int (default: 4 MiB)
            How many bytes to read. The last line is read to its end.

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If the history is of another version.
        """
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            now = os.fstat(file.fileno())
            if now.st_ino != self._file or now.st_size < self._offset:
                self._file, self._offset = now.st_ino, 0
                self.files += 1
            file.seek(self._offset)
            written = file.read(most)
            if len(written) == most and not written.endswith(b"\n"):
                written += file.readline()
        complete = written[: written.rfind(b"\n") + 1]
        self._offset += len(complete)
        lines = []
        for text in complete.split(b"\n")[:-1]:
            try:
                lines.append(_parsed(self.path, text))
            except VersionError:
                raise
            except ValueError:
                continue
        return lines


def read_run(folder: Path) -> list[RunHistory]:
    """Read the history of a run, or all histories of a comparison, in the order in which the runs began.

    Parameters
    ----------
    folder : Path
        The folder of a run, of a trial or of a comparison.

    Raises
    ------
    ValueError
        If the folder holds no history, or if a history is of another version.
    """
    own = folder / FILE_NAME
    runs = [RunHistory(path) for path in ([own] if own.exists() else sorted(folder.glob(f"*/{FILE_NAME}")))]
    if not runs:
        raise ValueError(
            f"{folder}: holds no history ({FILE_NAME}); must be the folder of a run, a trial or a comparison"
        )
    for run in runs:
        run.read(skip_damaged=True)
    return sorted(runs, key=lambda run: str(run.settings.get("started")))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a history that have a known form; an empty list if there is no file.

    Raises
    ------
    ValueError
        If the file is a history of another version.
    """
    lines = []
    for text in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        try:
            lines.append(_parsed(path, text))
        except VersionError:
            raise
        except ValueError:
            continue
    return lines


def _parsed(path: Path, text: bytes) -> Line:
    """Parse a text as one line of a history, and return the line.

    Raises
    ------
    VersionError
        If the line says that the history is of another version.
    ValueError
        If the text is not JSON, or if a field is of the wrong kind.
    """
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("must be JSON") from None
    if isinstance(line, dict) and line.get("type") == "run":
        _check_version(path, line)
    return checked(line)


def _size(value: float | None) -> float:
    """Return the samples that a client holds; 0 if the number is not known."""
    return 0.0 if value is None else max(0.0, value)


def _check_version(path: Path, line: Line) -> None:
    if line.get("version") != VERSION:
        raise VersionError(
            f"{path}: written by another version of Cohort (format {line.get('version', 1)}, this one reads "
            f"{VERSION}); start a new run"
        )


def _until(lines: list[dict[str, Any]], last: int) -> list[dict[str, Any]]:
    """Return the lines that stay in the history when the run continues after the round ``last``.

    These are all lines up to the line of this round, and the ``resume`` and ``error`` lines after it. ``end``
    lines never stay.
    """
    rounds = [at for at, line in enumerate(lines) if line["type"] == "round" and 0 < line["round"] <= last]
    cut = rounds[-1] + 1 if rounds else 1  # the first line, the run's settings, always stays
    return [
        line
        for at, line in enumerate(lines)
        if line["type"] in ("resume", "error") or (at < cut and line["type"] != "end")
    ]
