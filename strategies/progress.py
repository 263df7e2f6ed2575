"""The progress of a run: in memory, and as a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import INFO
from typing import TYPE_CHECKING, Any, Literal

from flwr.app import ArrayRecord, MetricRecord
from flwr.common import log
from flwr.serverapp.strategy import Result

from .checkpoint import Checkpoint
from .flower.arrays import ReceivedArrays, encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RESULTS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


@dataclass
class Progress:
    """The current state of a run.

    Attributes
    ----------
    round : int
        The last completed round.
    arrays : ArrayRecord
        The model after it.
    result : Result
        The return value of `start`; it has a model once a round has changed it.
    """

    round: int
    arrays: ArrayRecord
    result: Result = field(default_factory=Result)

    def move(self, arrays: ArrayRecord | None) -> None:
        """Continue from the new model of a round, if there is one."""
        if arrays is not None:
            self.arrays = self.result.arrays = arrays

    def note(
        self,
        what: Literal["train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"],
        round: int,
        metrics: MetricRecord | None,
    ) -> None:
        """Keep the metrics of a round, if there are any."""
        if metrics is not None:
            log(INFO, "\t└──> %s", metrics)
            getattr(self.result, what)[round] = metrics

    def checkpoint(
        self,
        parts: Mapping[str, Mapping[str, NDArray[Any]]],
        notes: Mapping[str, Any],
        fingerprint: Mapping[str, Any],
    ) -> Checkpoint:
        """Return the checkpoint: this progress, the state of each part by its name, and notes (JSON)."""
        states = {"model": ReceivedArrays(self.arrays), **parts}
        arrays = {f"{part}/{name}": array for part, state in states.items() for name, array in state.items()}
        results = {
            what: [[round, dict(metrics)] for round, metrics in getattr(self.result, what).items()]
            for what in _RESULTS
        }
        meta = {**notes, "moved": bool(self.result.arrays), "results": results}
        return Checkpoint(self.round, arrays, meta, fingerprint)

    @classmethod
    def of(cls, checkpoint: Checkpoint, initial_arrays: ArrayRecord) -> Progress:
        """Return the progress of a checkpoint; of the initial model only the order of its names matters."""
        model = state_of("model", checkpoint)
        progress = cls(checkpoint.round, ArrayRecord({name: encode(model[name]) for name in initial_arrays}))
        if checkpoint.meta["moved"]:
            progress.result.arrays = progress.arrays
        for what in _RESULTS:
            for round, metrics in checkpoint.meta["results"][what]:
                getattr(progress.result, what)[round] = MetricRecord(metrics)
        return progress


def state_of(part: str, checkpoint: Checkpoint) -> dict[str, NDArray[Any]]:
    """Return the state of one part, as given to `Progress.checkpoint`."""
    prefix = f"{part}/"
    arrays = checkpoint.arrays
    return {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
