"""The source files that decide an experiment's results."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from deploy.sweeps.source_digests import closure, digest

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.experiments.report import Experiment


def sources_of(experiment: Experiment) -> list[Path]:
    """Return the file with the experiment's `run`, the file with the settings, and all that these import.

    The settings are in the module that lists the experiment, as arguments of a `functools.partial`.
    """
    return closure(_modules(experiment))


def digest_of(experiment: Experiment) -> str:
    """Return the digest of the files in `sources_of`. A process computes it once."""
    return _digest(_modules(experiment))


def _modules(experiment: Experiment) -> tuple[str, ...]:
    from benchmarks.experiments import LISTED_IN

    run: Any = experiment.run
    while hasattr(run, "func"):  # functools.partial
        run = run.func
    module = str(getattr(run, "__module__", None) or type(run).__module__)
    return tuple(sorted({module, LISTED_IN.get(experiment.name, module)}))


@cache
def _digest(modules: tuple[str, ...]) -> str:
    return digest(closure(modules))
