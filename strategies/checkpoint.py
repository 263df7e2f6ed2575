"""Checkpoint files: how the state of a run is written, checked and locked on disk, with one file per round.

Each round has a file of its own, so a crash never loses more than one round. A file is an ``.npz``, which
``numpy.load`` opens. It holds ``meta``, a JSON object as UTF-8 bytes, and each array under ``arrays/``. The
file is first written under another name, then fsynced, and then renamed. The checksums of the zip format
detect later damage. ``results.jsonl`` in the same folder holds the results of all rounds, see `results_file`.
"""

import json
import logging
import os
import re
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .json_text import parse_json
from .results_file import ResultsFile, sync_folder

if sys.platform != "win32":
    import fcntl

MAGIC = "cohort-checkpoint"
VERSION = 5
_FILE_NAME = re.compile(r"round-(\d{8,})\.npz")
_RESULTS = "results.jsonl"
_UNFINISHED = ".unfinished"  # the suffix of a file while it is written
_REFUSED = ".refused"  # the suffix of a refused file, once the run has continued from an earlier file
_POLL_INTERVAL = 0.05  # the seconds between two attempts to lock the folder
_BUDGETS = re.compile(r"Budgets\((\d+), (.+)\)")  # the repr of `options.Budgets`
_NOWHERE = object()  # in place of a setting that only the other of two fingerprints has


class CheckpointError(ValueError):
    """A run cannot continue from a folder; the message gives the reason and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a round."""

    round: int
    """The last completed round, >= 0."""
    arrays: Mapping[str, NDArray[Any]]
    """Arrays by name. Each has any shape (also 0-d or empty), any dtype except object, and C or Fortran
    order."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The rest of the state: a JSON object. When it is read from disk, tuples are lists and keys are text."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """The settings that a resume must not change: a JSON object. `CheckpointFolder.newest` compares it."""
    results: Sequence[Any] = ()
    """JSON values that later rounds do not need. For `CheckpointFolder.save`: only the values since the
    previous checkpoint. From `CheckpointFolder.newest`: the values of the whole run."""


class CheckpointFolder:
    """The last few checkpoints of one run.

    ``path``: the folder. `claim` creates it. ``keep`` (default: 3): the number of checkpoints to keep, >= 2,
    so that an earlier one remains if the last one is damaged. ``report``: Called with one line of text for
    each file that is refused and each checkpoint that could not be written. Default: the line is logged as a
    warning by this module's logger.

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
        self._results = ResultsFile(self.path / _RESULTS)

    def claim(self, wait: float = 30.0) -> None:
        """Create the folder, lock it, and remove unfinished files that a killed process left.

        The claim ends when `release` is called or when this process ends, even if the process is killed. If
        this object already has the claim, the call does nothing.

        The call waits at most ``wait`` seconds for another process to release the folder.

        Raises a CheckpointError if another process still has the folder after this time. Raises an OSError if
        the folder cannot be created or written to.
        """
        if self._lock is not None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        lock = open(self._lock_file, "a+", opener=_private)  # noqa: SIM115
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
        if self._lock is not None:
            with suppress(OSError):
                self._lock.truncate(0)
            self._lock.close()
            self._lock = None

    def is_claimed(self) -> bool:
        """Return whether another process has claimed the folder. The claimant must not call this method."""
        if not self._lock_file.exists():
            return False
        with self._lock_file.open("a") as lock:
            return not _locked(lock)

    def is_abandoned(self) -> bool:
        """Return whether the last claimant ended without `release`. The claimant must not call this."""
        return self._lock_file.exists() and self._lock_file.stat().st_size > 0 and not self.is_claimed()

    def last_claim(self) -> int | None:
        """Return when the folder was last claimed or released, in ns since 1970; None if never."""
        try:
            return self._lock_file.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def rounds(self) -> list[int]:
        """Return the rounds that have a checkpoint file, ascending. Some files may be damaged."""
        found = (_FILE_NAME.fullmatch(file.name) for file in self.path.glob("round-*"))
        return sorted(int(match[1]) for match in found if match)

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint, and then remove all but the last ``keep`` checkpoints.

        If the folder has not been claimed, this method claims it. Files of later rounds, which `newest`
        refused, are renamed.

        Return whether the checkpoint is durably on disk. If it could not be written, for example because the
        disk is full, the error is reported, and all earlier files are kept. The next checkpoint also writes
        the results of this one.

        Raises a CheckpointError if another process has the folder. Raises a TypeError or ValueError if the
        round is negative, or the checkpoint holds a value that cannot be stored.
        """
        if checkpoint.round < 0:
            raise ValueError(f"round = {checkpoint.round}: must be at least 0")
        try:
            self.claim()
            results = self._results.write(checkpoint.results)
            with replacing(self._file(checkpoint.round)) as output:
                _write(output, checkpoint, results)
            self._tidy(checkpoint.round)
        except OSError as error:
            self._report(
                f"ROUND {checkpoint.round} IS NOT SAVED in {self.path}: {error.strerror or error}; "
                "the run continues, and the earlier checkpoints are still there"
            )
            return False
        return True

    def newest(self, fingerprint: Mapping[str, Any] | None = None) -> Checkpoint | None:
        """Return the last intact checkpoint, and report why each later file is refused.

        Return None if there is no checkpoint file. The ``fingerprint`` of this run is compared, if given.

        Raises a CheckpointError if the last intact checkpoint has another fingerprint; the message lists the
        differences. Also if there are checkpoint files and none of them is usable.
        """
        rounds = self.rounds()
        for round in reversed(rounds):
            file = self._file(round)
            try:
                checkpoint, results = _read(file)
                if checkpoint.round != round:
                    raise CheckpointError(f"holds round {checkpoint.round}, not {round}")
                if lacking := self._results.find(results):
                    raise CheckpointError(lacking)
            except MemoryError:
                raise
            except Exception as error:  # zipfile and NumPy raise all kinds of errors for damaged files
                why = str(error) if isinstance(error, CheckpointError) else f"damaged ({error or error!r})"
                before = "the one before is used" if round != rounds[0] else "there is none before"
                self._report(f"{file}: refused: {why}; {before}")
                continue
            if fingerprint is not None:
                _compare(checkpoint.fingerprint, fingerprint)
            if results["length"] and not self._results.path.exists():
                self._report(f"{self._results.path}: missing: the run continues without its earlier results")
            return replace(checkpoint, results=self._results.read())
        if rounds:
            raise CheckpointError(
                f"{self.path}: holds no checkpoint that can be used; to start anew, empty the folder"
            )
        return None

    @property
    def _lock_file(self) -> Path:
        return self.path / "lock"

    def _file(self, round: int) -> Path:
        return self.path / f"round-{round:08d}.npz"

    def _tidy(self, last: int) -> None:
        """Remove all but the last ``keep`` files up to round ``last``, and rename the files of later rounds.

        Otherwise `newest` would take a file of a later round for the newest checkpoint of this run.
        """
        rounds = self.rounds()
        with suppress(OSError):  # a file that cannot be removed now is removed after a later round
            for round in [each for each in rounds if each <= last][: -self.keep]:
                self._file(round).unlink()
            for round in [each for each in rounds if each > last]:
                self._file(round).replace(self._file(round).with_suffix(f".npz{_REFUSED}"))


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that replaces ``path`` durably at the end of the block, or not at all if that fails."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        error.filename = error.filename or str(path)  # the error of a full disk names no file
        raise
    finally:
        with suppress(OSError):  # the first error is the informative one
            unfinished.unlink(missing_ok=True)


def _write(output: IO[bytes], checkpoint: Checkpoint, results: Mapping[str, Any]) -> None:
    meta = {
        "magic": MAGIC,
        "version": VERSION,
        "round": checkpoint.round,
        "arrays": list(checkpoint.arrays),
        "fingerprint": dict(checkpoint.fingerprint),
        "meta": dict(checkpoint.meta),
        "results": dict(results),
    }
    with zipfile.ZipFile(output, "w") as archive:  # not compressed: the arrays of models hardly compress
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


def _read(file: Path) -> tuple[Checkpoint, dict[str, Any]]:
    """Return a checkpoint (without results), and the length and checksum that `ResultsFile.find` takes."""
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
    return Checkpoint(meta["round"], arrays, meta["meta"], meta["fingerprint"]), meta["results"]


def _meta(archive: zipfile.ZipFile) -> dict[str, Any]:
    """Return the JSON object under ``meta``; {} if there is none, as in a file of another program."""
    with suppress(ValueError, TypeError):
        found = parse_json(_read_array(archive, "meta").tobytes())
        if isinstance(found, dict):
            return found
    return {}


def _read_array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    # The whole member is read before NumPy parses it: zip checks the checksum only at the member's end, and
    # the header, from which NumPy takes the array's shape, may be damaged.
    member = archive.getinfo(f"{name}.npy")
    if member.compress_type != zipfile.ZIP_STORED:  # a compressed array could expand to any size
        raise CheckpointError(f"{member.filename} is compressed, which Cohort never does")
    content = BytesIO(archive.read(member))
    array: NDArray[Any] = npy.read_array(content, allow_pickle=False)
    return array


def _compare(stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse a checkpoint with another fingerprint; the error has one line for each difference."""
    if isinstance(guard := stored.get("guard"), Mapping):
        # Before the guard had levels, its rules were those of the level "strict".
        stored = {**stored, "guard": {"level": "strict", **guard}}
    # The given fingerprint is converted to JSON and back, as the stored one was.
    differences = list(_differences(stored, json.loads(json.dumps(dict(given))), ""))
    if differences:
        raise CheckpointError("\n".join(differences))


