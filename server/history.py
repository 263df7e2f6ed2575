"""The history of a run: JSONL, one object a line, everything needed to redraw it.

====== ================================================================================================
type   what
====== ================================================================================================
run    the first line: every setting of the run, when it started, the versions
round  one line a round; round 0 is the model before training: ``test_loss``, ``test_accuracy``, and from
       round 1 on who was chosen (``clients``: indexes in draw order, and aligned with it ``client_ids``,
       ``counts``, ``probabilities``, ``weights``, ``responded``, ``update_norms``, ``train_losses``),
       ``failures``, ``clipped`` (each a ``client`` and a ``reason``), ``quarantined`` (ids of those who were here
       but put aside for bad reports), ``skipped`` (why the round changed nothing, empty if it did),
       ``train_loss``, ``num_available``, ``seconds``
roster who is enrolled, in the order of their indexes: ``client_ids``, ``client_sizes``; written before
       the first round and again when it has changed
resume the run was ended in its midst and goes on after ``round``, whose successors are written anew:
       ``started``, ``num_rounds``
end    the last line: ``rounds``, ``seconds``, ``model`` (path), ``reason`` if it ended early
error  the run failed: ``reason``; the last line, unless a resume follows
====== ================================================================================================

Readers ignore types and keys that they do not know. NaN is written as null.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from logging import WARNING
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from flwr.common import log

from strategies import RoundRecord
from strategies.checkpoint import replacing

FILE_NAME = "history.jsonl"


class History:
    """Writes the lines of one run, each at once so that others can follow.

    When the disk is full the run goes on: lines are kept until there is room.

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
    def resume(cls, path: Path, round: int, run: Mapping[str, Any]) -> "History":
        """Go on with the history of a run after a round, and say so in a ``resume`` line.

        Later rounds, which are to come again, are dropped, and so is what a crash left of a last line. All
        that happens at once or not at all.

        Parameters
        ----------
        path : Path
            The file; made if it is missing.
        round : int
            The last round that counts; 0 if the run begins again.
        run : mapping
            What a ``run`` line would say. It becomes one if the file has none.

        Raises
        ------
        OSError
            If the file cannot be read or written.
        """
        lines = _until(read_lines(path), round) or [{"type": "run", **run}]
        again = {"type": "resume", "round": round, "started": run["started"], "num_rounds": run["num_rounds"]}
        with replacing(path) as file:
            file.writelines(map(_encoded, [*lines, again]))
        history = cls(None)
        history._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        return history

    def __enter__(self) -> "History":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            told = isinstance(error, SystemExit)
            self.write("error", reason="told to end" if told else f"{type(error).__name__}: {error}")
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def write(self, kind: str, **values: Any) -> None:
        """Append one line, and see that it stays even if the power fails."""
        if self._descriptor is None:
            return
        self._waiting += _encoded({"type": kind, **values})
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._descriptor, self._waiting) :]
            os.fsync(self._descriptor)
        except OSError as error:
            log(WARNING, "THE HISTORY CANNOT BE WRITTEN, and waits until it can: %s", error.strerror)

    def write_round(self, record: RoundRecord, client_ids: Sequence[str], **more: Any) -> None:
        """Append the line of a round from 1 on; ``client_ids`` are those of the whole roster."""

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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a history that are whole; none if there is no file."""
    lines = []
    for text in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and "type" in line:
            lines.append(line)
    return lines


def _until(lines: list[dict[str, Any]], last: int) -> list[dict[str, Any]]:
    """Return what stays when the run goes on after a round: all up to it, then what befell the run."""
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
