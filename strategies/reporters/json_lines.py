"""A reporter that writes a JSONL file: one JSON object per line, one line per round."""

import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..checkpoint import replacing
from ..json_text import parse_json
from .base import Reporter, RoundReport, RunInfo
from .round_line import encoded, printable_line, round_line


class JSONLines(Reporter):
    """Writes all rounds of a run to one file, and reads them back.

    Each line is an object with a ``type``: ``run`` (the settings), ``round``, ``resume``, ``end`` or
    ``error``. A line ``round`` has ``metrics``, ``train_metrics``, ``client_metrics`` and ``group_metrics``.
    From round 1 on, the line also has the entries of `round_line`, which `server.history` describes. A resume
    removes the lines of the rounds that are trained again.

    Parameters
    ----------
    path : str or Path
        The file. A run that begins refuses a file that holds the rounds of another run.

    Examples
    --------
    >>> reporter = JSONLines("runs/7/rounds.jsonl")
    >>> losses = [line["train_loss"] for line in reporter.read() if line["type"] == "round"]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def read(self) -> list[dict[str, Any]]:
        """Return the lines of the file, with texts that are safe to print. Damaged lines are left out."""
        return [printable_line(line) for line in self._lines()]

    def begin(self, run: RunInfo) -> None:
        if any(line.get("round", 0) > 0 for line in self._lines()):
            raise FileExistsError(f"{self.path}: holds the rounds of another run; give another path")
        self._write_all([self._head(run)])

    def resume(self, run: RunInfo, round: int) -> None:
        def stays(line: dict[str, Any]) -> bool:
            return bool(line["type"] != "end" and (line["type"] != "round" or line["round"] <= round))

        lines = [line for line in self._lines() if stays(line)] or [self._head(run)]
        again = {"type": "resume", "round": round, "started": _now(), "num_rounds": run.num_rounds}
        self._write_all([*lines, again])

    def round(self, report: RoundReport) -> None:
        more = {
            "metrics": report.metrics,
            "train_metrics": report.train_metrics,
            "client_metrics": report.client_metrics,
            "group_metrics": report.group_metrics,
            **(asdict(report.traffic) if report.traffic else {}),
        }
        if report.record is None:
            self._append({"type": "round", "round": report.round, **more})
        else:
            self._append(round_line(report.record, report.client_ids.__getitem__, **more))

    def end(self, round: int, reason: str) -> None:
        self._append({"type": "end", "rounds": round, "reason": reason})

    def failed(self, round: int, reason: str) -> None:
        self._append({"type": "error", "rounds": round, "reason": reason})

    def _head(self, run: RunInfo) -> dict[str, Any]:
        return {"type": "run", "started": _now(), **self._shown(run)}

    def _lines(self) -> list[dict[str, Any]]:
        found = []
        for text in self.path.read_bytes().split(b"\n")[:-1] if self.path.exists() else ():
            try:
                line = parse_json(text)
            except ValueError:
                continue
            if isinstance(line, dict) and "type" in line and isinstance(line.get("round", 0), int):
                found.append(line)
        return found

    def _write_all(self, lines: list[dict[str, Any]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as file:
            file.writelines(map(encoded, lines))

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(encoded(line))
            file.flush()
            os.fsync(file.fileno())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