def _differences(stored: Any, given: Any, name: str) -> Iterator[str]:
    if isinstance(stored, Mapping) and isinstance(given, Mapping):
        for key in [*stored, *(key for key in given if key not in stored)]:
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(stored.get(key, _NOWHERE), given.get(key, _NOWHERE), inner)
    elif given is _NOWHERE:
        yield f"{name}: not set now; the run to be resumed has {_shown(stored)}"
    elif stored is _NOWHERE:
        yield f"{name} = {_shown(given)}: the run to be resumed has none"
    elif stored != given:
        yield f"{name} = {_shown(given)}: the run to be resumed has {_shown(stored)}"


def _shown(value: Any) -> str:
    """Return the repr of a value. For text that is the repr of a `Budgets`, return its K and its budget."""
    budgets = _BUDGETS.fullmatch(value) if isinstance(value, str) else None
    if budgets is None:
        return repr(value)
    k, budget = budgets.groups()
    return k if budget == "None" else f"{k} with the budget {budget}"


def _private(path: str, flags: int) -> int:
    """Open a file that only this user may open, since any user who can read a file can lock it."""
    descriptor = os.open(path, flags, 0o600)
    if sys.platform != "win32":
        with suppress(OSError):  # a file of another user, or a file system without modes
            os.fchmod(descriptor, 0o600)
    return descriptor


def _locked(lock: IO[str]) -> bool:
    """Try to lock a file, and return whether this process now has the lock. On Windows, return True."""
    if sys.platform != "win32":
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX allows both errors for a file that is locked
            return False
    return True
