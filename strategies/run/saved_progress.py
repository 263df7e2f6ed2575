"""The progress of a run: last round, model and metrics so far; its conversion to and from a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import INFO
from typing import Any, Literal

from flwr.app import ArrayRecord, MetricRecord
from flwr.common import log
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from ..checkpoint import Checkpoint
from ..flower.arrays import ReceivedArrays, encode
from ..rounds.skipped_rounds import SkippedRounds
from .log_lines import as_text

_SOURCES = {  # attribute of `Result` -> the name of its metrics in the log
    "train_metrics_clientapp": "clients, training",
    "evaluate_metrics_clientapp": "clients, evaluation",
    "evaluate_metrics_serverapp": "server, evaluation",
}


@dataclass
class Progress:
    """How far a run has come."""

    round: int  # the last completed round; 0 before round 1
    arrays: ArrayRecord  # the model after this round
    # what `SelectionStrategy.start` returns; its model is ``arrays``
    result: Result = field(default_factory=Result)
    # why the model is unchanged, until a round changes it
    skipped: SkippedRounds = field(default_factory=SkippedRounds)
    _unsaved: list[list[Any]] = field(default_factory=list)  # [attribute of result, round, metrics]

    def __post_init__(self) -> None:
        self.move(self.arrays)

    def move(self, arrays: ArrayRecord | None) -> None:
        """Continue from the new model of a round; None means that the round was skipped."""
        if arrays is not None:
            self.arrays = self.result.arrays = arrays

    def note(
        self,
        what: Literal["train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"],
        round: int,
        metrics: MetricRecord | None,
    ) -> None:
        """Log the metrics of a round and add them to the results; None means that there are no metrics.

        ``what`` is the attribute of `Result` that holds the metrics of all rounds.
        """
        if metrics is not None:
            if metrics:
                log(INFO, "\t└──> %s: %s", _SOURCES[what], as_text(metrics))
            getattr(self.result, what)[round] = metrics
            self._unsaved.append([what, round, dict(metrics)])

    def log_newest(self) -> None:
        """Log the newest metrics of each source; Flower logs seven lines for each of all rounds instead."""
        for what, source in _SOURCES.items():
            found = getattr(self.result, what)
            newest = max(found, default=0)
            if found and found[newest]:
                log(INFO, "\t└──> %s, round %d: %s", source, newest, as_text(found[newest]))

    def checkpoint(
        self,
        parts: Mapping[str, Mapping[str, NDArray[Any]]],
        notes: Mapping[str, Any],
        fingerprint: Mapping[str, Any],
    ) -> Checkpoint:
        """Return a checkpoint of this progress and of the state of the strategy.

        ``parts`` holds the state of each part of the strategy by the part's name, ``notes`` the rest of the
        state, and ``fingerprint`` the settings that a resume must not change, both as JSON values. The
        checkpoint holds only the results that were noted since the last call.
        """
        states = {"model": ReceivedArrays(self.arrays), **parts}
        arrays = {f"{part}/{name}": array for part, state in states.items() for name, array in state.items()}
        results, self._unsaved = self._unsaved, []
        meta = {**notes, "skipped": self.skipped.state()}
        return Checkpoint(self.round, arrays, meta, fingerprint, results)

    @classmethod
    def of(cls, checkpoint: Checkpoint, initial_arrays: ArrayRecord) -> "Progress":
        """Return the progress that a checkpoint holds, with arrays in the order of ``initial_arrays``."""
        model = state_of("model", checkpoint)
        progress = cls(checkpoint.round, ArrayRecord({name: encode(model[name]) for name in initial_arrays}))
        if "skipped" in checkpoint.meta:
            progress.skipped.load(checkpoint.meta["skipped"])
        else:  # checkpoints of 2026-11-28 and before
            progress.skipped.changed = checkpoint.meta["moved"]
        for what, round, metrics in checkpoint.results:
            getattr(progress.result, what)[round] = MetricRecord(metrics)
        return progress


def state_of(part: str, checkpoint: Checkpoint) -> dict[str, NDArray[Any]]:
    """Return the state of one part that was given to `Progress.checkpoint`, by the part's name."""
    prefix = f"{part}/"
    arrays = checkpoint.arrays
    return {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
