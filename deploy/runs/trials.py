"""The trials of a comparison: the same federation trained once with each selector."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import tasks
from deploy.flower.submission import ConfigValue, default_config
from deploy.runs.history import FILE_NAME, ArmHistory
from server.settings import CHECKPOINTS, RunSettings
from strategies.checkpoint import CheckpointFolder, replacing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deploy.flower.submission import Engine, RunHandle
    from deploy.runs.history import Line

WATCH_INTERVAL = 0.2  # seconds between two looks at the histories
PLAN = "run.json"  # in a run's folder: what its trials are, so that they can be resumed
PLAN_VERSION = 1
FULL = 1 << 20  # bytes that are free on a disk without space, at most
TRIES = 3  # how often in a row an trial is submitted without bringing a new round


@dataclass
class Trial:
    """One training of the federation."""

    name: str
    """Unique among the trials; the name of its folder and log."""
    run_config: dict[str, ConfigValue]
    history: ArmHistory
    handle: RunHandle | None = None
    """Set once it is submitted."""
    _submissions: int = 0
    _starts: int = 0  # of the history, when it was submitted
    _reached: int = -1  # the last round that ever was
    _tries: int = 0  # without getting further

    @property
    def done(self) -> bool:
        """Whether there is nothing left to train, also when it now has more rounds than it once had."""
        end = self.history.end
        if end is None or not self.history.finished:
            return False
        return bool(end.get("reason")) or end.get("rounds", 0) >= self.run_config.get("num-rounds", 0)

    @property
    def begun(self) -> bool:
        """Whether the ServerApp has begun since the trial was submitted."""
        return self.history.starts > self._starts

    @property
    def killed(self) -> bool:
        """Whether its ServerApp began and was killed, which is known at once; Flower takes a minute."""
        return self.begun and self._checkpoints.is_abandoned()

    @property
    def alive(self) -> bool:
        """Whether its ServerApp is at work, whatever Flower says."""
        return self._checkpoints.is_claimed()

    @property
    def _checkpoints(self) -> CheckpointFolder:
        return CheckpointFolder(self.history.path.parent / CHECKPOINTS)

    def start(self) -> dict[str, ConfigValue]:
        """Return the run config to submit; an trial that has a history goes on from its last checkpoint."""
        self.history.read()
        self.history.end = None
        self._starts = self.history.starts
        return self.run_config | ({"resume": True} if self.history.path.exists() else {})

    def submit(self, engine: Engine) -> None:
        """Begin or resume it on an engine."""
        self._submissions += 1
        name = self.name if self._submissions == 1 else f"{self.name}-{self._submissions}"
        self.handle = engine.submit(self.start(), name)

    def died(self) -> bool:
        """Tell whether its ServerApp was killed and should be started again; asked once, when it is over.

        A run that failed says so in its history. One that only broke off goes on from its checkpoint, unless
        that was in vain `TRIES` times in a row.
        """
        if self.history.end is not None or not self.history.settings:
            return False
        last = self.history.rounds[-1]["round"] if self.history.rounds else -1
        self._tries = 1 if last > self._reached else self._tries + 1
        self._reached = max(last, self._reached)
        return self._tries <= TRIES

    @property
    def problem(self) -> str | None:
        """Why the trial failed, once it is over; None if it did not."""
        if self.history.finished:
            return None
        if self.history.end is not None:
            return str(self.history.end["reason"])
        if self.handle is None:
            return "was not started"
        folder = self.history.path.parent
        if shutil.disk_usage(next(each for each in folder.parents if each.exists())).free < FULL:
            return f"ended without a word: no space is left for {folder}"
        return f"ended without a word; the end of {self.handle.log}:\n{self.handle.process.tail()}"


class Watcher(Protocol):
    """Who wants to know how the training goes."""

    def lines(self, trial: Trial, lines: Sequence[Line]) -> None:
        """Hear what an trial's history says since the last call."""

    def event(self, text: str) -> None:
        """Hear of something that concerns all trials."""

    def refresh(self) -> None:
        """Hear that all histories have been looked at."""


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
        trials[name] = Trial(name, run_config, ArmHistory(folder / name / FILE_NAME))
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
            Trial(name, {**config, "output-dir": str(folder / name)}, ArmHistory(folder / name / FILE_NAME))
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


def train(engine: Engine, trials: Sequence[Trial], watcher: Watcher, *, at_once: bool) -> None:
    """Run the trials on the engine until all are over, each however it went (see `Trial.problem`).

    Those that are done stay as they are, and those that have begun earlier go on. So does, at once, one whose
    ServerApp is killed.

    Parameters
    ----------
    at_once : bool
        Whether all trials train at the same time, their messages taking turns at the clients, or one
        after the other.

    Raises
    ------
    EngineError
        If the engine dies.
    """
    waiting = [trial for trial in trials if not trial.done]
    running: list[Trial] = []
    while waiting or running:
        for client in engine.check():
            watcher.event(f"{client} died; the rounds go on without it (log: {engine.logs / client}.log)")
        # Each begins only when the one before has begun its history. All ServerApps share the SuperLink's
        # home, where the first unpacks the app: started together, the others would import half-written
        # files. And the histories begin in the order of the trials, by which `read_run` finds it again.
        if waiting and (not running or (at_once and running[-1].begun)):
            trial = waiting.pop(0)
            trial.submit(engine)
            running.append(trial)
        for trial in list(running):
            # Looked at first: the last lines come before it.
            over = trial.killed or (trial.handle is not None and trial.handle.over)
            try:
                watcher.lines(trial, trial.history.read())
            except Exception as error:  # whatever is wrong with one trial's lines, all go on
                watcher.event(f"{trial.name}: cannot be shown: {error!r}")
            if over:
                running.remove(trial)
                if trial.died():
                    if trial.handle is not None and not trial.handle.over:
                        engine.abort(trial.handle)
                    watcher.event(f"{trial.name}: its ServerApp ended without a word; it is started again")
                    trial.submit(engine)
                    running.append(trial)
                elif trial.problem:
                    watcher.event(f"{trial.name} failed: {trial.problem}")
        watcher.refresh()
        time.sleep(WATCH_INTERVAL)
