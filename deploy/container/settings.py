"""Plans the trials of a cluster from environment variables, and checks the settings."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from deploy.container import DATA, DEVICES, client_names
from deploy.container.client import REPORTED, node_config
from deploy.flower.app_folder import app_folder
from deploy.flower.config import ConfigValue, default_config
from deploy.hosting.server import REVOKED
from deploy.runs.trials import Trial, check_clients, check_data, groups_of, parse_setting, plan

# The run-config setting that each environment variable sets. If a variable is empty, the setting keeps the
# app's default.
VARIABLES = {
    "COHORT_CLIENTS": "num-clients",
    "COHORT_ROUNDS": "num-rounds",
    "COHORT_PER_ROUND": "clients-per-round",
    "COHORT_TASK": "task",
    "COHORT_SEED": "seed",
    "COHORT_SELECTOR": "selector",
    "COHORT_TRACK": "track",
}
OTHERS = "COHORT_SET"  # the environment variable for all other settings


def trials_from_environment(folder: Path, environment: Mapping[str, str] = os.environ) -> list[Trial]:
    """Return the trials that the environment variables describe: one for each selector.

    `folder`: each trial writes into its own subfolder of this folder. `environment`: the environment
    variables, by name: `VARIABLES`, `OTHERS` and those of `client`. COHORT_SELECTOR contains one or
    more NAME[:SETTING=VALUE,...], separated by blanks. `OTHERS` contains SETTING=VALUE for other settings of
    the run config in pyproject.toml, separated by blanks. (default: the environment of this process)
    """
    settings = default_config(app_folder())
    given: dict[str, ConfigValue] = {}
    for variable, name in VARIABLES.items():
        if text := environment.get(variable, "").strip():
            given[name] = parse_setting(f"{name}={text}")[1]
    selectors = str(given.pop("selector", settings["selector"])).split()
    try:
        for key, value in map(parse_setting, environment.get(OTHERS, "").split()):
            for variable, name in VARIABLES.items():
                if key == name:
                    raise ValueError(f"set = {key}={value}: use {variable} for this setting")
            if key in ("selector-settings", "output-dir"):
                raise ValueError(f"set = {key}={value}: cannot be given here")
            given[key] = value
        given.setdefault("removed-clients", str(DEVICES / REVOKED))
        trials = plan(selectors, given, app_folder(), folder)
        settings.update(given)
        check_data(settings)
        names, partition = client_names(int(settings["num-clients"])), groups_of(settings)
        configs = [node_config(number, environment) for number in range(len(names))]
        groups, private = (
            {name: config.get(key, partition[name]) for name, config in zip(names, configs, strict=True)}
            for key in ("group", "private-group")
        )
        known = [name for variable, name in REPORTED.items() if environment.get(variable, "").strip()]
        check_clients(trials, groups, private, known)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise ValueError(str(error)) from None
        needs = f"needs {error.name}: build the images with COHORT_IMAGE=torch"
        raise ValueError(f"COHORT_TASK = {settings['task']!r}: {needs}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(_with_variables(str(error))) from None
    return trials


def _with_variables(message: str) -> str:
    """Replace the names of settings in a message by the names of their environment variables."""
    message = re.sub(r"write it into selector-settings.* use --selector ", "use COHORT_SELECTOR=", message)
    for variable, name in {**VARIABLES, OTHERS: "set"}.items():
        message = re.sub(rf"^{name} = ", f"{variable} = ", message, flags=re.MULTILINE)
    return message.replace(f"data-dir = {str(DATA)!r}", "COHORT_DATA")  # the variable that mounts this folder
