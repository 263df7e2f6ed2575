"""A reporter that writes TensorBoard's event files, with tensorboardX or with torch."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .base import Reporter, RoundReport, RunInfo, is_installed
from .scalars import scalars

_BUCKETS = 64  # the most bars of a histogram


class TensorBoard(Reporter):
    """Writes the numbers of each round (see `scalars`) and a histogram of participation.

    All starts of a run write into the same folder. After a resume, TensorBoard hides what was written about
    the rounds that are trained again. A run that begins hides an earlier run in the same folder.

    Parameters
    ----------
    folder : str or Path
        The folder of the event files.
    settings : mapping of str to value, optional
        Settings that are shown beside those of the strategy (default: none).
    """

    package = "tensorboardX"
    extra = "tensorboard"

    def __init__(self, folder: str | Path, settings: Mapping[str, Any] | None = None) -> None:
        self.folder, self.settings = Path(folder), dict(settings or {})
        self._require()
        # Imported here, so that a broken package is found before the run starts.
        module = "tensorboardX" if is_installed("tensorboardX") else "torch.utils.tensorboard"
        self._writer_type = import_module(module).SummaryWriter
        self._writer: Any = None

    @classmethod
    def missing(cls) -> str:
        torchs = is_installed("torch") and is_installed("tensorboard")
        return "" if torchs else super().missing()

    def begin(self, run: RunInfo) -> None:
        self._open(0 if any(self.folder.glob("*tfevents*")) else None)
        rows = "\n".join(f"| {name} | {value} |" for name, value in self._shown(run).items())
        self._note(f"| setting | value |\n|---|---|\n{rows}", 0)

    def resume(self, run: RunInfo, round: int) -> None:
        self._open(round + 1)
        self._note(f"resumed after round {round}", round + 1)

    def round(self, report: RoundReport) -> None:
        for name, value in scalars(report).items():
            self._writer.add_scalar(name, value, report.round)
        if report.record is not None:
            self._add_histogram(report.participation, report.round)
        self._writer.flush()  # so that a killed run loses nothing

    def end(self, round: int, reason: str) -> None:
        self._note(f"ended after round {round}. {reason}".strip(), round)
        self._writer.close()

    def failed(self, round: int, reason: str) -> None:
        self._note(f"failed after round {round}: {reason}", round)
        self._writer.close()

    def stopped(self, round: int, reason: str) -> None:
        self._note(f"stopped after round {round}: {reason}", round)
        self._writer.close()

    def _open(self, purge: int | None) -> None:
        """Open a new event file. TensorBoard hides the events of earlier files from the step ``purge`` on."""
        if self._writer is not None:
            self._writer.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        # tensorboardX overwrites a file that was made in the same second, unless the suffix differs.
        number = len(list(self.folder.glob("*tfevents*")))
        self._writer = self._writer_type(str(self.folder), purge_step=purge, filename_suffix=f".{number}")
        self._writer.flush()

    def _note(self, text: str, round: int) -> None:
        self._writer.add_text("run", text, round)
        self._writer.flush()

    def _add_histogram(self, participation: np.ndarray[Any, Any], round: int) -> None:
        draws = np.arange(len(participation))
        width = -(-len(draws) // _BUCKETS)  # rounded up
        starts = draws[::width]
        self._writer.add_histogram_raw(
            "participation/draws",
            min=float(np.flatnonzero(participation).min(initial=0)),
            max=float(draws[-1]),
            num=int(participation.sum()),
            sum=float(draws @ participation),
            sum_squares=float(draws**2 @ participation),
            bucket_limits=(starts + width - 0.5).tolist(),
            bucket_counts=np.add.reduceat(participation, starts).tolist(),
            global_step=round,
        )
