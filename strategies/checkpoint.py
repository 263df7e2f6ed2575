"""The state of a run on disk: one file per round, written so that a crash never loses more than one round.

A file is an ``.npz`` (``numpy.load`` opens it): ``meta``, a JSON object as UTF-8 bytes, and each array under
``arrays/``. It is written under another name, fsynced and renamed; zip's checksums detect later damage.
"""

import json
import logging
import os
import re
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

if sys.platform != "win32":
    import fcntl

MAGIC = "cohort-checkpoint"
VERSION = 2
_FILE_NAME = re.compile(r"round-(\d{8,})\.npz")
_UNFINISHED = ".unfinished"  # suffix of a file that is being written
_REFUSED = ".refused"  # suffix of an unusable file whose round was repeated
_POLL_INTERVAL = 0.05  # seconds between two tries to get the lock
_NOWHERE = object()


class CheckpointError(ValueError):
    """A run cannot continue from a folder; the message says why, and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """A run's state after a round."""

    round: int
    """The last completed round, >= 0."""
    arrays: Mapping[str, NDArray[Any]]
    """Arrays by name, of any shape (0-d and empty too) and any dtype except object, in C or Fortran order."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The rest of the state: a JSON object. JSON returns tuples as lists and keys as strings."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """What a resume must not change: a JSON object, compared by `CheckpointFolder.newest`."""


class CheckpointFolder:
    """The last few checkpoints of one run.

    Parameters
    ----------
    path : str or Path
        The folder; created when it is claimed.
    keep : int (default: 3)
        The number of checkpoints to keep; at least 2, so that a damaged one leaves the one before.
    report : callable, optional
        Called with one line for each file that is refused and each checkpoint that could not be written;
        default: a warning to this module's logger.

    Raises
    ------
    ValueError
        If ``keep`` is less than 2.

    Examples
    --------
    >>> import tempfile
    >>> folder = CheckpointFolder(tempfile.mkdtemp())
    >>> folder.save(Checkpoint(7, {"w": np.array([0.5, 1.5])}, {"clients": ["a", "b"]}, {"seed": 1}))
    True
    >>> checkpoint = folder.newest({"seed": 1})
    >>> checkpoint.round, checkpoint.arrays["w"].tolist(), checkpoint.meta
    (7, [0.5, 1.5], {'clients': ['a', 'b']})
    >>> folder.newest({"seed": 2})
    Traceback (most recent call last):
    ...
    strategies.checkpoint.CheckpointError: seed = 2: the run to be resumed has 1
    """

    def __init__(
        self, path: str | Path, keep: int = 3, *, report: Callable[[str], None] | None = None
    ) -> None:
        if keep < 2:
            raise ValueError(f"keep = {keep}: must be at least 2")
        self.path = Path(path)
        self.keep = keep
        self._report = report or logging.getLogger(__name__).warning
        self._lock: IO[str] | None = None

    def claim(self, wait: float = 30.0) -> None:
        """Create the folder, lock it against other processes, and remove unfinished files of a killed one.

        The claim ends with `release` or with the process, even if it is killed. A second claim by the same
        process does nothing.

        Parameters
        ----------
        wait : float (default: 30)
            Seconds to wait for another process to release it, which may be about to end.

        Raises
        ------
        CheckpointError
            If another process still has the folder: two processes must not continue the same run.
        OSError
            If the folder cannot be created or written to.
        """
        if self._lock is not None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        lock = self._lock_file.open("a+")
        deadline = time.monotonic() + wait
        while not _locked(lock):
            if time.monotonic() > deadline:
                lock.seek(0)
                pid = lock.read()
                lock.close()
                raise CheckpointError(
                    f"{self.path}: process {pid} writes its checkpoints here; stop it, or use another folder"
                )
            time.sleep(_POLL_INTERVAL)
        self._lock = lock
        with suppress(OSError):  # a full disk must not stop a run
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
        for left in self.path.glob(f"*{_UNFINISHED}"):
            left.unlink(missing_ok=True)

    def release(self) -> None:
        """Let other processes claim the folder."""
        if self._lock is not None:
            with suppress(OSError):
                self._lock.truncate(0)
            self._lock.close()
            self._lock = None

    def is_claimed(self) -> bool:
        """Return whether another process has the folder. Not for the owner, whose claim would end."""
        if not self._lock_file.exists():
            return False
        with self._lock_file.open("a") as lock:
            return not _locked(lock)

    def is_abandoned(self) -> bool:
        """Return whether the last owner of the folder was killed. Not for the owner."""
        return self._lock_file.exists() and self._lock_file.stat().st_size > 0 and not self.is_claimed()

    def rounds(self) -> list[int]:
        """Return the rounds that have a file, usable or not, ascending."""
        found = (_FILE_NAME.fullmatch(file.name) for file in self.path.glob("round-*"))
        return sorted(int(match[1]) for match in found if match)

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint, then remove the oldest ones. Claims the folder if necessary.

        Files of later rounds, which `newest` refused, are renamed.

        Returns
        -------
        bool
            Whether it is safely on disk. If the disk is full or broken, this is reported, all earlier files
            are kept, and the run can continue.

        Raises
        ------
        CheckpointError
            If another process has the folder.
        TypeError, ValueError
            If the checkpoint holds something that cannot be stored.
        """
        if checkpoint.round < 0:
            raise ValueError(f"round = {checkpoint.round}: must be at least 0")
        try:
            self.claim()
            with replacing(self._file(checkpoint.round)) as output:
                _write(output, checkpoint)
            self._tidy(checkpoint.round)
        except OSError as error:
            self._report(
                f"ROUND {checkpoint.round} IS NOT SAVED in {self.path}: {error.strerror or error}; "
                "the run continues, and the earlier checkpoints are still there"
            )
            return False
        return True

    def newest(self, fingerprint: Mapping[str, Any] | None = None) -> Checkpoint | None:
        """Return the last intact checkpoint; each later file is reported with what is wrong with it.

        Parameters
        ----------
        fingerprint : mapping, optional
            The fingerprint of this run; default: not compared.

        Returns
        -------
        Checkpoint or None
            None if there is no checkpoint file.

        Raises
        ------
        CheckpointError
            If the checkpoint belongs to another run: the message lists the differences. Or if there are files
            but none is usable: only a person may decide to start anew.
        """
        rounds = self.rounds()
        for round in reversed(rounds):
            file = self._file(round)
            try:
                checkpoint = _read(file)
                if checkpoint.round != round:
                    raise CheckpointError(f"holds round {checkpoint.round}, not {round}")
            except MemoryError:
                raise
            except Exception as error:  # zipfile and NumPy raise all kinds of errors for damaged files
                why = str(error) if isinstance(error, CheckpointError) else f"damaged ({error or error!r})"
                before = "the one before is used" if round != rounds[0] else "there is none before"
                self._report(f"{file}: refused: {why}; {before}")
                continue
            if fingerprint is not None:
                _compare(checkpoint.fingerprint, fingerprint)
            return checkpoint
        if rounds:
            raise CheckpointError(
                f"{self.path}: none of its {len(rounds)} checkpoints can be used; to start anew, empty it"
            )
        return None

    @property
    def _lock_file(self) -> Path:
        return self.path / "lock"

    def _file(self, round: int) -> Path:
        return self.path / f"round-{round:08d}.npz"

    def _tidy(self, last: int) -> None:
        """Keep the last few files; rename those that would be mistaken for later ones."""
        rounds = self.rounds()
        with suppress(OSError):  # what cannot be removed now is removed the next time
            for round in [each for each in rounds if each <= last][: -self.keep]:
                self._file(round).unlink()
            for round in [each for each in rounds if each > last]:
                self._file(round).replace(self._file(round).with_suffix(f".npz{_REFUSED}"))


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write; at the end of the block it replaces ``path``, durably.

    Even after a crash ``path`` has either its old content or all of the new.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        _sync_folder(path.parent)
    finally:
        with suppress(OSError):  # the first error is the informative one
            unfinished.unlink(missing_ok=True)


