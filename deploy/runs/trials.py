"""The trials of a comparison: makes them from settings, checks settings and data, saves run.json."""

import contextlib
import json
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count, product
from pathlib import Path
from typing import Any

import tasks
from client.local_data import client_name
from deploy.flower.app_folder import app_folder
from deploy.flower.config import ConfigValue, default_config
from deploy.json_text import parse_json
from server.history import FILE_NAME, RunHistory
from server.recording import UnchangedModelError
from server.settings import CHECKPOINTS, RunSettings, parse_settings, read_client_settings
from strategies.checkpoint import CheckpointFolder, replacing
from strategies.clients.overrides import Groups
from strategies.options import Overrides
from strategies.selectors import available, selector_type

PLAN = "run.json"  # the file in a comparison's folder that holds the settings of its trials, for a resume
PLAN_VERSION = 1  # the version of this file's format
LARGEST_PLAN = 16 << 20  # bytes; a larger file is no plan
# The settings whose values are paths.
PATHS = {
    "data-dir",
    "client-sizes",
    "client-settings",
    "removed-clients",
    "priorities",
    "availability-trace",
    "device-speeds",
}
STOPPED = "was stopped"  # the `problem` of a trial that somebody stopped
FULL = 1 << 20  # bytes; a disk with less free space counts as full


@dataclass
class Trial:
    """One training of the federation, with one selector.

    In the descriptions below, a run is what an engine executes: the start of the trial, or one resume.
    """

    name: str
    """The name of the trial's folder and log, unique in the comparison."""
    run_config: dict[str, ConfigValue]
    """The settings that differ from the app's defaults."""
    history: RunHistory
    """The history of the trial, as far as it has been read."""
    last_words: str = ""
    """The engine's description of how the trial's last run ended; empty before a run has ended."""
    stopped: bool = False
    """Whether somebody stopped the trial's last run."""

    @property
    def folder(self) -> Path:
        """The folder of the trial's history, models and checkpoints."""
        return self.history.path.parent

    @property
    def done(self) -> bool:
        """Whether nothing is left to train: the last run reached its target accuracy, or trained all rounds.

        A trial that trained all rounds is no longer done if a resume raises the planned number of rounds.
        """
        end = self.history.end
        if end is None or not self.history.finished:
            return False
        return bool(end.get("reason")) or end.get("rounds", 0) >= self.run_config.get("num-rounds", 0)

    @property
    def has_checkpoint(self) -> bool:
        """Whether a checkpoint has been saved."""
        return bool(CheckpointFolder(self.folder / CHECKPOINTS).rounds())

    @property
    def is_unchanged(self) -> bool:
        """Whether the trial's last run failed because no round changed the model."""
        return not self.history.finished and (self.problem or "").startswith(UnchangedModelError.__name__)

    @property
    def can_go_on(self) -> bool:
        """Whether a resume would continue the training: there is a trained model, and rounds are left."""
        planned: Any = self.run_config.get("num-rounds", self.history.settings.get("num_rounds", 0))
        saved = CheckpointFolder(self.folder / CHECKPOINTS).rounds()
        return not (self.done or self.is_unchanged) and bool(saved) and saved[-1] < planned

    @property
    def problem(self) -> str | None:
        """Why the trial failed, once its last run has ended; None if the trial finished."""
        if self.history.finished:
            return None
        if self.history.end is not None:
            return str(self.history.end["reason"])
        if self.stopped:
            return STOPPED
        if not self.last_words:
            return "was not started"
        if shutil.disk_usage(next(each for each in self.folder.parents if each.exists())).free < FULL:
            return f"ended unexpectedly: no space is left for {self.folder}"
        return f"ended unexpectedly; {self.last_words}"


