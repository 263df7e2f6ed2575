"""Leases on client names: a container is the client whose name it has leased.

`docker compose up --scale client=N` starts identical containers. The name that a container leases determines
its key, its Flower node and its part of the data. A lease is a lock on a file: only one container at a time
can have the lock, and the kernel releases the lock when the container ends. The file contains the name of its
last holder, so that a restarted container becomes the same client again. Containers open the files for
reading only: `deploy.container.key_service` writes the holder's name when it hands out the key.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Seconds to wait while another container takes a name. A container that hangs must not block the others.
WAIT = 10.0
PAUSE = 0.05  # seconds between two checks whether the other container has finished


class Lease:
    """A client name that belongs to this process until the process ends or calls `release`."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self.descriptor = descriptor

    def release(self) -> None:
        """Release the lock, so that another container can take the name."""
        os.close(self.descriptor)


def prepare(folder: Path, names: Sequence[str]) -> None:
    """Make the missing files: one for each name, and one for the lock of `_one_at_a_time`."""
    for name in (".lock", *names):
        (folder / name).touch()


def take(folder: Path, names: Sequence[str], holder: str) -> Lease | None:
    """Take a lease on a free name.

    `folder`: the folder of the leases, which all containers on a machine share. `names`: the client names. If
    several names are equally suitable, the first of them is taken. `holder`: the name of this container,
    which stays the same when the container restarts.

    Returns the lease on a free name: preferably the name that `holder` had last, then a name that was never
    taken, then a name whose last holder has ended. None if no name is free.
    """
    with _one_at_a_time(folder):
        last = {name: (folder / name).read_text() for name in names}
        for name in sorted(names, key=lambda name: (last[name] != holder, last[name] != "")):
            descriptor = os.open(folder / name, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            return Lease(name, descriptor)
    return None


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Execute the block in one container at a time, so that each gets the most suitable of the free names.

    A container that has waited for `WAIT` seconds executes the block in any case.
    """
    end = time.monotonic() + WAIT
    with (folder / ".lock").open() as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    break  # the locks on the names still keep two containers from taking one name
                time.sleep(PAUSE)
        yield
