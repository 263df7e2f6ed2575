"""The grid of a sweep: the settings of every trial, from a TOML file.

The keys of the file are settings of a run, besides `case`, `baseline` and `import`. A list of values is an
axis: there is a trial for each combination of all axes. Settings that vary together are tables ``[[case]]``.
"""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from deploy.engines.batched import check_batched
from deploy.engines.simulated_availability import check_availability
from deploy.flower.app_folder import app_folder
from deploy.flower.config import ConfigValue, default_config
from deploy.runs.seed_statistics import MOST, parse_seeds
from deploy.runs.trials import PATHS, Trial, check_clients, check_data, groups_of, plan
from strategies.selectors.checks import did_you_mean

CASE, NAME, BASELINE, IMPORT = "case", "name", "baseline", "import"
OWN = (CASE, BASELINE, IMPORT)  # keys of the file that are no settings of a run
# Settings of a run that a file must not give, and what to use instead.
INSTEAD = {
    "selector-settings": "give them with the selector: \"osmd:alpha=0.1\", or {name = 'osmd', alpha = 0.1}",
    "output-dir": "use the option --out",
    "resume": "the same command again continues a sweep",
    "track": "use the option --track",
}
LARGEST = 100_000  # the most trials of a sweep
# The settings that `check_data` and `groups_of` read.
_OF_DATA = ("task", "partition", "data-dir", "num-clients", "seed")


class PlannedTrial(NamedTuple):
    """A trial of a sweep, and its place in the grid."""

    trial: Trial
    selector: str
    """The selector with its settings, as on the command line."""
    case: str
    """A text: the settings or the name that distinguish the trial from others with its selector and seed."""
    varied: dict[str, ConfigValue]
    """The settings that `case` stands for, by name."""
    seed: int


class Sweep(NamedTuple):
    """The content of a file. `read_sweep` checks its form, `planned_trials` the settings of the runs."""

    selectors: list[str]
    cases: list[tuple[str, dict[str, ConfigValue], dict[str, ConfigValue]]]
    """For each combination of settings: its text, the settings that vary, and all settings."""
    seeds: list[int]
    baseline: str
    """The selector with which the others are compared; "": all pairs are compared."""
    imports: list[str]


