"""Planning a comparison: its trials train the same federation, each with another selector."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tasks
from deploy.flower.config import ConfigValue, default_config
from server.history import FILE_NAME, RunHistory
from server.settings import RunSettings
from strategies.checkpoint import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


PLAN = "run.json"  # in a run's folder: the settings of its trials, so that they can be resumed
PLAN_VERSION = 1
FULL = 1 << 20  # bytes; a disk with less free space counts as full


@dataclass
class Trial:
    """One training of the federation."""

    name: str
    """Unique among the trials of a comparison; the name of its folder and its log."""
    run_config: dict[str, ConfigValue]
    """The settings that differ from the app's defaults."""
    history: RunHistory
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
    """Turn the selectors of the command line into trials, with all settings checked.

    Parameters
    ----------
    selectors : Sequence[str]
        "name" or "name:setting=value,setting=value".
    common : Mapping[str, ConfigValue]
        Run-config settings of all trials; the others keep the app's defaults.
    app : Path
        The folder whose pyproject.toml holds the defaults.
    folder : Path
        Each trial writes into its own folder below this one.

    Raises
    ------
    ValueError
        One line for each wrong setting: its name, its value, the allowed values.
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
        trials[name] = Trial(name, run_config, RunHistory(folder / name / FILE_NAME))
    return list(trials.values())


def check_data(settings: Mapping[str, ConfigValue]) -> None:
    """Create the task and one client's data here, since errors in them would show only in the clients' logs.

    Raises
    ------
    ValueError
        If the data do not exist, or cannot be partitioned as the settings say.
    ModuleNotFoundError
        If the task or the data need an extra of this package; the message names it.
    """
    data = {"partition": settings.get("partition", "skewed"), "data_dir": settings.get("data-dir", "")}
    task = tasks.create(str(settings["task"]), **{name: str(value) for name, value in data.items()})
    task.client_data(0, int(settings["num-clients"]), int(settings["seed"]))


def write_plan(folder: Path, trials: Sequence[Trial]) -> None:
    """Write the trials of a run into its folder.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    settings = {
        trial.name: {k: v for k, v in trial.run_config.items() if k != "output-dir"} for trial in trials
    }
    with replacing(folder / PLAN) as file:
        file.write(json.dumps({"version": PLAN_VERSION, "trials": settings}, indent=1).encode())


def read_plan(folder: Path) -> list[Trial]:
    """Return the trials of an earlier run, with their histories; the folder may have been moved.

    Raises
    ------
    ValueError
        If the folder holds no run, or none that can be resumed.
    """
    try:
        saved = json.loads((folder / PLAN).read_bytes())
        if saved["version"] != PLAN_VERSION:
            raise ValueError(f"has version {saved['version']}, but this program reads version {PLAN_VERSION}")
        trials = [
            Trial(name, {**config, "output-dir": str(folder / name)}, RunHistory(folder / name / FILE_NAME))
            for name, config in saved["trials"].items()
        ]
    except FileNotFoundError:
        raise ValueError(f"{folder}: holds no {PLAN}, so there is no run to resume") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / PLAN}: cannot be used: {error}") from None
    for trial in trials:
        trial.history.read()
    return trials


def parse_setting(text: str) -> tuple[str, ConfigValue]:
    """Parse "key=value"; the value is a JSON scalar (0.1, 5, true), and otherwise a string.

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
