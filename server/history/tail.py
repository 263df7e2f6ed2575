"""Follows the history of a run in little memory: reads its new lines, and keeps none of them."""

import os
from pathlib import Path

from .parsing import Line, undamaged


class Tail:
    """Reads the lines of a history in parts and does not keep them, so it needs little memory.

    The file may be missing. A resume of the run replaces the file. Then the next call of `read` begins again
    with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = 0  # how often the history was read from its first line on
        self._offset = 0  # bytes read
        self._file: int | None = None  # inode of the file that was read last

    def read(self, most: int = 1 << 22) -> list[Line]:
        """Return the next complete lines without damaged ones; an empty list if there are none.

        At most ``most`` bytes are read, and the last line to its end.

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
        self._offset += written.rfind(b"\n") + 1
        return undamaged(self.path, written)