def _write(output: IO[bytes], checkpoint: Checkpoint) -> None:
    meta = {
        "magic": MAGIC,
        "version": VERSION,
        "round": checkpoint.round,
        "arrays": list(checkpoint.arrays),
        "fingerprint": dict(checkpoint.fingerprint),
        "meta": dict(checkpoint.meta),
    }
    with zipfile.ZipFile(output, "w") as archive:  # uncompressed: weights hardly compress
        _write_array(archive, "meta", np.frombuffer(json.dumps(meta).encode(), np.uint8))
        for name, array in checkpoint.arrays.items():
            _write_array(archive, f"arrays/{name}", np.asarray(array))


def _write_array(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    member = zipfile.ZipInfo(f"{name}.npy")
    if member.filename != f"{name}.npy":
        raise ValueError(f"array name {name!r}: cannot be stored in a zip file")
    if array.dtype.hasobject or npy.descr_to_dtype(npy.dtype_to_descr(array.dtype)) != array.dtype:
        raise TypeError(f"array {name!r} is of type {array.dtype}: must be a type that .npy files know")
    with archive.open(member, "w", force_zip64=True) as file:
        npy.write_array(file, array, allow_pickle=False)


def _read(file: Path) -> Checkpoint:
    with zipfile.ZipFile(file) as archive:
        members = set(archive.namelist())
        meta = _meta(archive) if "meta.npy" in members else {}
        if meta.get("magic") != MAGIC:
            raise CheckpointError("not a checkpoint of Cohort")
        if meta["version"] != VERSION:
            age = "a newer" if meta["version"] > VERSION else "an older"
            raise CheckpointError(
                f"format {meta['version']}, of {age} version of Cohort; this one reads {VERSION}"
            )
        arrays = {name: _read_array(archive, f"arrays/{name}") for name in meta["arrays"]}
    return Checkpoint(meta["round"], arrays, meta["meta"], meta["fingerprint"])


def _meta(archive: zipfile.ZipFile) -> dict[str, Any]:
    """Return the meta object, {} if a foreign file has something else there."""
    with suppress(ValueError, TypeError):
        found = json.loads(_read_array(archive, "meta").tobytes())
        if isinstance(found, dict):
            return found
    return {}


def _read_array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    # Read to its end first, where zip compares checksums: a damaged shape must not be used.
    content = BytesIO(archive.read(f"{name}.npy"))
    array: NDArray[Any] = npy.read_array(content, allow_pickle=False)
    return array


def _compare(stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse the checkpoint of another run: one line for each difference."""
    # Through JSON, like the stored one.
    differences = list(_differences(stored, json.loads(json.dumps(dict(given))), ""))
    if differences:
        raise CheckpointError("\n".join(differences))


def _differences(stored: Any, given: Any, name: str) -> Iterator[str]:
    if isinstance(stored, Mapping) and isinstance(given, Mapping):
        for key in [*stored, *(key for key in given if key not in stored)]:
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(stored.get(key, _NOWHERE), given.get(key, _NOWHERE), inner)
    elif given is _NOWHERE:
        yield f"{name}: not there; the run to be resumed has {stored!r}"
    elif stored is _NOWHERE:
        yield f"{name} = {given!r}: the run to be resumed has none"
    elif stored != given:
        yield f"{name} = {given!r}: the run to be resumed has {stored!r}"


def _locked(lock: IO[str]) -> bool:
    """Try to lock a file for this process; always succeeds where the system has no such locks."""
    if sys.platform != "win32":
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            return False
    return True


def _sync_folder(path: Path) -> None:
    """Make the new name of a renamed file survive a power failure."""
    if sys.platform != "win32":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