def read_sweep(path: Path) -> Sweep:
    """Read the file of a sweep, with paths relative to its folder; ValueError names the file and the key."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: is not TOML: {error}") from error
    try:
        return _sweep(content, path.absolute().parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def planned_trials(sweep: Sweep, folder: Path) -> list[PlannedTrial]:
    """Check the settings of all trials, and return the trials. Nothing is written.

    Raises ModuleNotFoundError if a task needs an extra, and ValueError if a setting is wrong.
    """
    app, found, checked = app_folder(), [], set()
    defaults = default_config(app)
    for text, varied, settings in sweep.cases:
        try:
            trials = plan(sweep.selectors, {**settings, "seed": sweep.seeds[0]}, app, folder, sweep.seeds)
            check_batched(trials)
            every = {**defaults, **settings}
            for seed in sweep.seeds:
                of_data = {**every, "seed": seed}
                key = tuple(of_data[name] for name in _OF_DATA)
                if key[:-1] not in checked:  # only with the first seed, since reading the data takes long
                    check_data(of_data)
                    checked.add(key[:-1])
                same_seed = [trial for trial in trials if trial.run_config["seed"] == seed]
                check_availability([_with_defaults(trial, defaults) for trial in same_seed], batched=True)
                groups = groups_of(of_data)
                check_clients(same_seed, groups, groups)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{error}" + (f" (in the case {text})" if text else "")) from error
        names = [each for _ in sweep.seeds for each in sweep.selectors]
        found += [
            PlannedTrial(trial, selector, text, varied, int(trial.run_config["seed"]))
            for trial, selector in zip(trials, names, strict=True)
        ]
    return found


def _with_defaults(trial: Trial, defaults: Mapping[str, ConfigValue]) -> Trial:
    return Trial(trial.name, {**defaults, **trial.run_config}, trial.history)


def _sweep(content: Mapping[str, Any], folder: Path) -> Sweep:
    known = [*default_config(app_folder()), *OWN]
    cases = content.get(CASE, [{}])
    if not (isinstance(cases, list) and cases and all(isinstance(each, dict) for each in cases)):
        raise ValueError(f"{CASE} = {cases!r}: must be tables, each below a line [[{CASE}]]")
    for table in (content, *cases):
        for key in table:
            if key in INSTEAD:
                raise ValueError(f"{key}: cannot be set in the file: {INSTEAD[key]}")
            if key not in known and not (key == NAME and table is not content):
                hint = did_you_mean(key, known)
                raise ValueError(f"{key}: unknown setting{hint}; the settings are {', '.join(known)}")
    for table in cases:
        for key in table:
            if key in (*OWN, "selector", "seed"):
                raise ValueError(f"{key}: must not be in a [[{CASE}]]: give it at the top of the file")
            if key in content:
                raise ValueError(f"{key}: is given at the top of the file and in a [[{CASE}]]: give it once")
    common = {key: value for key, value in content.items() if key not in (*OWN, "selector", "seed")}
    selectors = _selectors(content.get("selector", default_config(app_folder())["selector"]))
    seeds = _seeds(content.get("seed", 1))
    expanded: dict[str, tuple[str, dict[str, ConfigValue], dict[str, ConfigValue]]] = {}
    total = 0
    for case in cases:
        name = case.get(NAME, "")
        if not isinstance(name, str):
            raise ValueError(f"{NAME} = {name!r}: must be text")
        own = {key: value for key, value in case.items() if key != NAME}
        axes = {key: _axis(key, value) for key, value in {**common, **own}.items()}
        total += math.prod(map(len, axes.values())) * len(selectors) * len(seeds)
        if total > LARGEST:
            raise ValueError(f"the grid has more than {LARGEST} trials: give fewer values")
        for values in product(*axes.values()):
            settings = dict(zip(axes, values, strict=True))
            varied = {key: settings[key] for key in axes if len(axes[key]) > 1 or key in own}
            shown = [name] if name else []
            shown += [
                f"{key}={_text(value)}"
                for key, value in varied.items()
                if not (name and key in own) or len(axes[key]) > 1
            ]
            text = " ".join(shown)
            if text in expanded:
                raise ValueError(f"{CASE} {text!r}: given twice; cases need different settings or names")
            expanded[text] = (text, varied, _absolute(settings, folder))
    baseline = content.get(BASELINE, "")
    if baseline and baseline not in selectors:
        raise ValueError(
            f"{BASELINE} = {baseline!r}{did_you_mean(str(baseline), selectors)}: must be one of "
            f"{', '.join(selectors)}"
        )
    return Sweep(selectors, list(expanded.values()), seeds, baseline, _imports(content, folder))


def _imports(content: Mapping[str, Any], folder: Path) -> list[str]:
    found = content.get(IMPORT, [])
    found = [found] if isinstance(found, str) else found
    if not (isinstance(found, list) and all(isinstance(each, str) and each for each in found)):
        raise ValueError(f'{IMPORT} = {found!r}: must be a file or module, or a list: ["my.py"]')
    return [str(folder / Path(each).expanduser()) if each.endswith(".py") else each for each in found]


def _axis(key: str, value: Any) -> list[ConfigValue]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ValueError(f"{key} = []: must have at least one value")
    for each in values:
        if not isinstance(each, ConfigValue):
            raise ValueError(f"{key} = {each!r}: must be a number, true, false or text, or a list of these")
    if len({json.dumps(each) for each in values}) < len(values):
        raise ValueError(f"{key} = {values!r}: a value is given twice")
    return values


def _seeds(value: Any) -> list[int]:
    if isinstance(value, str):
        try:
            return parse_seeds(value)
        except ValueError as error:
            raise ValueError(str(error).replace("seeds =", "seed =", 1)) from None
    seeds = value if isinstance(value, list) else [value]
    whole = all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in seeds)
    if not (whole and 0 < len(seeds) <= MOST and len(set(seeds)) == len(seeds)):
        raise ValueError(f'seed = {value!r}: must be at most {MOST} different whole numbers, or text: "1-5"')
    return seeds


def _selectors(value: Any) -> list[str]:
    """Return selectors as on the command line; from a table, one for each combination of its values."""
    selectors = []
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, str):
            selectors.append(each)
            continue
        if not (isinstance(each, dict) and isinstance(each.get(NAME), str)):
            raise ValueError(
                f'selector = {each!r}: must be text such as "md", or a table such as '
                "{name = 'osmd', alpha = [0.1, 0.4]}"
            )
        axes = {key: _axis(f"selector: {key}", item) for key, item in each.items() if key != NAME}
        if len(selectors) + math.prod(map(len, axes.values())) > LARGEST:
            raise ValueError(f"selector: more than {LARGEST} selectors: give fewer values")
        for values in product(*axes.values()):
            settings = ",".join(f"{key}={_text(item)}" for key, item in zip(axes, values, strict=True))
            selectors.append(f"{each[NAME]}:{settings}" if settings else each[NAME])
    if not selectors or len(set(selectors)) < len(selectors):
        raise ValueError(f"selector = {value!r}: must be different selectors, at least one")
    return selectors


def _text(value: ConfigValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _absolute(settings: Mapping[str, ConfigValue], folder: Path) -> dict[str, ConfigValue]:
    paths = {
        key: str(folder / Path(str(settings[key])).expanduser())
        for key in PATHS & settings.keys()
        if settings[key]
    }
    return {**settings, **paths}


def axes_of(trials: Sequence[PlannedTrial]) -> list[str]:
    """Return the names of all settings that vary in a sweep, without the selector and the seed."""
    return list(dict.fromkeys(name for each in trials for name in each.varied))
