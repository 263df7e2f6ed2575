"""Reporter, the base class of all reporters: the methods that a run calls, what it passes, and a note."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import replacing
from ..clients.printable import printable
from ..flower.traffic import Traffic
from ..json_text import parse_json
from ..rounds.record import RoundRecord

_LONGEST_SETTING = 500  # characters; MLflow's servers refuse longer values


@dataclass(frozen=True)
class RunInfo:
    """The settings of a run."""

    num_rounds: int
    """The number of the last planned round."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the strategy, by name."""


@dataclass(frozen=True)
class RoundReport:
    """A round, after its evaluation.

    The names of metrics and groups come from clients. `scalars` returns them in a form that is safe to print.
    """

    round: int
    """The round; 0 for the evaluation of the model before training."""
    record: RoundRecord | None = None
    """Everything that happened in the round. None for round 0."""
    client_ids: Mapping[int, str] = field(default_factory=dict)
    """The identities of the clients in ``record``, by index, except clients that are only in its ``absent``.
    The identities are safe to print."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """What ``evaluate_fn`` returned: the metrics of the model on the server's data."""
    train_metrics: Mapping[str, Any] = field(default_factory=dict)
    """The clients' metrics from training, averaged."""
    client_metrics: Mapping[str, Any] = field(default_factory=dict)
    """The clients' metrics from federated evaluation, averaged."""
    group_metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each group, ``client_metrics`` of the group's clients."""
    traffic: Traffic | None = None
    """The messages and bytes of the round. None in a simulation without messages."""
    participation: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    """Element n is the number of registered clients that were drawn n times since round 1."""


class Reporter:
    """Receives the events of a run. Inherit from this class, and write the methods that you need.

    A run calls `begin` or `resume` first, then `round` for each round, and `end`, `failed` or `stopped` last.
    All calls come from one thread, which only this reporter has. The run never waits for a call, except at
    its end for at most ``patience`` seconds. If a call raises an error, the error is logged and the run goes
    on. If `begin` or `resume` raises an error, the run does not call this reporter again.

    If a run is killed, it calls none of `end`, `failed` and `stopped`. When the run is resumed, the rounds
    after its last checkpoint are trained again, so a reporter may receive the same round twice.

    Attributes
    ----------
    patience : float
        How many seconds the run waits at its end, at most, for the remaining calls of this reporter.
    settings : mapping of str to value
        Settings of the run that a tracker shows beside those in `RunInfo.settings`.

    Examples
    --------
    >>> class Printer(Reporter):
    ...     def round(self, report):
    ...         print(report.round, report.metrics)
    >>> Printer().round(RoundReport(3, metrics={"loss": 0.5}))
    3 {'loss': 0.5}
    """

    patience: float = 30.0
    settings: Mapping[str, Any] = {}
    package: ClassVar[str] = ""
    """The package that must be installed; "" if none."""
    extra: ClassVar[str] = ""
    """The extra that installs the package."""

    @classmethod
    def missing(cls) -> str:
        """Return the name of the package that must be installed; "" if nothing is missing."""
        return "" if not cls.package or is_installed(cls.package) else cls.package

    def begin(self, run: RunInfo) -> None:
        """Note that the run begins with round 1."""

    def resume(self, run: RunInfo, round: int) -> None:
        """Note that the run continues after ``round``: reports of later rounds no longer count."""

    def round(self, report: RoundReport) -> None:
        """Note what happened in a round. The checkpoint of the round has been saved."""

    def end(self, round: int, reason: str) -> None:
        """Note that the run has ended after ``round``. ``reason`` is "" if all planned rounds are trained."""

    def failed(self, round: int, reason: str) -> None:
        """Note that the run has failed; ``round`` is its last completed round."""

    def stopped(self, round: int, reason: str) -> None:
        """Note that somebody stopped the run (Ctrl-C, a signal); ``round`` is its last completed round.

        A reporter without this method gets the call `failed` instead.
        """
        self.failed(round, reason)

    def _require(self) -> None:
        if package := self.missing():
            raise ModuleNotFoundError(
                f"{type(self).__name__}: needs {package}: pip install 'flwr-cohort[{self.extra}]'",
                name=package,
            )

    def _shown(self, run: RunInfo) -> dict[str, str]:
        """Return the settings of the run as texts that are safe to print."""
        found = {**run.settings, **self.settings, "num_rounds": run.num_rounds}
        return {name: printable(value, _LONGEST_SETTING) for name, value in found.items()}


def is_installed(package: str) -> bool:
    """Return whether a package can be imported."""
    return find_spec(package) is not None


def read_note(path: Path) -> dict[str, Any]:
    """Return the content of a note; an empty dict if there is no note, or none that can be read."""
    try:
        found = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_note(path: Path, **values: Any) -> None:
    """Write a note. A crash leaves the old note or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(json.dumps(values).encode())
