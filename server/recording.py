"""The files of a run: a line of history each round, and its models."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from strategies import RoundRecord
from strategies.checkpoint import CheckpointFolder
from tasks.base import Metrics

from .history import FILE_NAME, HistoryWriter, read_lines
from .models import Models
from .settings import CHECKPOINTS, RunSettings, check_same_run


class Recording:
    """Writes a run into its folder, which it locks against other processes.

    Parameters
    ----------
    settings : RunSettings
        The run's settings; with ``resume`` the history continues after the last checkpoint's round.

    Attributes
    ----------
    folder : Path or None
        The folder of the run; None writes nothing.
    checkpoints : Path or None
        The folder of its checkpoints.

    Raises
    ------
    CheckpointError, ValueError
        On entry, if the folder belongs to another run, or another process writes there.
    OSError
        On entry, if the folder cannot be written to.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self.folder = Path(settings.output_dir).absolute() if settings.output_dir else None
        self.checkpoints = self.folder / CHECKPOINTS if self.folder else None
        self._held = ExitStack()
        self._sizes = np.empty(0)  # in the last roster line
        self._began = time.monotonic()

    def __enter__(self) -> "Recording":
        with ExitStack() as held:
            self._history = held.enter_context(self._begun(held))
            self._models = Models(self.folder)
            self._held = held.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._held.__exit__(*error)

    def _begun(self, held: ExitStack) -> HistoryWriter:
        """Return a new history, or continue it from the last checkpoint."""
        if self.folder is None or self.checkpoints is None:
            return HistoryWriter(None)
        run = {
            "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "flwr": version("flwr"),
            **self._settings.model_dump(),
        }
        path = self.folder / FILE_NAME
        checkpoints = CheckpointFolder(self.checkpoints, report=lambda line: None)  # the strategy reports it
        checkpoints.claim()
        held.callback(checkpoints.release)
        if self._settings.resume:
            check_same_run(next(iter(read_lines(path)), {}), run)
            found = checkpoints.newest()
            return HistoryWriter.resume(path, found.round if found else 0, run)
        history = HistoryWriter(path)
        history.begin(run)
        return history

    def round(
        self,
        number: int,
        model: Mapping[str, NDArray[Any]],
        metrics: Metrics,
        record: RoundRecord | None = None,
        client_ids: Sequence[str] = (),
        client_sizes: npt.ArrayLike = (),
    ) -> None:
        """Write a round (round 0 has no record), and its model if it is the best so far.

        Parameters
        ----------
        number : int
            The round.
        model : mapping of str to array
            The model after it.
        metrics : Metrics
            Its metrics on the test data.
        record : RoundRecord, optional
            What happened in the round.
        client_ids, client_sizes : sequence
            The roster, by index; written when clients were added or sizes have changed. An index keeps its
            identity.
        """
        test = {"test_loss": metrics.loss, "test_accuracy": metrics.accuracy}
        if record is None:
            self._history.write("round", round=number, **test)
        else:
            sizes = np.asarray(client_sizes, dtype=np.float64)
            if not np.array_equal(sizes.view(np.int64), self._sizes.view(np.int64)):  # NaN equals NaN
                self._history.write("roster", client_ids=client_ids, client_sizes=sizes)
                self._sizes = sizes.copy()
            self._history.write_round(record, client_ids, **test)
        self._models.offer(number, model, metrics)

    def end(self, last: int, model: Mapping[str, NDArray[Any]]) -> None:
        """Write the end of the run after a round, and its model."""
        path = self._models.save_final(last, model)
        target = f"target-accuracy = {self._settings.target_accuracy:g} is reached"
        self._history.write(
            "end",
            rounds=last,
            seconds=time.monotonic() - self._began,
            model=str(path) if path else None,
            best_round=self._models.best_round,
            reason=target if last < self._settings.num_rounds else "",
        )

    def is_good_enough(self, accuracy: float) -> bool:
        """Return whether the run's target accuracy is reached, if it has one."""
        return 0 < self._settings.target_accuracy <= accuracy
