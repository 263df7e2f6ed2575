"""The results of all rounds on disk: the metrics in the `Result` that `SelectionStrategy.start` returns.

Each round appends its results, one a line. Each checkpoint stores how many bytes from the start of the file
belong to it, and the checksum of these bytes. So all checkpoints of a run share one file, and the time to
save a round does not grow with earlier rounds.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20  # how many bytes are read at once


class ResultsFile:
    """A file of JSON values, one per line, to which a run appends after each round."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The number of valid bytes from the start of the file. Later bytes are from an interrupted write, or
        # from rounds that the run repeats.
        self._length = 0
        self._hash = hashlib.sha256()  # the hash of the valid bytes
        self._waiting = b""  # lines that are not on disk yet

    def write(self, lines: Iterable[Any] = ()) -> dict[str, Any]:
        """Append JSON values and fsync the file. If earlier calls failed, their values are written first.

        Return the ``length`` (in bytes) and ``checksum`` of the file. A checkpoint must store both; `find`
        needs them. If the values cannot be written (OSError), they are kept, and the next call tries again.
        If a value is not JSON (TypeError, ValueError), none of ``lines`` is kept.
        """
        self._waiting += b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        if self._waiting:
            self._append()
        return {"length": self._length, "checksum": self._hash.hexdigest()}

    def _append(self) -> None:
        is_new = not self.path.exists()
        with self.path.open("wb" if is_new else "r+b") as file:
            if file.seek(0, os.SEEK_END) < self._length:  # shorter than its valid bytes: begin anew
                self._length, self._hash = 0, hashlib.sha256()
            file.truncate(self._length)
            file.seek(self._length)
            file.write(self._waiting)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self.path.parent)
        self._length += len(self._waiting)
        self._hash.update(self._waiting)
        self._waiting = b""

    def find(self, stored: Mapping[str, Any]) -> str:
        """Go back to the lines that belong to a checkpoint. The next `write` with values deletes later lines.

        `stored` is what `write` returned for the checkpoint. Return what is missing or damaged in these
        lines; "" if all are intact, or if the whole file is missing, because the run can continue without
        earlier results.
        """
        length, found = int(stored["length"]), hashlib.sha256()
        if not self.path.exists():
            self._length, self._hash, self._waiting = 0, found, b""
            return ""
        with self.path.open("rb") as file:
            left = length
            while left and (part := file.read(min(left, _CHUNK))):
                found.update(part)
                left -= len(part)
        if left:
            return f"{self.path.name} is too short: the last {left} bytes of its results are missing"
        if found.hexdigest() != stored["checksum"]:
            return f"{self.path.name} is damaged: its first {length} bytes have another checksum"
        self._length, self._hash, self._waiting = length, found, b""
        return ""

    def read(self) -> list[Any]:
        if not self._length:
            return []
        with self.path.open("rb") as file:
            return [json.loads(line) for line in file.read(self._length).splitlines()]


def sync_folder(path: Path) -> None:
    """Fsync a folder, so that a new or renamed file in it keeps its name after a power failure."""
    if sys.platform != "win32":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
