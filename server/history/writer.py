"""Writes the history of a run; keeps lines in memory while the disk is full; cuts a history for a resume."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from logging import WARNING
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flwr.common import log

from strategies import RoundRecord
from strategies.checkpoint import replacing
from strategies.clients.printable import counted
from strategies.reporters.round_line import encoded, round_line

from .parsing import TOLD_TO_END, VERSION, Line, read_lines

KEPT = 16 * 1024 * 1024
"""The most bytes of lines that wait in memory while the disk is full. If more wait, the oldest are lost,
except ``run`` and ``resume`` lines."""
_NEVER_LOST = ("run", "resume")


class HistoryWriter:
    """Writes the lines of one run. Each line is written immediately, so another process can follow the run.

    If the disk is full, the run continues. At most `KEPT` bytes of lines wait in memory until the disk has
    room. A line of the type ``lost`` takes the place of lost lines. The file must not exist yet; without a
    path, nothing is written.
    """

    def __init__(self, path: Path | None) -> None:
        self.lost = 0  # how many lines were lost so far
        self._descriptor: int | None = None
        self._begun = b""  # the unwritten rest of a partly written line
        self._waiting: deque[_Waiting] = deque()  # the lines that follow the partly written line
        # The lost lines that no ``lost`` line names yet. Of the earlier lines, only ``run`` and ``resume``
        # lines can still wait.
        self._gap: _Gap | None = None
        if path is not None:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)

    @classmethod
    def resume(cls, path: Path, round: int, run: Mapping[str, Any]) -> HistoryWriter:
        """Continue the history of a run after a round, with a ``resume`` line.

        All lines after the line of this round are removed, since the later rounds are repeated; only
        ``resume`` and ``error`` lines stay. ``end`` lines and damaged lines are removed everywhere, and so is
        an incomplete last line. The file is replaced as a whole or not at all.

        ``round`` is the last round whose line stays; with 0, round 0 is repeated, too. ``run`` is the content
        of a ``run`` line, which is written if the file is missing or has no line. The ``resume`` line gets
        ``started`` and ``num_rounds`` from the same content.

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
        # If the SuperLink has given up a ServerApp, for example because the SuperLink was restarted, Flower
        # interrupts the ServerApp. The history then ends as after a kill, without a last line, so that the
        # run is resumed.
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
            lost = f"; lost: {self._gap}" if self._gap else ""
            log(WARNING, f"THE HISTORY CANNOT BE WRITTEN; its lines wait in memory{lost}: {error.strerror}")

    def _next(self) -> bytes:
        """Return the next line to be written."""
        if self._gap is None or (self._waiting and self._waiting[0].needed):
            return self._waiting.popleft().text
        gap, self._gap = self._gap, None
        return encoded({"type": "lost", **asdict(gap)})

    def _drop(self) -> None:
        """Drop the oldest waiting lines until at most `KEPT` bytes wait; needed lines are never dropped."""
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

    def write_round(self, record: RoundRecord, id_of: Callable[[int], str], **more: Any) -> None:
        """Append the line of a round >= 1; ``id_of`` returns the identity of a client."""
        self._write(round_line(record, id_of, **more))


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
        return f"{counted(self.lines, 'line')}{rounds}"


def _until(lines: list[Line], last: int) -> list[Line]:
    """Return the lines that stay in the history when the run continues after ``last``, see `resume`."""
    rounds = [at for at, line in enumerate(lines) if line["type"] == "round" and 0 < line["round"] <= last]
    cut = rounds[-1] + 1 if rounds else 1  # the first line, the run's settings, always stays
    return [
        line
        for at, line in enumerate(lines)
        if line["type"] in ("resume", "error") or (at < cut and line["type"] != "end")
    ]
