"""Makes a comparison from the options of `cohort up` and `cohort simulate`, or from the folder to resume."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import typer

from deploy.engines.local_cluster import MARK
from deploy.flower.app_folder import app_folder
from deploy.flower.config import ConfigValue
from deploy.processes.groups import processes_with, wait_until
from deploy.runs.trials import (
    PLAN,
    Trial,
    check_clients,
    check_data,
    groups_of,
    parse_setting,
    plan,
    planned_engine,
    read_plan,
    run_folder,
    with_absolute_paths,
    write_plan,
)
from deploy.tls.certificates import foreign_owner
from server.tracking import check_trackers
from strategies.clients.printable import counted

RECLAIM_TIMEOUT = 30.0  # seconds that the old processes of a resumed comparison may take to end
# The run-config setting that each parameter of `up` and `simulate` sets.
KEY_OF = {
    "clients": "num-clients",
    "rounds": "num-rounds",
    "per_round": "clients-per-round",
    "task": "task",
    "seed": "seed",
}
# The command-line option of each run-config setting that has one. --set refuses these settings.
OPTION_OF = {
    "num-clients": "--clients",
    "num-rounds": "--rounds",
    "clients-per-round": "--per-round",
    "selector": "--selector",
    "selector-settings": "--selector",
    "task": "--task",
    "seed": "--seed",
    "track": "--track",
    "output-dir": "--out",
    "resume": "--resume",
}

# The settings that each trial of a plan must have, beside those that `read_plan` checks.
NEEDED = {"task", "num-clients", "clients-per-round", "seed"}


class Comparison(NamedTuple):
    """A comparison of trials that train the same federation."""

    folder: Path
    """The folder of the comparison."""
    trials: list[Trial]
    """At least one trial."""

    @property
    def clients(self) -> int:
        """The number of clients."""
        return int(self.trials[0].run_config["num-clients"])

    @property
    def by_seed(self) -> dict[ConfigValue, list[Trial]]:
        """The trials of each seed."""
        found: dict[ConfigValue, list[Trial]] = {}
        for trial in self.trials:
            found.setdefault(trial.run_config["seed"], []).append(trial)
        return found

    @property
    def title(self) -> str:
        """The size of the federation, its task and the seeds, in one line."""
        settings = self.trials[0].run_config
        seeds = list(self.by_seed)
        shown = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
        return (
            f"{counted(self.clients, 'client')} · {settings['clients-per-round']} per round · "
            f"{settings['task']} · {shown}"
        )


def planned_comparison(
    clients: int,
    rounds: int,
    per_round: int,
    selectors: Sequence[str],
    task: str,
    seeds: Sequence[int],
    folder: Path,
    settings: Sequence[str] | None,
    track: Sequence[str] | None,
) -> Comparison:
    """Return the comparison that the command-line options describe. Nothing is written yet."""
    common: dict[str, ConfigValue] = {
        "num-clients": clients,
        "num-rounds": rounds,
        "clients-per-round": per_round,
        "task": task,
        "seed": seeds[0],
    }
    common |= _parsed(settings)
    if track:
        common["track"] = " ".join(track)
    common = with_absolute_paths(common)
    trials = plan(selectors, common, app_folder(), folder, seeds)
    check_data(common)
    for seed in seeds:
        groups = groups_of({**common, "seed": seed})
        check_clients([trial for trial in trials if trial.run_config["seed"] == seed], groups, groups)
    return Comparison(folder, trials)


def resumed(run: str, given: Mapping[str, Any]) -> Comparison:
    """Return an earlier comparison, to resume it.

    `run`: the folder of the comparison, or "last" for the newest one in runs/. `given`: the options that the
    user gave, by parameter name. ``seeds`` and ``out`` are refused. The other options must equal the saved
    settings, except for the number of rounds: a larger number replaces the saved number, a smaller number is
    ignored.
    """
    folder = run_folder(run)
    if "seeds" in given:
        raise ValueError(f"seeds = {given['seeds']!r}: a resumed run keeps its seeds")
    if "out" in given:
        raise ValueError(f"out = {given['out']}: a resumed run must stay in its folder")
    trials = read_plan(folder)
    for trial in trials:
        if missing := NEEDED - trial.run_config.keys():
            where = f"{folder / PLAN}: cannot be used: trial = {trial.name!r}"
            raise ValueError(f"{where}: {', '.join(sorted(missing))} missing")
    changes = {key: given[name] for name, key in KEY_OF.items() if name in given}
    changes |= with_absolute_paths(_parsed(given.get("settings")))
    if "track" in given:
        changes["track"] = " ".join(given["track"])
    rounds = changes.pop("num-rounds", 0)
    for trial in trials:
        for key, value in changes.items():
            if trial.run_config.get(key) != value:
                before = trial.run_config.get(key, "the default")
                raise ValueError(f"{key} = {value}: the run to be resumed has {before}")
        trial.run_config["num-rounds"] = max(rounds, trial.run_config["num-rounds"])
        check_trackers(str(trial.run_config.get("track", "")))
    if "selectors" in given:
        seeds = list(dict.fromkeys(int(trial.run_config["seed"]) for trial in trials))
        again = plan(given["selectors"], trials[0].run_config, app_folder(), folder, seeds)
        names = [trial.name for trial in again]
        if names != [trial.name for trial in trials]:
            before = ", ".join(trial.name for trial in trials)
            raise ValueError(
                f"selector = {', '.join(given['selectors'])}: the run to be resumed has {before}"
            )
    return Comparison(folder, trials)


def _parsed(settings: Sequence[str] | None) -> dict[str, ConfigValue]:
    """Return the settings of `--set` by key. Settings that have an option of their own are refused."""
    found = dict(map(parse_setting, settings or ()))
    for key in found.keys() & OPTION_OF.keys():
        raise ValueError(f"set = {key}={found[key]}: use {OPTION_OF[key]} for this setting")
    return found


def resumed_engine(folder: Path, engine: str, *, is_given: bool) -> str:
    """Return the engine with which to resume a comparison.

    `folder`: the folder of the comparison, which `resumed` has read. `engine`: "cluster", or the value of
    ``--engine``. `is_given`: whether the user chose this engine. Otherwise a simulation keeps its engine.
    """
    before = planned_engine(folder)
    if not is_given and before in ("ray", "batched"):
        return before
    if before and "batched" in (before, engine) and before != engine:
        command = {"cluster": "cohort up", "ray": "cohort simulate", "batched": "cohort simulate"}[before]
        raise ValueError(
            f"engine = {engine}: the run to be resumed has {before}; resume it with "
            f"{command} --resume {folder}"
        )
    return engine


def claim(comparison: Comparison, engine: str, *, again: bool) -> None:
    """Prepare the folder of a comparison, and write the plan into it.

    `engine`: the engine that trains it: "cluster", "ray" or "batched". `again`: whether the comparison is
    resumed. Then its folder exists and is taken over. Otherwise the folder must be missing or empty.
    """
    folder = comparison.folder
    try:
        if again:
            _reclaim(folder)
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"out = {folder}: must be a new or an empty folder")
        (folder / "logs").mkdir(parents=True)
        if engine != "batched" and (why := foreign_owner(folder)):  # a batched simulation has no keys
            (folder / "logs").rmdir()
            raise ValueError(f"out = {folder}: {why}")
        write_plan(folder, comparison.trials, engine)
    except OSError as error:
        raise ValueError(f"out = {folder}: cannot be created or written: {error.strerror}") from error


def _reclaim(folder: Path) -> None:
    """Take over the folder of a comparison that has ended or was killed.

    The state of the old processes is removed, and the folder of their logs is renamed.
    """
    # Wait for the old watchdog too: it would kill the new processes, which have the same mark.
    marked = partial(processes_with, MARK, str(folder.resolve()))
    if marked():
        typer.echo(f"resume = {folder}: waiting up to {RECLAIM_TIMEOUT:g} s for its processes", err=True)
    if not wait_until(lambda: not marked(), RECLAIM_TIMEOUT):
        raise ValueError(f"resume = {folder}: this run is still going on; stop it first")
    if sys.platform == "linux":  # on other systems, old processes may still use the state
        shutil.rmtree(folder / "state", ignore_errors=True)
    if (folder / "logs").exists():
        number = next(n for n in count(1) if not (folder / f"logs-{n}").exists())
        (folder / "logs").rename(folder / f"logs-{number}")
