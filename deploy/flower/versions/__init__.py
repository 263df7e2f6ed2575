"""The versions of Flower that Cohort was tried with, and the refusal of any other."""

import importlib
import os
from importlib.metadata import version
from typing import Any

TRIED = ("1.40.0", "1.41.0", "1.42.0")
"""The versions that pass the contract tests, the oldest first. Cohort is pinned to the newest."""
TRYING = "COHORT_TRIES_FLOWER"  # environment variable: a version that is accepted although it was not tried
TRY = "python -m deploy.flower.versions"  # the command that tries the installed version


def refusal() -> str | None:
    """Return why the installed version of Flower is refused, in one line; None if it is not."""
    installed = version("flwr")
    if installed in TRIED or installed == os.environ.get(TRYING):
        return None
    tried = f"{', '.join(TRIED[:-1])} and {TRIED[-1]}"
    return f"Flower is {installed}, and Cohort was tried with {tried}; `{TRY}` in a clone tries this one"


def find(name: str) -> Any:
    """Return what Flower has under a name of the form MODULE:ATTRIBUTE."""
    module, _, attributes = name.partition(":")
    found = importlib.import_module(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    return found
