"""The history of a run: JSONL, one object a line, everything needed to redraw it.

====== ================================================================================================
type   what
====== ================================================================================================
run    the first line: every setting of the run, when it started, the versions
round  one line a round; round 0 is the model before training: ``test_loss``, ``test_accuracy``, and from
       round 1 on who was chosen (``clients``: indexes in draw order, and aligned with it ``client_ids``,
       ``counts``, ``probabilities``, ``weights``, ``responded``, ``update_norms``, ``train_losses``),
       ``failures``, ``train_loss``, ``num_available``, ``seconds``
roster who is enrolled, in the order of their indexes: ``client_ids``, ``client_sizes``; written before
       the first round and again when it has changed
end    the last line: ``rounds``, ``seconds``, ``model`` (path)
error  the last line of a run that failed: ``reason``
====== ================================================================================================

Readers ignore types and keys that they do not know. NaN is written as null.
"""

import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from strategies import RoundRecord


class History:
    """Writes the lines of one run, each flushed at once so that others can follow.

    Parameters
    ----------
    path : Path or None
        The file, which must not exist yet; None writes nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("x", encoding="utf-8")

    def __enter__(self) -> "History":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.write("error", reason=f"{type(error).__name__}: {error}")
        if self._file is not None:
            self._file.close()

    def write(self, kind: str, **values: Any) -> None:
        """Append one line."""
        if self._file is not None:
            self._file.write(json.dumps(_plain({"type": kind, **values}), allow_nan=False) + "\n")
            self._file.flush()

    def write_round(self, record: RoundRecord, client_ids: list[str], **test: float) -> None:
        """Append the line of a round from 1 on; ``client_ids`` are those of the whole roster."""
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
            failures=[
                {"client": client_ids[client], "reason": why} for client, why in record.failures.items()
            ],
            seconds=record.seconds,
            **test,
        )


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
