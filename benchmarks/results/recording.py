"""Writes the data files of experiments and of benchmarks."""

import datetime
import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.experiments.report import Experiment, Report
from benchmarks.experiments.running import data_file, digest_of, sources_of
from benchmarks.fresh import ONE_THREAD
from benchmarks.results.files import FOLDER, Measured, recorded, write
from benchmarks.results.machine import commit, machine
from deploy.flower.app_folder import CODE
from deploy.sweeps.source_digests import closure, digest

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


def record_report(report: Report, data: Path | None, folder: Path = FOLDER) -> Path:
    """Write the data file of an experiment; `data` is the folder with the files that experiments need."""
    experiment = report.experiment
    result = recorded(
        report,
        measured=today(),
        command=command_of(experiment, len(report.outcomes)),
        commit=commit(sources_of(experiment)),
        sources=digest_of(experiment),
        data=data_file(experiment, data)[1],
        machine=machine(),
    )
    return write(result, folder)


def measure(command: str, folder: Path = FOLDER, environment: Mapping[str, str] | None = None) -> Path:
    """Run the command after ``cohort bench``, and write the JSON that it prints to its data file."""
    words = shlex.split(command)
    if "--json" not in words:
        words.append("--json")
    name, before = words[0], _children()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words],
        cwd=CODE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(ONE_THREAD if name in REPEATABLE else {}), **(environment or {})},
        check=False,
    )
    if done.returncode:
        raise ValueError(f"cohort bench {shlex.join(words)}: ended with exit code {done.returncode}")
    text = f"cohort bench results --measure {shlex.quote(command)}"
    try:
        output = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    except ValueError as error:
        raise ValueError(f"{text}: printed something that is not JSON: {error}") from error
    result = Measured(
        name=name,
        measured=today(),
        command=text,
        commit=commit(_sources(name) or [CODE / room for room in ROOMS]),
        machine=machine(),
        output=output,
        seconds=round(_children() - before, 1),
        sources=digest_of_benchmark(name),
    )
    return write(result, folder)


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
