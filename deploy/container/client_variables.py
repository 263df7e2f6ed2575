"""The environment variables that set groups, costs, energies and properties of the clients in containers."""

from __future__ import annotations

import os
import re
from math import inf, nan
from typing import TYPE_CHECKING, Any

from client.device_limits import properties_of

if TYPE_CHECKING:
    from collections.abc import Mapping

# The entry of a client's node config that each environment variable sets.
VARIABLES = {
    "COHORT_GROUPS": "group",
    "COHORT_PRIVATE_GROUPS": "private-group",
    "COHORT_COSTS": "cost",
    "COHORT_ENERGIES": "energy",
    "COHORT_PROPERTIES": "properties",
}
# Settings of selectors that the clients themselves report if the environment variable is set.
REPORTED = {"COHORT_COSTS": "costs", "COHORT_ENERGIES": "energies"}


def node_config(number: int, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the node config entries that the environment variables set for one client.

    A variable holds one or more values, separated by blanks. The clients take these values in turn: if there
    are k values, client number m gets value m mod k. A variable that is missing or empty sets no entry.

    `environment`: the environment, with any of `VARIABLES`. (default: the environment of this process)

    Raises ValueError if a group's name or a property is invalid, or if a cost or an energy is not a finite
    number of at least 0.
    """
    config: dict[str, Any] = {}
    for variable, name in VARIABLES.items():
        if not (values := environment.get(variable, "").split()):
            continue
        value = values[number % len(values)]
        if name.endswith("group"):
            if not value.isprintable() or not re.fullmatch(r"""[^\s"'\\]{1,128}""", value):
                raise ValueError(f'{variable} = {value!r}: must be names without quotes: "north south"')
            config[name] = value
            continue
        if name == "properties":
            properties_of({name: value})
            if not value.isprintable() or set(value) & set("\"'\\"):
                raise ValueError(f"{variable} = {value!r}: must be without quotes: charging=true,region=eu")
            config[name] = value
            continue
        try:
            config[name] = float(value)
        except ValueError:
            config[name] = nan
        if not 0 <= config[name] < inf:
            raise ValueError(f'{variable} = {value!r}: must be finite numbers of at least 0: "1 2.5"')
    return config
