"""The state of a run on disk: one file a round, written so that no crash leaves less than the round before.

A file is an ``.npz`` (``numpy.load`` opens it): ``meta``, a JSON object as UTF-8 bytes, and each array under
``arrays/``. It is written under another name, fsynced and renamed; zip's checksums find what was damaged
later.
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
_UNFINISHED = ".unfinished"  # the ending of a file that is being written
_REFUSED = ".refused"  # the ending of a file that could not be used, and whose round has come again
_POLL_INTERVAL = 0.05  # seconds between two tries to get the lock
_NOWHERE = object()


class CheckpointError(ValueError):
    """A run cannot go on from what is in a folder; the message says why, and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """A run's state after a round."""

    round: int
    """The round that is over, at least 0."""
    arrays: Mapping[str, NDArray[Any]]
    """By name; of any shape (0-d and empty too) and any dtype but object. Layout is C or Fortran."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What is not an array: a JSON object. Comes back as JSON has it: tuples as lists, keys as strings."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """What must not change over a resume: a JSON object, compared by `CheckpointFolder.newest`."""


class CheckpointFolder:
    """The last few checkpoints of one run.

    Parameters
    ----------
    path : str or Path
        The folder; made when it is claimed.
    keep : int (default: 3)
        How many checkpoints stay; at least 2, so that a damaged last one leaves the one before.
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
        """Make the folder, keep other processes out of it, and remove what a killed writer left unfinished.

        The claim ends with the process, also with one that is killed; or with `release`. A second claim of
        the same process does nothing.

        Parameters
        ----------
        wait : float (default: 30)
            Seconds that another process, which may be about to end, has to leave.

        Raises
        ------
        CheckpointError
            If another process is still there: of two that go on with one run, each would spoil the other's.
        OSError
            If the folder cannot be made or written to.
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
                    f"{self.path}: process {pid} writes its checkpoints here; end it, or use another folder"
                )
            time.sleep(_POLL_INTERVAL)
        self._lock = lock
        with suppress(OSError):  # a full disk must not keep a run from going on
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
        """Tell whether another process has the folder. Not for the one that has it: its claim would end."""
        if not self._lock_file.exists():
            return False
        with self._lock_file.open("a") as lock:
            return not _locked(lock)

    def is_abandoned(self) -> bool:
        """Tell whether the last process that claimed the folder was killed. Not for one that has it."""
        return self._lock_file.exists() and self._lock_file.stat().st_size > 0 and not self.is_claimed()

    def rounds(self) -> list[int]:
        """Return the rounds whose files are here, usable or not, ascending."""
        found = (_FILE_NAME.fullmatch(file.name) for file in self.path.glob("round-*"))
        return sorted(int(match[1]) for match in found if match)

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint, then remove those that are too old. Claims the folder if that was not done.

        Files of later rounds, which `newest` had to refuse, are put aside under another name.

        Returns
        -------
        bool
            Whether it is safely on disk. If the disk is full or broken that is reported, all that was there
            before still is, and the run can go on.

        Raises
        ------
        CheckpointError
            If another process has the folder.
        TypeError, ValueError
            If the checkpoint holds what cannot be stored.
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
                "the run goes on, and the checkpoints from before are still there"
            )
            return False
        return True

    def newest(self, fingerprint: Mapping[str, Any] | None = None) -> Checkpoint | None:
        """Return the last checkpoint that is whole; each later one is reported with what is wrong with it.

        Parameters
        ----------
        fingerprint : mapping, optional
            What this run is; default: not compared.

        Returns
        -------
        Checkpoint or None
            None if there is no file of a checkpoint here.

        Raises
        ------
        CheckpointError
            If the checkpoint is of another run: what differs, as it was and as it is. Or if there are files
            but none can be used: to begin again must be somebody's decision.
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
            except Exception as error:  # a damaged file makes zipfile and NumPy raise whatever they like
                why = str(error) if isinstance(error, CheckpointError) else f"damaged ({error or error!r})"
                before = "the one before is used" if round != rounds[0] else "there is none before"
                self._report(f"{file}: refused: {why}; {before}")
                continue
            if fingerprint is not None:
                _compare(checkpoint.fingerprint, fingerprint)
            return checkpoint
        if rounds:
            raise CheckpointError(
                f"{self.path}: none of its {len(rounds)} checkpoints can be used; to begin again, empty it"
            )
        return None

    @property
    def _lock_file(self) -> Path:
        return self.path / "lock"

    def _file(self, round: int) -> Path:
        return self.path / f"round-{round:08d}.npz"

    def _tidy(self, last: int) -> None:
        """Leave the last few, put aside what would be taken for later than the last."""
        rounds = self.rounds()
        with suppress(OSError):  # what stays now goes the next time
            for round in [each for each in rounds if each <= last][: -self.keep]:
                self._file(round).unlink()
            for round in [each for each in rounds if each > last]:
                self._file(round).replace(self._file(round).with_suffix(f".npz{_REFUSED}"))


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to be written; at the end of the block it takes the place of ``path``, durably.

    However the block or the machine ends, ``path`` has its old content or all of the new.

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
        with suppress(OSError):  # the first error tells more
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
    with zipfile.ZipFile(output, "w") as archive:  # stored as it is: weights hardly compress
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
    """Return the meta object, {} if a foreign file has something else under that name."""
    with suppress(ValueError, TypeError):
        found = json.loads(_read_array(archive, "meta").tobytes())
        if isinstance(found, dict):
            return found
    return {}


def _read_array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    # Read to its end first, where zip compares checksums: a shape that is damaged must not be believed.
    content = BytesIO(archive.read(f"{name}.npy"))
    array: NDArray[Any] = npy.read_array(content, allow_pickle=False)
    return array


def _compare(stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse another run's checkpoint: one line for each difference."""
    # As JSON gives it back, like the stored one.
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
    """Try to lock a file for this process; where there are no such locks, everybody gets one."""
    if sys.platform != "win32":
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            return False
    return True


def _sync_folder(path: Path) -> None:
    """Make a renamed file's new name survive a power cut, too."""
    if sys.platform != "win32":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