def plan(
    selectors: Sequence[str],
    common: Mapping[str, ConfigValue],
    app: Path,
    folder: Path,
    seeds: Sequence[int] = (),
) -> list[Trial]:
    """Check the settings of a comparison, and return a trial for each selector and seed.

    `selectors`: the selectors as on the command line: "name" or "name:setting=value,setting=value". `common`:
    the run-config settings that all trials share. Settings that are not given keep the app's defaults. `app`:
    the folder of the app, whose pyproject.toml contains the defaults. `folder`: each trial writes into its
    own subfolder of this folder. `seeds`: the seeds, if there are several: all selectors train with the first
    seed, then with the next one. (default: the seed in `common`)
    """
    defaults = default_config(app)
    trials: dict[str, Trial] = {}
    several: Sequence[int | None] = seeds if len(seeds) > 1 else [None]
    for seed, text in product(several, selectors):
        selector, colon, settings = text.partition(":")
        name = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")
        name = name if seed is None else f"{name}-seed-{seed}"
        if name in trials:
            raise ValueError(f"selector = {text!r}: given twice")
        if bool(colon) != bool(settings) or re.search(r"[\s()=,]", selector):
            raise ValueError(f"selector = {text!r}: must be name or name:setting=value,setting=value")
        run_config = {
            **common,
            **({} if seed is None else {"seed": seed}),
            "selector": selector,
            "selector-settings": settings.replace(",", " "),
            "output-dir": str(folder / name),
        }
        RunSettings.from_run_config({**defaults, **run_config})
        trials[name] = Trial(name, run_config, RunHistory(folder / name / FILE_NAME))
    return list(trials.values())


def check_data(settings: Mapping[str, ConfigValue]) -> None:
    """Create the task and the data of one client, to find errors before a run starts.

    Otherwise these errors would appear only in the clients' logs.
    """
    _task(settings).client_data(0, int(settings["num-clients"]), int(settings["seed"]))


def _task(settings: Mapping[str, ConfigValue]) -> tasks.Task:
    data = {"partition": settings.get("partition", "skewed"), "data_dir": settings.get("data-dir", "")}
    return tasks.create(str(settings["task"]), **{name: str(value) for name, value in data.items()})


def check_clients(
    trials: Sequence[Trial],
    groups: Mapping[str, str | int | None],
    private: Mapping[str, str | int | None],
    known: Collection[str] = (),
) -> None:
    """Refuse a selector whose settings need groups, costs or energies that the clients lack.

    `groups`, `private`: by client id: the group that the client reports, and the group that the client does
    not disclose. The value is None if the client has no such group. `known`: the settings per client that
    clients themselves report: any of "costs" and "energies".
    """
    for trial in trials:
        kind = selector_type(str(trial.run_config["selector"]))
        settings = kind.checked_settings(parse_settings(str(trial.run_config["selector-settings"])))
        declared = read_client_settings(str(trial.run_config.get("client-settings", "")))
        allowed = Groups.of(Overrides(settings=declared), settings)
        for client_id, group in (private if kind.clients_decide else groups).items():
            if refusal := allowed.refusal(client_id, group):
                raise ValueError(f"selector = {kind.name!r}: {client_id} cannot take part: {refusal}")
        if missing := settings.needs_per_client - declared.keys() - set(known):
            raise ValueError(
                f"selector = {kind.name!r}: its budgets need the {' and '.join(sorted(missing))} of the "
                "clients: declare them in the file client-settings"
            )


def groups_of(settings: Mapping[str, ConfigValue]) -> dict[str, str | int | None]:
    """Return the group of each client in the partition of the data, by client id.

    The value is None if the partition has no groups. The errors are those of `check_data`.
    """
    task, count, seed = _task(settings), int(settings["num-clients"]), int(settings["seed"])
    return {client_name(each, count): task.client_group(each, count, seed) for each in range(count)}


@contextlib.contextmanager
def new_run_folder(parent: Path) -> Iterator[Path]:
    """Make a folder that is named after the current time, and yield its absolute path.

    No other process gets the same folder. If several runs start in the same second, the names of the later
    ones end in -02, -03 and so on, so the names sort in the order of the starts.

    If the `with` block raises an error and the folder is still empty, the folder is removed, and `parent` too
    if it was missing before and is empty.
    """
    parent = parent.absolute()
    missing = not parent.exists()
    second = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for number in count(1):
        folder = parent / (second if number == 1 else f"{second}-{number:02d}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
        if not parent.is_dir():
            raise NotADirectoryError(f"{parent}: must be a folder")
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):  # the folder holds files already
            folder.rmdir()
            if missing:
                parent.rmdir()
        raise


