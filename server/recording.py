"""Writes the files of a run: its history and its models."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

import tasks
from strategies import RoundRecord
from strategies.checkpoint import CheckpointFolder
from strategies.flower.traffic import Traffic
from strategies.rounds.guard.claimed_sizes import ClaimLog, ClientSizes
from strategies.rounds.record import no_report
from strategies.selectors import selector_type
from tasks.base import Metrics

from .best_and_last_model import Models
from .divergence_and_standstill import Divergence
from .history import FILE_NAME, HistoryWriter, read_lines
from .settings import CHECKPOINTS, RunSettings, check_same_run


class UnchangedModelError(RuntimeError):
    """No round of the run has changed the model. A run that trained nothing has failed, not finished."""


class KnownClients(NamedTuple):
    """All known clients, removed ones too, in the order of their indexes."""

    id_of: Callable[[int], str]  # the durable identity of a client
    sizes: ClientSizes  # in samples, as claimed and as used
    # (M,) identities and groups, None for a client without a group. Called only if the history lists all.
    listed: Callable[[], tuple[Sequence[str], Sequence[str | None]]]

    @classmethod
    def of(cls, ids: Sequence[str], sizes: ClientSizes, groups: Sequence[str | None]) -> "KnownClients":
        return cls(ids.__getitem__, sizes, lambda: (ids, groups))


class Recording:
    """Writes the files of a run into the run's folder. Other processes are locked out of the folder.

    With ``resume``, the history continues after the round of the last checkpoint.

    Raises
    ------
    CheckpointError, ValueError
        On entry, if the folder belongs to another run, or another process writes into it.
    OSError
        On entry, if the folder cannot be written to.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self.folder = Path(settings.output_dir).absolute() if settings.output_dir else None  # of the run
        self.checkpoints = self.folder / CHECKPOINTS if self.folder else None  # the folder of the checkpoints
        self._resources = ExitStack()  # closes the history and releases the folder
        self._written: ClientSizes | None = None  # the sizes as the history has them so far
        self._claim_log = ClaimLog()
        self._lost = 0  # `HistoryWriter.lost` when the last roster was written
        self._began = time.monotonic()
        self._kind = selector_type(settings.selector)
        # Whether the history has the warning that no client reports what the selector learns from.
        self._told_of_report = False
        self._divergence = Divergence(
            settings.task, settings.learning_rates, tasks.learning_rate(settings.task)
        )

    def __enter__(self) -> "Recording":
        with ExitStack() as held:
            self._history = held.enter_context(self._begun(held))
            self._models = Models(self.folder)
            self._resources = held.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._resources.__exit__(*error)

    def _begun(self, held: ExitStack) -> HistoryWriter:
        """Return the writer of a new history, or of the history of the run that is resumed."""
        if self.folder is None or self.checkpoints is None:
            return HistoryWriter(None)
        run = {
            "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "flwr": version("flwr"),
            **self._settings.model_dump(),
        }
        path = self.folder / FILE_NAME
        # Damaged checkpoints are not reported here, since the strategy reports them.
        checkpoints = CheckpointFolder(self.checkpoints, report=lambda line: None)
        checkpoints.claim()
        held.callback(checkpoints.release)
        if not self._settings.resume:
            history = HistoryWriter(path)
            history.begin(run)
            return history
        lines = read_lines(path)
        if lines and lines[0]["type"] != "run":
            raise ValueError(f"{path}: its first line, the settings of the run, is damaged; start a new run")
        check_same_run(lines[0] if lines else {}, run)
        found = checkpoints.newest()
        return HistoryWriter.resume(path, found.round if found else 0, run)

    def round(
        self,
        number: int,
        model: Mapping[str, NDArray[Any]],
        metrics: Metrics | None,
        record: RoundRecord | None = None,
        clients: KnownClients | None = None,
        group_metrics: Mapping[str, Mapping[str, Any]] | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        """Write the line of a round, and the model after the round if it is the best so far.

        If the training diverges or stands still, a warning is logged and written. If no client reports what
        the selector learns from, or the claimed size of a client is clipped or ignored, a warning is written
        (the strategy logs these warnings).

        ``metrics`` are None if the model was not evaluated. Round 0, the model before training, has no record
        and no clients. ``clients`` are all known clients, ``group_metrics`` the means of what each group's
        clients measured, ``traffic`` the messages and bytes since the line of the previous round, if any.
        """
        test = {"test_loss": metrics.loss, "test_accuracy": metrics.accuracy} if metrics else {}
        if record is None or clients is None:
            self._history.write("round", round=number, **test)
        else:
            self._write_roster(clients)
            for line in self._claim_log.of_sizes(clients.sizes, clients.id_of):
                self._history.write("warning", round=number, reason=line)
            exchanged = asdict(traffic) if traffic else {}
            measured = {"group_metrics": _of_groups(group_metrics or {})}
            self._history.write_round(record, clients.id_of, **test, **measured, **exchanged)
            if not self._told_of_report and record.lacks(self._kind.report_used):
                self._told_of_report = True
                self._history.write("warning", round=number, reason=no_report(self._kind))
        if metrics is None:
            return
        self._models.offer(number, model, metrics)
        if warning := self._divergence.warning(number, metrics, record):
            log(WARNING, warning)
            self._history.write("warning", round=number, reason=warning)

    def _write_roster(self, clients: KnownClients) -> None:
        """Write the roster if clients were added or lines were lost; otherwise only the changed sizes."""
        sizes, before = clients.sizes, self._written
        if sizes is before and self._history.lost == self._lost:
            return  # nothing has changed: this saves passes over all clients
        self._written = sizes
        if before is None or len(before.used) != len(sizes.used) or self._history.lost != self._lost:
            self._lost = self._history.lost
            ids, groups = clients.listed()
            values = _values(sizes, slice(None))
            self._history.write("roster", client_ids=ids, **values, client_groups=groups)
            return
        own_differ = sizes.is_own & _differ(sizes.used, before.used)
        differ = _differ(sizes.claimed, before.claimed) | (sizes.is_own != before.is_own) | own_differ
        if sizes.targets is not None and before.targets is not None:
            differ |= _differ(sizes.targets, before.targets)
        changed = np.flatnonzero(differ)
        if changed.size or sizes.mean != before.mean:
            self._history.write("sizes", clients=changed, **_values(sizes, changed))

    def end(self, last: int, model: Mapping[str, NDArray[Any]]) -> None:
        """Write the model after the round ``last``, and then the last line of the history."""
        path, settings = self._models.save_final(last, model), self._settings
        ends_early = last < settings.num_rounds
        self._history.write(
            "end",
            rounds=last,
            seconds=time.monotonic() - self._began,
            model=str(path) if path else None,
            best_round=self._models.best_round,
            reason=f"target-accuracy = {settings.target_accuracy:g} is reached" if ends_early else "",
        )


def _values(sizes: ClientSizes, clients: slice | NDArray[np.int64]) -> dict[str, Any]:
    """Return what a line of the history holds about the sizes of some clients.

    The used sizes of all clients without a size of their own are one number: ``mean_size``.
    """
    used = np.where(sizes.is_own, sizes.used, math.nan) if sizes.targets is None else sizes.targets
    return {"client_sizes": sizes.claimed[clients], "used_sizes": used[clients], "mean_size": sizes.mean}


def _differ(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.not_equal(one.view(np.int64), other.view(np.int64))  # NaN equals NaN


def _of_groups(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the loss and the accuracy of each group, if they are numbers.

    Clients choose what they measure. A list, for example, would make the line of the round unreadable.
    """
    return {
        group: {
            name: found[name] for name in ("loss", "accuracy") if isinstance(found.get(name), int | float)
        }
        for group, found in metrics.items()
    }
