"""Runs experiments, and writes the result of each seed to a file, so that an interrupted run can go on.

Each seed runs in a process of its own, which writes the file under a temporary name and then renames it, so
that the file is complete as soon as it exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.experiments.report import Curve, Experiment, Outcome, Report
from benchmarks.experiments.sources import digest_of
from benchmarks.fresh import ONE_THREAD


class Result(NamedTuple):
    """The content of a seed's file.

    Attributes
    ----------
    outcome : Outcome
        The cells and curves of the seed.
    seconds : float
        CPU time of the seed.
    sources : str
        Digest of the code that produced the outcome, see `digest_of`.
    """

    outcome: Outcome
    seconds: float
    sources: str


class Job(NamedTuple):
    """One seed of one experiment.

    Attributes
    ----------
    experiment : Experiment
        The experiment.
    seed : int
        The seed.
    quick : bool
        Whether to run the small form.
    file : Path
        File of the result.
    data : Path or None
        The data file that the experiment needs, if any.
    digest : str
        SHA-256 of the data file, "" without one. A result with another digest is not used.
    """

    experiment: Experiment
    seed: int
    quick: bool
    file: Path
    data: Path | None
    digest: str

    def run(self) -> Outcome:
        """Run the seed in this process."""
        settings: dict[str, Any] = {}
        if self.quick and "quick" in inspect.signature(self.experiment.run).parameters:
            settings["quick"] = True
        return self.experiment.run(self.seed, *([] if self.data is None else [self.data]), **settings)

    def write(self, result: Result) -> None:
        """Write the result to the job's file, which becomes visible only when it is complete."""
        content = {"experiment": self.experiment.name, "seed": self.seed, "quick": self.quick}
        content |= {"data": self.digest, "sources": result.sources, "seconds": result.seconds}
        text = json.dumps(content | _plain(result.outcome), allow_nan=False)
        beside = self.file.with_suffix(".tmp")
        beside.write_text(text)
        beside.replace(self.file)

    def read(self) -> Result | None:
        """Return the result from the job's file, or None if the file is missing, damaged or another job's."""
        try:
            content = json.loads(self.file.read_text())
            made = [content[key] for key in ("experiment", "seed", "quick", "data")]
            if made != [self.experiment.name, self.seed, self.quick, self.digest]:
                return None
            return Result(_outcome(content), float(content["seconds"]), str(content["sources"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None


def _plain(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON values. NaN becomes null, and an infinity becomes a string."""

    def number(value: float) -> float | str | None:
        value = float(value)
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)

    def points(values: Any) -> list[float | str | None]:
        return [number(value) for value in np.asarray(values, dtype=np.float64)]

    return {
        "cells": [[row, column, number(value)] for (row, column), value in outcome.cells.items()],
        "curves": {
            panel: {line: {"x": points(curve.x), "y": points(curve.y)} for line, curve in lines.items()}
            for panel, lines in outcome.curves.items()
        },
    }


def _outcome(content: dict[str, Any]) -> Outcome:
    """Return the outcome that `_plain` turned into this content."""

    def number(value: float | str | None) -> float:
        return math.nan if value is None else float(value)

    return Outcome(
        {(row, column): number(value) for row, column, value in content["cells"]},
        {
            panel: {
                line: Curve(*(np.array([number(value) for value in curve[axis]]) for axis in "xy"))
                for line, curve in lines.items()
            }
            for panel, lines in content["curves"].items()
        },
    )


class Watcher:
    """Listener for the progress of seeds. This base class does nothing; subclasses override its methods."""

    def started(self, job: Job) -> None:
        """Note that a seed has started."""

    def done(self, job: Job, result: Result) -> None:
        """Note that a seed has finished."""

    def kept(self, experiment: Experiment, seeds: int, outdated: int) -> None:
        """Note how many seeds have a result from earlier runs; `outdated` of them ran with other code."""

    def failed(self, job: Job, reason: str) -> None:
        """Note that a seed has ended without a result, and why."""


def missing_data(experiment: Experiment, data: Path | None) -> bool:
    """Return whether the experiment needs a file that is not in the folder `data`."""
    return bool(experiment.data) and not (data and (data / experiment.data).is_file())


def num_seeds(experiment: Experiment, seeds: int | None, quick: bool) -> int:
    """Return the number of seeds to run: `seeds` if given, else 1 if quick, else `Experiment.seeds`."""
    return seeds or (1 if quick else experiment.seeds)


def run_all(
    experiments: Sequence[Experiment],
    out: Path,
    *,
    seeds: int | None = None,
    jobs: int = 1,
    data: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
    current: bool = False,
    watcher: Watcher | None = None,
) -> Iterator[Report]:
    """Run the seeds that have no result yet, and yield a report on each experiment.

    The reports come in the order of the experiments, each as soon as all seeds of the experiment have ended.
    If a seed fails, its experiment has no report; the other seeds and experiments go on.

    Parameters
    ----------
    experiments : Sequence[Experiment]
        The experiments.
    out : Path
        Folder for the results of the seeds, created if missing. The result of a seed is the file
        ``NAME-SEED.json``. If the seed fails, its traceback is the file ``NAME-SEED.error``.
    seeds : int or None
        Number of seeds of each experiment. The seeds are 0 to `seeds` - 1. For None see `num_seeds`.
    jobs : int
        Number of seeds that run in parallel, >= 1, each in a process with one thread.
    data : Path or None
        Folder with the data files that experiments need.
    quick : bool
        Whether to run the small form of each experiment.
    fresh : bool
        Whether to run also the seeds that already have a result.
    current : bool
        Whether to run also the seeds whose result came from another version of the code.
    watcher : Watcher or None
        Listener for progress.

    Raises
    ------
    FileNotFoundError
        If an experiment's data file is missing; raised before anything runs.
    OSError
        If `out` cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    watcher = watcher or Watcher()
    plan = plan_all(experiments, out, seeds=seeds, data=data, quick=quick)
    results: dict[Path, Result | None] = {}  # results of the seeds that have ended; None = failed
    for each in experiments:
        there = {job.file: result for job in plan[each.name] if not fresh and (result := job.read())}
        old = [file for file, result in there.items() if result.sources != digest_of(each)]
        if current:
            there = {file: result for file, result in there.items() if file not in old}
        if there:
            watcher.kept(each, len(there), 0 if current else len(old))
        results |= there

    to_run = [job for those in plan.values() for job in those if job.file not in results]
    with contextlib.closing(run_jobs(to_run, jobs, watcher)) as ended:
        for each in experiments:
            while not all(job.file in results for job in plan[each.name]):
                job = next(ended)
                results[job.file] = job.read()
            good = [result for job in plan[each.name] if (result := results[job.file])]
            if len(good) == len(plan[each.name]):
                seconds = sum(result.seconds for result in good)
                yield Report(each, [result.outcome for result in good], seconds, quick)


def plan_all(
    experiments: Sequence[Experiment],
    out: Path,
    *,
    seeds: int | None = None,
    data: Path | None = None,
    quick: bool = False,
) -> dict[str, list[Job]]:
    """Return the jobs of each experiment by its name, in the order of the seeds.

    Parameters
    ----------
    experiments, out, seeds, data, quick
        See `run_all`.

    Raises
    ------
    FileNotFoundError
        If an experiment's data file is missing.
    """
    lacking = [each for each in experiments if missing_data(each, data)]
    if lacking:
        raise FileNotFoundError(f"{lacking[0].name} needs {lacking[0].data}: name its folder with --data")
    files = {each.name: data / each.data for each in experiments if data and each.data}
    digests = {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in set(files.values())}
    plan: dict[str, list[Job]] = {}
    for each in experiments:
        file = files.get(each.name)
        plan[each.name] = [
            Job(each, seed, quick, out / f"{each.name}-{seed}.json", file, digests[file] if file else "")
            for seed in range(num_seeds(each, seeds, quick))
        ]
    return plan


def run_jobs(to_run: Sequence[Job], jobs: int, watcher: Watcher) -> Generator[Job]:
    """Run each job in a process of its own, and yield it when it has ended, successfully or not.

    A job that has ended successfully has written its file. At most `jobs` processes run at the same time.
    """
    # Several threads make small matrix products slower.
    os.environ |= ONE_THREAD
    # The processes are forked from one that has already imported everything, so each starts at once.
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
    context.set_forkserver_preload(["benchmarks.experiments"])
    waiting, running = list(reversed(to_run)), dict[Any, tuple[BaseProcess, Job]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                job = waiting.pop()
                # Files of an earlier run must not be taken for the result of this process.
                for old in (job.file, job.file.with_suffix(".error")):
                    old.unlink(missing_ok=True)
                process = context.Process(target=_run_one, args=(job, digest_of(job.experiment)), daemon=True)
                process.start()
                running[process.sentinel] = process, job
                watcher.started(job)
            for sentinel in wait(list(running)):
                process, job = running.pop(sentinel)
                process.join()
                result = job.read()
                if result:
                    watcher.done(job, result)
                else:
                    watcher.failed(job, _reason(job, process.exitcode))
                yield job
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()


def _run_one(job: Job, now: str) -> None:
    """Run a seed. This is the main function of the seed's process; `now` is the digest of the code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets the signal too, and ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    start = time.process_time()
    try:
        outcome = job.run()
        job.write(Result(outcome, time.process_time() - start, now))
    except Exception:
        job.file.with_suffix(".error").write_text(traceback.format_exc())


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent:
        wait([parent.sentinel])
        os._exit(1)


def _reason(job: Job, exitcode: int | None) -> str:
    error = job.file.with_suffix(".error")
    if error.is_file():
        return f"{error.read_text().splitlines()[-1]} (traceback: {error})"
    if exitcode == -signal.SIGKILL:
        return "its process was killed; if memory is short, run fewer --jobs"
    return f"its process ended with exit code {exitcode}"
