"""Runs the seeds of experiments as jobs, see `deploy.sweeps.jobs`, and says which sources decide a result."""

import hashlib
import inspect
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from benchmarks.experiments.report import Curve, Experiment, Outcome, Report, Value, number, plain
from deploy.sweeps.jobs import Ended, finish, finished, on_this_machine, shown
from deploy.sweeps.source_digests import closure, digest


class Job(NamedTuple):
    """One seed of one experiment."""

    experiment: Experiment
    seed: int
    quick: bool  # the small form
    data: Path | None  # the data file that the experiment needs, if any
    file: Path  # of the result
    key: str  # digest of the sources, the data, the seed and the form

    @property
    def label(self) -> str:
        """The experiment and the seed."""
        return f"{self.experiment.name}  seed {self.seed}"


def run(experiment: Experiment, seed: int, data: Path | None, quick: bool = False) -> Outcome:
    """Run a seed in this process."""
    return experiment.run(
        seed, *([] if data is None else [data]), **(quick_form(experiment) if quick else {})
    )


def quick_form(experiment: Experiment) -> dict[str, Any]:
    """Return the arguments of `Experiment.run` for the quick form, by default a tenth of the rounds."""
    parameters = inspect.signature(experiment.run).parameters
    if experiment.quick or "quick" in parameters:
        return dict(experiment.quick or {"quick": True})
    return {"num_rounds": parameters["num_rounds"].default // 10} if "num_rounds" in parameters else {}


def execute(job: Job) -> Ended:
    """Run a seed, and write its result: the cells, the curves and the CPU seconds."""
    start = time.process_time()
    try:
        outcome = run(job.experiment, job.seed, job.data, job.quick)
        return finish(job, {"seconds": time.process_time() - start, **as_values(outcome)})
    except Exception:
        return Ended(job.key, None, traceback.format_exc().strip())


def as_values(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON values."""

    def points(values: Any) -> list[Value]:
        return [plain(value) for value in np.asarray(values, dtype=np.float64)]

    return {
        "cells": [[row, column, plain(value)] for (row, column), value in outcome.cells.items()],
        "curves": {
            panel: {line: {"x": points(curve.x), "y": points(curve.y)} for line, curve in lines.items()}
            for panel, lines in outcome.curves.items()
        },
    }


def outcome_of(content: dict[str, Any]) -> Outcome:
    """Return the outcome that `as_values` turned into this content."""
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


def missing_data(experiment: Experiment, data: Path | None) -> bool:
    """Return whether the experiment needs a file that is not in the folder `data`."""
    return bool(experiment.data) and not (data and (data / experiment.data).is_file())


def data_file(experiment: Experiment, data: Path | None) -> tuple[Path | None, str]:
    """Return the experiment's file and its SHA-256; None and "" if it needs none.

    Raises FileNotFoundError if the file is missing from the folder `data`.
    """
    if not experiment.data:
        return None, ""
    if not data or missing_data(experiment, data):
        raise FileNotFoundError(f"{experiment.name} needs {experiment.data}: name its folder with --data")
    return data / experiment.data, _sha256(
        data / experiment.data, (data / experiment.data).stat().st_mtime_ns
    )


@cache
def _sha256(file: Path, changed: int) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def num_seeds(experiment: Experiment, seeds: int | None, quick: bool) -> int:
    """Return `seeds` if given, else 1 if quick, else `Experiment.seeds`."""
    return seeds or (1 if quick else experiment.seeds)


def plan(
    experiment: Experiment, out: Path, seeds: int | None = None, data: Path | None = None, quick: bool = False
) -> list[Job]:
    """Return the jobs of an experiment, in the order of the seeds. The parameters are those of `run_all`."""
    file, sha256 = data_file(experiment, data)
    jobs = []
    for seed in range(num_seeds(experiment, seeds, quick)):
        facts = [experiment.name, seed, quick, sha256, digest_of(experiment)]
        key = hashlib.sha256(repr(facts).encode()).hexdigest()
        jobs.append(Job(experiment, seed, quick, file, out / f"{experiment.name}-{seed}.json", key))
    return jobs


def run_all(
    experiments: Sequence[Experiment],
    out: Path,
    *,
    seeds: int | None = None,
    jobs: int = 1,
    data: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
    console: Console | None = None,
    problems: list[str] | None = None,
) -> Iterator[Report]:
    """Run the seeds that have no result of the present code and data, and yield a report on each experiment.

    The file of a seed is ``NAME-SEED.json`` in `out`. With `fresh`, seeds that have a result run again. The
    reports come in the order of the experiments, each as soon as all its seeds have ended. If a seed raises
    an error, the traceback goes to `problems`, its experiment has no report, and the others go on. Raises
    RuntimeError if a process is killed.
    """
    plans = {each.name: plan(each, out, seeds, data, quick) for each in experiments}
    out.mkdir(parents=True, exist_ok=True)
    every = {job.key: job for those in plans.values() for job in those}
    found = {} if fresh else {key: there for key, job in every.items() if (there := finished(job))}
    waiting = [job for key, job in every.items() if key not in found]

    def told(end: Ended) -> str:
        if end.result is None:
            return f"{every[end.key].label}  failed: {end.problem.splitlines()[-1]}"
        return f"{every[end.key].label}  {end.result['seconds']:.0f} s of a core"

    ends = on_this_machine(waiting, jobs, execute) if waiting else iter(())
    ended: dict[str, dict[str, Any] | None] = {**found}
    steps = shown(console or Console(quiet=True), ends, len(every), len(found), told)
    for each in experiments:
        keys = [job.key for job in plans[each.name]]
        while not all(key in ended for key in keys):
            end = next(steps)
            ended[end.key] = end.result
            if end.result is None and problems is not None:
                problems.append(f"{every[end.key].label}: {end.problem}")
        good = [result for key in keys if (result := ended[key])]
        if len(good) == len(keys):
            seconds = [float(result["seconds"]) for result in good]
            yield Report(each, [outcome_of(result) for result in good], seconds, quick)
    for _ in steps:  # so that the progress ends
        pass


def sources_of(experiment: Experiment) -> list[Path]:
    """Return the files of the experiment's `run` and of the list with its settings, and all they import."""
    return closure(_modules(experiment))


def digest_of(experiment: Experiment) -> str:
    """Return the digest of the files in `sources_of`. A process computes it once."""
    return _digest(_modules(experiment))


def _modules(experiment: Experiment) -> tuple[str, ...]:
    from benchmarks.experiments import LISTED_IN

    run: Any = experiment.run
    while hasattr(run, "func"):  # functools.partial
        run = run.func
    module = str(getattr(run, "__module__", None) or type(run).__module__)
    return tuple(sorted({module, LISTED_IN.get(experiment.name, module)}))


@cache
def _digest(modules: tuple[str, ...]) -> str:
    return digest(closure(modules))
