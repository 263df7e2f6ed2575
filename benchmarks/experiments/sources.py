"""The source files that decide an experiment's results."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from deploy.sweeps.source_digests import closure, digest

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.experiments.report import Experiment


def sources_of(experiment: Experiment) -> list[Path]:
    """Return the module of the experiment's function `run`, and all files that it imports."""
    return closure([_module(experiment)])


def digest_of(experiment: Experiment) -> str:
    """Return the digest of the files in `sources_of`. A process computes it once."""
    return _digest(_module(experiment))


def _module(experiment: Experiment) -> str:
    run: Any = experiment.run
    while hasattr(run, "func"):  # functools.partial
        run = run.func
    return str(getattr(run, "__module__", None) or type(run).__module__)


@cache
def _digest(module: str) -> str:
    return digest(closure([module]))