def run_folder(run: str) -> Path:
    """Return the absolute folder of a run that a user names; "last" is the newest comparison in runs/."""
    if run != "last":
        return Path(run).absolute()
    plans = sorted(Path("runs").glob(f"*/{PLAN}"))
    if not plans:
        raise ValueError("run = last: there is no run in runs/; give the run's folder")
    return plans[-1].parent.absolute()


def short_path(path: Path) -> str:
    """Return the path relative to the working directory if it lies below that directory, else absolute."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def write_plan(folder: Path, trials: Sequence[Trial], engine: str = "") -> None:
    """Write the settings of a comparison's trials into its folder (see `PLAN`)."""
    settings = {
        trial.name: {k: v for k, v in trial.run_config.items() if k != "output-dir"} for trial in trials
    }
    with replacing(folder / PLAN) as file:
        plan = {"version": PLAN_VERSION, "engine": engine, "trials": settings}
        file.write(json.dumps(plan, indent=1).encode())


def planned_engine(folder: Path) -> str:
    """Return the engine that a plan names; "" if it names none. `read_plan` must have accepted the plan."""
    with (folder / PLAN).open("rb") as file:
        return str(parse_json(file.read(LARGEST_PLAN)).get("engine", ""))


def read_plan(folder: Path) -> list[Trial]:
    """Read the trials of an earlier comparison, and their histories. The folder may have been moved since."""
    try:
        with (folder / PLAN).open("rb") as file:
            text = file.read(LARGEST_PLAN + 1)
        if len(text) > LARGEST_PLAN:
            raise ValueError(f"is larger than {LARGEST_PLAN >> 20} MiB")
        saved = parse_json(text)
        if saved["version"] != PLAN_VERSION:
            raise ValueError(f"has version {saved['version']}, but this program reads version {PLAN_VERSION}")
        if not saved["trials"].items():
            raise ValueError("must have at least one trial")
        for name, config in saved["trials"].items():
            if re.fullmatch(r"[A-Za-z0-9.-]+", name) is None or set(name) == {"."}:
                raise ValueError(f"trial = {name[:80]!r}: must be the name of a folder")
            if not all(isinstance(value, ConfigValue) for value in config.values()):
                raise ValueError(f"trial = {name!r}: its settings must be numbers, texts, true or false")
            if missing := {"selector", "num-rounds"} - config.keys():
                raise KeyError(min(missing))
        trials = [
            Trial(name, {**config, "output-dir": str(folder / name)}, RunHistory(folder / name / FILE_NAME))
            for name, config in saved["trials"].items()
        ]
    except FileNotFoundError:
        raise ValueError(f"{folder}: holds no {PLAN}, so there is no comparison to resume") from None
    except KeyError as error:
        raise ValueError(f"{folder / PLAN}: cannot be used: {error} is missing") from None
    except (AttributeError, TypeError):
        raise ValueError(f"{folder / PLAN}: cannot be used: must have trials with settings") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / PLAN}: cannot be used: {error}") from None
    defaults = default_config(app_folder())
    for trial in trials:
        if (name := trial.run_config["selector"]) not in available():
            raise ValueError(f"selector = {name!r}: is not known; give the option --import of the run again")
        try:
            RunSettings.from_run_config({**defaults, **trial.run_config})
        except ValueError as error:
            wrong = "; ".join(str(error).splitlines())
            raise ValueError(f"{folder / PLAN}: cannot be used: trial = {trial.name!r}: {wrong}") from None
        trial.history.read(skip_damaged=True)
    return trials


def with_absolute_paths(settings: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """Return the settings with absolute paths, because apps run in other working directories."""
    absolute = {
        name: str(Path(str(settings[name])).expanduser().absolute())
        for name in PATHS & settings.keys()
        if settings[name]
    }
    return {**settings, **absolute}


def parse_setting(text: str) -> tuple[str, ConfigValue]:
    """Parse "key=value". A value that is a JSON scalar (0.1, 5, true) is parsed, others are strings."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError(f"set = {text!r}: must be of the form key=value")
    try:
        parsed = parse_json(value)
    except ValueError:
        return key, value
    return key, parsed if isinstance(parsed, ConfigValue) else value
