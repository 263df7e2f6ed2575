"""Writes the data files of experiments and of benchmarks."""

from __future__ import annotations

import datetime
import json
import os
import resource
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.experiments.running import plan_all
from benchmarks.experiments.sources import digest_of, sources_of
from benchmarks.fresh import ONE_THREAD
from benchmarks.results.files import FOLDER, Measured, recorded, write
from benchmarks.results.machine import commit, machine
from deploy.flower.app_folder import CODE
from deploy.sweeps.source_digests import closure, digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.experiments.report import Experiment, Report


REPEATABLE = {"advice": "benchmarks.advice.measure", "over-selection": "benchmarks.over_selection"}
"""Each benchmark whose output depends on its sources and arguments alone -> the module that it runs."""
ROOMS = ("strategies", "tasks", "client", "server", "simulation", "deploy", "benchmarks")


def command_of(experiment: Experiment, seeds: int | None = None) -> str:
    """Return the command that records an experiment with a number of seeds, by default its usual number."""
    more = f" --seeds {seeds}" if seeds not in (None, experiment.seeds) else ""
    data = " --data FOLDER" if experiment.data else ""
    return f"cohort bench papers {experiment.name} --record{more}{data}"


def today() -> str:
    """Return the date in UTC, in the form 2026-11-24."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def record_report(report: Report, out: Path, data: Path | None, folder: Path = FOLDER) -> Path:
    """Write the data file of an experiment whose seeds have all run with the present code.

    Parameters
    ----------
    report : Report
        The report of all seeds.
    out, data : Path
        See `benchmarks.experiments.running.run_all`.
    folder : Path
        Where the file is written.

    Raises
    ------
    ValueError
        If a seed is missing, or is outdated.
    """
    experiment = report.experiment
    jobs = plan_all([experiment], out, seeds=len(report.outcomes), data=data)[experiment.name]
    results = [job.read() for job in jobs]
    if any(result is None or result.sources != digest_of(experiment) for result in results):
        raise ValueError(f"{experiment.name}: a seed is missing, or is outdated; run it with --fresh")
    seconds = [result.seconds for result in results if result]
    return write(
        recorded(
            report,
            [job.seed for job in jobs],
            seconds,
            measured=today(),
            command=command_of(experiment, len(jobs)),
            commit=commit(sources_of(experiment)),
            sources=digest_of(experiment),
            data=jobs[0].digest,
            machine=machine(),
        ),
        folder,
    )


def measure(command: str, folder: Path = FOLDER, environment: Mapping[str, str] | None = None) -> Path:
    """Run a benchmark, and write what it prints as JSON into its data file.

    Parameters
    ----------
    command : str
        The command after ``cohort bench``, for example "selection --sizes 1e4,1e6". The name of the file is
        the first word.
    environment : mapping of str to str, optional
        Further environment variables of the benchmark (default: none).

    Raises
    ------
    ValueError
        If the benchmark fails, or prints no JSON.
    """
    words = shlex.split(command)
    if "--json" not in words:
        words.append("--json")
    before = _children()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words],
        cwd=CODE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(ONE_THREAD if words[0] in REPEATABLE else {}), **(environment or {})},
        check=False,
    )
    if done.returncode:
        raise ValueError(f"cohort bench {shlex.join(words)}: ended with exit code {done.returncode}")
    text = f"cohort bench results --measure {shlex.quote(command)}"
    return write(
        Measured(
            name=words[0],
            measured=today(),
            command=text,
            commit=commit(_sources(words[0]) or [CODE / room for room in ROOMS]),
            machine=machine(),
            output=_json(done.stdout, text),
            seconds=round(_children() - before, 1),
            sources=digest_of_benchmark(words[0]),
        ),
        folder,
    )


def digest_of_benchmark(name: str) -> str:
    """Return the digest of the sources of a benchmark in `REPEATABLE`, else ""."""
    files = _sources(name)
    return digest(files) if files else ""


def _sources(name: str) -> list[Path]:
    return closure([REPEATABLE[name]]) if name in REPEATABLE else []


def _children() -> float:
    """Return the CPU seconds of this process's children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _json(text: str, command: str) -> list[object]:
    """Return the JSON values in the output of a command: one value, or one in each line.

    NaN and infinities become null.
    """
    try:
        return [json.loads(text, parse_constant=lambda name: None)]
    except ValueError:
        pass
    try:
        lines = [line for line in text.splitlines() if line.strip()]
        return [json.loads(line, parse_constant=lambda name: None) for line in lines]
    except ValueError as error:
        raise ValueError(f"{command}: printed something that is not JSON: {error}") from error
