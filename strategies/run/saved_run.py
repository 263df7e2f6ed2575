"""A run on disk: what is saved after each round, and how a run resumes."""

from collections.abc import Mapping
from functools import partial
from logging import INFO, WARNING
from typing import Any, Protocol

from flwr.app import ArrayRecord
from flwr.common import log
from numpy.typing import NDArray

from ..checkpoint import CheckpointError, CheckpointFolder
from ..flower.attendance import Attendance
from ..options import Checkpoints
from .saved_progress import Progress, state_of


class Part(Protocol):
    """A part of a run that has a state."""

    def state_dict(self) -> dict[str, NDArray[Any]]: ...

    def load_state_dict(self, state: Mapping[str, NDArray[Any]], /) -> None: ...


class SavedRun:
    """Saves a run, and loads it when the run resumes. Without ``checkpoints``, nothing is saved.

    ``settings`` are those that a resume must not change, as JSON values. Saved are the state of each of the
    ``parts``, and what ``attendance`` knows about nodes and clients.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        settings: Mapping[str, Any],
        parts: Mapping[str, Part],
        attendance: Attendance,
    ) -> None:
        report = partial(log, WARNING)
        self._folder = CheckpointFolder(checkpoints.folder, report=report) if checkpoints else None
        self._resumes = checkpoints is not None and checkpoints.resume
        self._settings, self._parts, self._attendance = settings, parts, attendance

    def save(self, progress: Progress, num_rounds: int | None) -> None:
        """Save a checkpoint. ``num_rounds`` is the planned number of rounds."""
        if self._folder is not None:
            parts = {name: part.state_dict() for name, part in self._parts.items()}
            notes = {"num_rounds": num_rounds, "attendance": self._attendance.state()}
            fingerprint = self._fingerprint(progress.arrays)
            self._folder.save(progress.checkpoint(parts, notes, fingerprint))

    def resume(self, initial: ArrayRecord, num_rounds: int | None) -> tuple[Progress, int | None]:
        """Load the newest checkpoint, and return its progress and its planned number of rounds.

        If the run does not resume, or there is no checkpoint, return the progress of a new run with the model
        ``initial``, and ``num_rounds``.

        Raises a CheckpointError if the folder cannot be written to, or holds a run that this run cannot
        continue.
        """
        if self._folder is None:
            return Progress(0, initial), num_rounds
        folder = self._folder.path
        try:
            self._folder.claim()
        except OSError as error:
            raise CheckpointError(
                f"checkpoints.folder = {folder}: cannot be made or written to: {error.strerror}"
            ) from None
        if not self._resumes and self._folder.rounds():
            raise CheckpointError(
                f"checkpoints.folder = {folder}: holds a run; resume=True continues this run, "
                "another folder begins a new run"
            )
        found = self._folder.newest(self._fingerprint(initial)) if self._resumes else None
        if found is None:
            return Progress(0, initial), num_rounds
        try:
            num_rounds = found.meta["num_rounds"]
            for name, part in self._parts.items():
                part.load_state_dict(state_of(name, found))
            self._attendance.load(found.meta["attendance"])
        except KeyError as error:
            raise CheckpointError(
                f"{folder}: its checkpoints have no {error}, so another version of Cohort wrote them: resume "
                "with that version, or start a new run"
            ) from error
        log(INFO, "Resumed after round %d from %s", found.round, folder)
        return Progress.of(found, initial), num_rounds

    def _fingerprint(self, arrays: ArrayRecord) -> dict[str, Any]:
        """Return what a resume must not change: the settings, and the model's names, shapes and types."""
        model = {name: [list(array.shape), array.dtype] for name, array in arrays.items()}
        return {**self._settings, "arrays": model}
