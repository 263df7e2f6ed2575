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
    """Read "tensorboard mlflow" as names of trackers.

    Parameters
    ----------
    text : str
        Names with blanks or commas between them; "" means no tracker.

    Raises
    ------
    ValueError
        If a name is unknown or occurs twice.
    """
    names = text.replace(",", " ").split()
    if not set(names) <= TRACKERS.keys() or len(set(names)) < len(names):
        raise ValueError(f"must be '' or different names of {', '.join(TRACKERS)}, with blanks between them")
    return names


def check_trackers(text: str) -> None:
    """Refuse the setting ``track`` of a run if a tracker is unknown or its package is missing.

    Raises
    ------
    ValueError
        If a name is wrong, or if a package is missing. The message names the package and the extra that
        installs it.
    """
    try:
        names = tracker_names(text)
    except ValueError as error:
        raise ValueError(f"track = {text!r}: {error}") from None
    for name in names:
        if package := TRACKERS[name].missing():
            raise ValueError(f"track = {text!r}: {name} needs {package}: pip install 'cohort-app[{name}]'")


def reporters_of(names: Sequence[str], folder: Path, settings: Mapping[str, Any]) -> list[Reporter]:
    """Return the reporters of a run.

    Parameters
    ----------
    names : sequence of str
        Names in `TRACKERS`.
    folder : Path
        The folder of the run. The trackers' data lie in its subfolders ``tensorboard``, ``mlruns`` and
        ``wandb``.
    settings : mapping of str to value
        The settings of the run, for the trackers to show.
    """
    return [
        TRACKERS[name](folder / name if name == "tensorboard" else folder, settings=settings)
        for name in names
    ]
