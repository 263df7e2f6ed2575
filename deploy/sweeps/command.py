"""The command `cohort sweep`: plans the trials of a TOML file, trains them, writes and prints the results."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from deploy.option_types import Track, argument, fail, optional
from deploy.processes.signals import raise_on_signals
from deploy.runs.trial_statistics import number
from deploy.runs.trials import short_path
from deploy.sweeps.grid import PlannedTrial, Sweep, axes_of, planned_trials, read_sweep
from deploy.sweeps.jobs import finished, on_this_machine, shown
from deploy.sweeps.statistics import Result
from server.tracking import check_trackers
from strategies import extensions
from strategies.checkpoint import CheckpointError, CheckpointFolder
from strategies.clients.printable import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.sweeps.jobs import Ended
    from deploy.sweeps.trial_worker import Job

TRIALS = "trials"  # the folder of the trials' folders, inside the sweep's folder
LOCK = "lock"  # the folder inside a sweep's folder whose lock keeps other sweeps out


def sweep(
    file: Annotated[Path, argument(help="The grid: a TOML file (docs/sweeps.md).")],
    out: Annotated[
        Path | None, optional(help="Folder of the results. (default: runs/ and the file's name)")
    ] = None,
    jobs: Annotated[
        int | None, optional(min=1, help="Trials at a time on this machine. (default: one for each core)")
    ] = None,
    on: Annotated[
        Literal["local", "ray"],
        typer.Option(
            help="local: processes of this machine. ray: the Ray cluster at RAY_ADDRESS, or a new one here."
        ),
    ] = "local",
    track: Track = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file, list the trials, stop.")
    ] = False,
) -> None:
    """Train every combination of selectors, settings and seeds of FILE, and compare the results.

    Finished trials are kept: the same command continues a sweep, also after a kill or a change of FILE.
    """
    try:
        read = read_sweep(file)
        extensions.name_modules(read.imports)
        check_trackers(" ".join(track or []))
        folder = (out or Path("runs") / file.stem).absolute()
        trials = planned_trials(read, folder)
        if on == "ray" and jobs is not None:
            raise ValueError(
                f"jobs = {jobs}: cannot be combined with --on ray, which uses the cluster's CPUs"
            )
        places = _places(trials, folder, track or [])
        if dry_run:
            _list(places)
            return
    except (ModuleNotFoundError, TypeError, ValueError) as error:
        fail(str(error))
    lock = CheckpointFolder(folder / LOCK)
    try:
        lock.claim(wait=0)
    except CheckpointError:
        fail(f"out = {folder}: another sweep writes into this folder; stop it, or use another folder", 2)
    except OSError as error:
        fail(f"out = {folder}: cannot be created or written: {error.strerror}", 2)
    try:
        _run(read, places, folder, jobs or os.cpu_count() or 1, on)
    finally:
        lock.release()


def _places(
    trials: Sequence[PlannedTrial], folder: Path, track: Sequence[str]
) -> dict[str, tuple[PlannedTrial, Job]]:
    """Return each trial and its job, by the digest of the trial's result."""
    from deploy.sweeps import trial_digests
    from deploy.sweeps.trial_worker import Job

    places: dict[str, tuple[PlannedTrial, Job]] = {}
    for each in trials:
        config = {**each.trial.run_config}
        key = trial_digests.of_trial(config)
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", f"{each.selector} {each.case}").strip("-")[:80]
        config["output-dir"] = str(folder / TRIALS / f"{slug}-seed-{each.seed}-{key[:12]}")
        if track:
            config["track"] = " ".join(track)
        if key in places:
            other = places[key][0]
            raise ValueError(
                f"{each.selector} ({each.case}) and {other.selector} ({other.case}) are the same trial: "
                "every combination needs different settings"
            )
        places[key] = each, Job(key, config, trial_digests.of_code())
    return places


def _run(
    read: Sweep,
    places: dict[str, tuple[PlannedTrial, Job]],
    folder: Path,
    workers: int,
    on: Literal["local", "ray"],
) -> None:
    from deploy.sweeps.ray_cluster import on_ray
    from deploy.sweeps.report import sentences, table, write_results
    from deploy.sweeps.statistics import cells, paired_tests
    from deploy.sweeps.trial_worker import execute

    console = Console(highlight=False, markup=False)
    outcomes = {key: found for key, (_, job) in places.items() if (found := finished(job))}
    waiting = [job for key, (_, job) in places.items() if key not in outcomes]
    where = "on Ray" if on == "ray" else f"{min(workers, max(1, len(waiting)))} at a time"
    kept = f"; {len(outcomes)} are finished already" if outcomes else ""
    console.print(
        f"{counted(len(places), 'trial')}, {where}; all files go to {short_path(folder)}{kept}",
        soft_wrap=True,
    )
    problems: list[str] = []
    stopped: str = ""

    def told(end: Ended) -> str:
        label = _label(places[end.key][0])
        if end.result is None:
            return f"{label}: failed"
        accuracy = number(end.result["accuracy"], ".1f", " %", scale=100)
        return f"{label}: accuracy {accuracy}, {end.result['seconds']:.1f} s"

    try:
        with raise_on_signals(lambda number: SystemExit(128 + number)):
            run = on_ray(waiting) if on == "ray" else on_this_machine(waiting, workers, execute)
            for end in shown(console, run if waiting else (), len(places), len(outcomes), told):
                if end.result is None:
                    problems.append(f"{_label(places[end.key][0])}: {end.problem}")
                else:
                    outcomes[end.key] = end.result
    except KeyboardInterrupt:
        stopped = "stopped; the same command continues the sweep"
    except (ModuleNotFoundError, ConnectionError, RuntimeError) as error:
        stopped = str(error)
    results = [
        Result(each.selector, each.case, each.varied, each.seed, outcomes[key])
        for key, (each, _) in places.items()
        if key in outcomes
    ]
    if results:
        axes = axes_of([each for each, _ in places.values()])
        try:
            names = write_results(folder, results, axes, read.baseline, len(places))
        except OSError as error:
            fail(f"out = {folder}: the results cannot be written: {error.strerror}; run the command again", 1)
        console.print(table(cells(results)))
        for line in sentences(paired_tests(results, read.baseline)):
            console.print(line)
        console.print(
            f"results    {', '.join(f'{short_path(folder)}/{name}' for name in names)}", soft_wrap=True
        )
    for problem in problems:
        typer.echo(problem, err=True)
    if stopped:
        fail(stopped, 130 if stopped.startswith("stopped") else 1)
    if problems:
        raise typer.Exit(1)


def _list(places: dict[str, tuple[PlannedTrial, Job]]) -> None:
    for each, job in places.values():
        typer.echo(f"{_label(each)}{'  (finished)' if finished(job) else ''}")
    typer.echo(counted(len(places), "trial"))


def _label(each: PlannedTrial) -> str:
    return " ".join(filter(None, [each.selector, each.case, f"seed {each.seed}"]))
