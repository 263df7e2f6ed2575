"""Reads and checks the setting `track`, and makes a reporter for each tracker that it names."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strategies.reporters import MLflow, Reporter, TensorBoard, WandB

TRACKERS: Mapping[str, type[TensorBoard | MLflow | WandB]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def tracker_names(text: str) -> list[str]:
    """Read "tensorboard mlflow" as names of trackers, with blanks or commas between them.

    Raises
    ------
    ValueError
        If a name is unknown or occurs twice.
    """
    names = text.replace(",", " ").split()
    if not set(names) <= TRACKERS.keys() or len(set(names)) < len(names):
        known = ", ".join(TRACKERS)
        raise ValueError(
            f"track = {text!r}: must be '' or different names of {known}, with blanks between them"
        )
    return names


def check_trackers(text: str) -> None:
    """Refuse the setting ``track`` of a run if a tracker is unknown or its package is missing.

    Raises
    ------
    ValueError
        The message names a missing package and the extra that installs it.
    """
    for name in tracker_names(text):
        if package := TRACKERS[name].missing():
            raise ValueError(f"track = {text!r}: {name} needs {package}: pip install 'cohort-app[{name}]'")


def reporters_of(names: Sequence[str], folder: Path, settings: Mapping[str, Any]) -> list[Reporter]:
    """Return the reporters of the run with this folder and these settings, which the trackers show.

    The trackers' data lie in the subfolders ``tensorboard``, ``mlruns`` and ``wandb``.
    """
    return [
        TRACKERS[name](folder / name if name == "tensorboard" else folder, settings=settings)
        for name in names
    ]
