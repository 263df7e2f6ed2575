"""A reporter that writes to Weights & Biases (W&B), online or offline."""

import secrets
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .base import Reporter, RoundReport, RunInfo, read_note, write_note
from .scalars import scalars

_NOTE = "wandb.json"
_STOPPED = 255  # the exit code that W&B itself gives to a run after Ctrl-C


class WandB(Reporter):
    """Writes the numbers of each round (see `scalars`) and a histogram of participation to one run of W&B.

    The file ``wandb.json`` in the folder holds the id of W&B's run and the last round that was written. A
    resume continues this run. W&B accepts each round only once, so the rounds that are trained again keep
    their first numbers. With ``WANDB_MODE=offline``, W&B writes files only, and each resume writes a new
    folder with the same id.

    Parameters
    ----------
    folder : str or Path
        The folder of the run. W&B writes its files into the subfolder ``wandb``.
    project : str (default: "cohort")
        The project in W&B.
    name : str, optional
        The name of W&B's run (default: the folder's name).
    settings : mapping of str to value, optional
        Settings that are shown beside those of the strategy (default: none).
    """

    package = "wandb"
    extra = "wandb"

    def __init__(
        self,
        folder: str | Path,
        *,
        project: str = "cohort",
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.settings = Path(folder).absolute(), dict(settings or {})
        self._project, self._name = project, name or self.folder.name
        self._require()
        self._wandb: Any = import_module("wandb")
        self._run: Any = None
        self._id, self._last = "", -1  # the id of W&B's run, and the last round that it has

    def begin(self, run: RunInfo) -> None:
        self._read_note()
        # If the note has a round above 0, it belongs to an earlier run. A run that was killed in round 1
        # begins again, and continues its own run of W&B.
        if self._last > 0:
            self._id, self._last = "", -1
        self._open(run)

    def resume(self, run: RunInfo, round: int) -> None:
        self._read_note()
        self._open(run)

    def round(self, report: RoundReport) -> None:
        if report.round <= self._last:
            return
        values: dict[str, Any] = dict(scalars(report))
        if report.record is not None:
            edges = np.arange(len(report.participation) + 1)
            width = -(-(len(edges) - 1) // self._wandb.Histogram.MAX_LENGTH)  # W&B limits the bars
            counts = np.add.reduceat(report.participation, edges[:-1:width])
            limits = np.append(edges[:-1:width], edges[-1])
            values["participation/draws"] = self._wandb.Histogram(np_histogram=(counts, limits))
        # The note is written first: a crash before the log call loses one round, but no round is logged
        # twice.
        self._last = report.round
        self._write_note()
        self._run.log(values, step=report.round)

    def end(self, round: int, reason: str) -> None:
        self._finish(0, reason)

    def failed(self, round: int, reason: str) -> None:
        self._finish(1, reason)

    def stopped(self, round: int, reason: str) -> None:
        self._finish(_STOPPED, f"stopped: {reason}")

    def _finish(self, exit_code: int, reason: str) -> None:
        self._run.summary["reason"] = reason
        self._run.finish(exit_code=exit_code)

    def _open(self, run: RunInfo) -> None:
        if self._run is not None:
            self._run.finish()
        self._id = self._id or secrets.token_hex(4)
        self._write_note()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(
            project=self._project,
            name=self._name,
            dir=str(self.folder),
            id=self._id,
            resume="allow",
            config=self._shown(run),
            # W&B must not record the program, its output or the machine.
            settings=self._wandb.Settings(
                console="off", silent=True, save_code=False, disable_git=True, x_disable_stats=True
            ),
        )

    def _read_note(self) -> None:
        note = read_note(self.folder / _NOTE)
        self._id, self._last = str(note.get("id", "")), int(note.get("round", -1))

    def _write_note(self) -> None:
        write_note(self.folder / _NOTE, id=self._id, round=self._last)
