"""The progress of experiments: bars on a terminal, one line per seed elsewhere."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from benchmarks.experiments.report import Experiment
from benchmarks.experiments.running import Job, Result, Watcher


class Lines(Watcher):
    """Prints a line for each seed that ran or failed, and for each experiment with kept seeds.

    A kept seed has a result from an earlier run, so it does not run again.

    Parameters
    ----------
    console : Console
        Console to write to.
    totals : dict of str to int
        Number of seeds of each experiment, by name.

    Attributes
    ----------
    failures : int
        Number of seeds that failed.
    """

    def __init__(self, console: Console, totals: dict[str, int]) -> None:
        self._console, self._totals = console, totals
        self._ended, self.failures = 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def done(self, job: Job, result: Result) -> None:
        """Print the CPU time of the seed."""
        self._end(f"{job.experiment.name}  seed {job.seed}  {result.seconds:.0f} s of a core")

    def kept(self, experiment: Experiment, seeds: int, outdated: int) -> None:
        """Print the number of kept seeds, and how many of them ran with another version of the code."""
        text = f"{experiment.name}  {seeds} of {self._totals[experiment.name]} seeds kept from before"
        if outdated:
            text += f", {outdated} of them outdated (--fresh runs them again)"
        self._end(text, seeds)

    def failed(self, job: Job, reason: str) -> None:
        """Print the reason, and count the failure."""
        self.failures += 1
        self._end(f"{job.experiment.name}  seed {job.seed}  failed: {reason}")

    def _end(self, text: str, seeds: int = 1) -> None:
        self._ended += seeds
        self._print(f"{text}  ({self._ended}/{sum(self._totals.values())})")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Bars(Lines):
    """Shows a bar for all seeds and a bar for each running experiment, and prints failures above the bars."""

    def __init__(self, console: Console, totals: dict[str, int]) -> None:
        super().__init__(console, totals)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            redirect_stdout=sys.stdout.isatty(),  # on a terminal, tables are printed above the bars
        )
        self._all = self._progress.add_task("all seeds", total=sum(totals.values()))
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def started(self, job: Job) -> None:
        """Show the bar of the experiment."""
        self._progress.update(self._bar(job.experiment), visible=True)

    def done(self, job: Job, result: Result) -> None:
        """Advance the bars."""
        self._advance(job.experiment, 1)

    def kept(self, experiment: Experiment, seeds: int, outdated: int) -> None:
        """Advance the bars, and print how many kept seeds ran with another version of the code."""
        if outdated:
            super().kept(experiment, seeds, outdated)
        self._advance(experiment, seeds)

    def failed(self, job: Job, reason: str) -> None:
        """Print the reason, and advance the bars."""
        super().failed(job, reason)
        self._advance(job.experiment, 1)

    def _bar(self, experiment: Experiment) -> TaskID:
        if experiment.name not in self._bars:
            total = self._totals[experiment.name]
            bar = self._progress.add_task(experiment.name, total=total, visible=False)
            self._bars[experiment.name] = bar
        return self._bars[experiment.name]

    def _advance(self, experiment: Experiment, seeds: int) -> None:
        bar = self._bar(experiment)
        self._progress.advance(bar, seeds)
        self._progress.advance(self._all, seeds)
        if self._progress.tasks[self._progress.task_ids.index(bar)].finished:
            self._progress.update(bar, visible=False)
