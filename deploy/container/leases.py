"""Leases on client names: they decide which container is which client.

`docker compose up --scale client=N` starts identical containers. Each takes a lease on a client's name, and
with it the client's key, Flower node and part of the data. A lease is a locked file. The kernel releases the
lock whenever the container ends, so no two containers are ever the same client. The file names the last
holder, so a restarted container becomes the same client again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Lease:
    """A name that belongs to this process until the process ends or calls `release`.

    Parameters
    ----------
    name : str
        The client's name.
    descriptor : int
        The open, locked file.
    """

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self._descriptor = descriptor

    def release(self) -> None:
        """Let another container have the name."""
        os.close(self._descriptor)


def take(folder: Path, names: Sequence[str], holder: str) -> Lease | None:
    """Take a lease on one of the names.

    Parameters
    ----------
    folder : Path
        Folder of the leases, shared by all containers of one machine.
    names : Sequence[str]
        The names; of equally suitable ones the first is taken.
    holder : str
        Name of this container, the same after each restart.

    Returns
    -------
    Lease | None
        On the name that `holder` had last if it is free, else on a name that was never taken, else on one
        whose holder has ended. None if all names are taken.
    """
    with _one_at_a_time(folder):
        last = {name: _read(folder / name) for name in names}
        for name in sorted(names, key=lambda name: (last[name] != holder, last[name] != "")):
            descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            os.ftruncate(descriptor, 0)
            os.write(descriptor, holder.encode())
            return Lease(name, descriptor)
    return None


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
