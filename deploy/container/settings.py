"""The settings of a cluster: read from the environment (or `.env`) and checked."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.container import DATA, DEVICES
from deploy.flower.app_folder import app_folder
from deploy.flower.config import default_config
from deploy.hosting.server import REVOKED
from deploy.runs.trials import check_data, parse_setting, plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploy.flower.config import ConfigValue
    from deploy.runs.trials import Trial

# The variables and their settings of the run; an empty variable leaves the app's default.
VARIABLES = {
    "COHORT_CLIENTS": "num-clients",
    "COHORT_ROUNDS": "num-rounds",
    "COHORT_PER_ROUND": "clients-per-round",
    "COHORT_TASK": "task",
    "COHORT_SEED": "seed",
    "COHORT_SELECTOR": "selector",
}
OTHERS = "COHORT_SET"


def planned(folder: Path, environment: Mapping[str, str] = os.environ) -> list[Trial]:
    """Return the trials that the environment asks for, one for each selector.

    Parameters
    ----------
    folder : Path
        Each trial writes into its own folder below this one.
    environment : Mapping[str, str]
        Holds `VARIABLES`, where COHORT_SELECTOR is one or more NAME[:SETTING=VALUE,...], and `OTHERS`: one or
        more SETTING=VALUE for other settings of the run config in pyproject.toml.

    Raises
    ------
    ValueError
        One line for each wrong setting: its variable, its value, the allowed values.
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
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise ValueError(str(error)) from None
        needs = f"needs {error.name}: build the images with COHORT_IMAGE=torch"
        raise ValueError(f"COHORT_TASK = {settings['task']!r}: {needs}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(_with_variables(str(error))) from None
    return trials


def _with_variables(message: str) -> str:
    """Name each setting by its variable, as the user wrote it."""
    for variable, name in {**VARIABLES, OTHERS: "set"}.items():
        message = re.sub(rf"^{name} = ", f"{variable} = ", message, flags=re.MULTILINE)
    return message.replace(f"data-dir = {str(DATA)!r}", "COHORT_DATA")  # the variable of the mounted folder
