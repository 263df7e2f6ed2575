"""The trials of a comparison: the same federation trained once with each selector."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tasks
from deploy.flower.config import ConfigValue, default_config
from deploy.runs.history import FILE_NAME, TrialHistory
from server.settings import RunSettings
from strategies.checkpoint import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


PLAN = "run.json"  # in a run's folder: what its trials are, so that they can be resumed
PLAN_VERSION = 1
FULL = 1 << 20  # bytes that are free on a disk without space, at most


@dataclass
class Trial:
    """One training of the federation."""

    name: str
    """Unique among the trials of a comparison; the name of its folder and its log."""
    run_config: dict[str, ConfigValue]
    """The settings that differ from the app's defaults."""
    history: TrialHistory
    last_words: str = ""
    """What the engine knew about the end of the last run, once the trial is over."""

    @property
    def folder(self) -> Path:
        """The folder of the trial's history, models and checkpoints."""
        return self.history.path.parent

    @property
    def done(self) -> bool:
        """Whether all planned rounds are trained, also if more rounds are planned now than at first."""
        end = self.history.end
        if end is None or not self.history.finished:
            return False
        return bool(end.get("reason")) or end.get("rounds", 0) >= self.run_config.get("num-rounds", 0)

    @property
    def problem(self) -> str | None:
        """Why the trial failed, once it is over; None if it did not."""
        if self.history.finished:
            return None
        if self.history.end is not None:
            return str(self.history.end["reason"])
        if not self.last_words:
            return "was not started"
        if shutil.disk_usage(next(each for each in self.folder.parents if each.exists())).free < FULL:
            return f"ended unexpectedly: no space is left for {self.folder}"
        return f"ended unexpectedly; {self.last_words}"


def plan(selectors: Sequence[str], common: Mapping[str, ConfigValue], app: Path, folder: Path) -> list[Trial]:
    """Turn the command line's words into trials, all settings checked.

    Parameters
    ----------
    selectors : Sequence[str]
        "name" or "name:setting=value,setting=value".
    common : Mapping[str, ConfigValue]
        Run-config settings of all trials that differ from the app's defaults.
    app : Path
        The folder whose pyproject.toml holds the defaults.
    folder : Path
        Each trial's files go into a folder of its own below this one.

    Raises
    ------
    ValueError
        One line for each wrong setting: its name, its value, what is allowed.
    """
    defaults = default_config(app)
    trials: dict[str, Trial] = {}
    for text in selectors:
        selector, colon, settings = text.partition(":")
        name = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")
        if name in trials:
            raise ValueError(f"selector = {text!r}: given twice")
        if bool(colon) != bool(settings):
            raise ValueError(f"selector = {text!r}: must be name or name:setting=value,setting=value")
        run_config = {
            **common,
            "selector": selector,
            "selector-settings": settings.replace(",", " "),
            "output-dir": str(folder / name),
        }
        RunSettings.from_run_config({**defaults, **run_config})
        trials[name] = Trial(name, run_config, TrialHistory(folder / name / FILE_NAME))
    return list(trials.values())


def try_out(settings: Mapping[str, ConfigValue]) -> None:
    """Make the task and a client's data, or what is wrong with them would show only in the clients' logs.

    Raises
    ------
    ValueError
        If there are no such data, or they cannot be shared out so.
    ModuleNotFoundError
        If the task or the data need an extra; the message says which.
    """
    data = {"partition": settings.get("partition", "skewed"), "data_dir": settings.get("data-dir", "")}
    task = tasks.create(str(settings["task"]), **{name: str(value) for name, value in data.items()})
    task.client_data(0, int(settings["num-clients"]), int(settings["seed"]))


def write_plan(folder: Path, trials: Sequence[Trial]) -> None:
    """Write down what a run's trials are, in its folder.

    Raises
    ------
    OSError
        If that cannot be written.
    """
    told = {trial.name: {k: v for k, v in trial.run_config.items() if k != "output-dir"} for trial in trials}
    with replacing(folder / PLAN) as file:
        file.write(json.dumps({"version": PLAN_VERSION, "trials": told}, indent=1).encode())


def read_plan(folder: Path) -> list[Trial]:
    """Return the trials of an earlier run, as far as they got; the folder may have been moved.

    Raises
    ------
    ValueError
        If the folder is not one of a run, or of one that cannot be resumed.
    """
    try:
        told = json.loads((folder / PLAN).read_bytes())
        if told["version"] != PLAN_VERSION:
            raise ValueError(f"is of version {told['version']}, this program reads {PLAN_VERSION}")
        trials = [
            Trial(name, {**config, "output-dir": str(folder / name)}, TrialHistory(folder / name / FILE_NAME))
            for name, config in told["trials"].items()
        ]
    except FileNotFoundError:
        raise ValueError(f"{folder}: holds no {PLAN}, so there is no run to resume") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / PLAN}: cannot be used: {error}") from None
    for trial in trials:
        trial.history.read()
    return trials


def parse_setting(text: str) -> tuple[str, ConfigValue]:
    """Read "key=value"; the value is a JSON scalar (0.1, 5, true), anything else a string.

    Raises
    ------
    ValueError
        If there is no "=".
    """
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError(f"set = {text!r}: must be of the form key=value")
    try:
        parsed = json.loads(value)
    except ValueError:
        return key, value
    return key, parsed if isinstance(parsed, ConfigValue) else value
