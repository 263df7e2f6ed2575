"""Reads the file of a device's own samples.

This module does not import Flower, since `cohort client join` calls it, too.
"""

import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from tasks.base import Task
from tasks.federated_data import Dataset
from tasks.partitioned_task import PartitionedTask


def read_data_file(path: Path) -> tuple[Dataset, str | int | None]:
    """Return the samples in a file, and the group in the file or None.

    The file is a NumPy ``.npz`` file of n >= 1 samples. It holds ``inputs`` (n, features), finite numbers;
    ``labels`` (n,), whole numbers >= 0; and optionally ``group``, one text or one whole number.

    Raises
    ------
    ValueError
        If the file cannot be read or is not of this form.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:  # a pickle could run code
            inputs, labels = arrays["inputs"], arrays["labels"]
            group = arrays.get("group")
    except OSError as error:
        why = error.strerror or "is damaged"
        raise ValueError(f"data = {path}: must be an .npz with inputs and labels: {why}") from error
    except KeyError as error:
        raise ValueError(f"data = {path}: must be an .npz with inputs and labels: {error.args[0]}") from error
    except (ValueError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error) as error:
        # NumPy's own message advises to allow pickles, which could run code
        raise ValueError(f"data = {path}: must be an .npz with inputs and labels, without objects") from error
    if inputs.ndim != 2 or len(inputs) == 0 or inputs.dtype.kind not in "fiu":
        raise ValueError(
            f"data = {path}: inputs are {inputs.dtype} {inputs.shape}: must be numbers, (n, features)"
        )
    if labels.shape != inputs.shape[:1] or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(
            f"data = {path}: labels are {labels.dtype} {labels.shape}: "
            f"must be whole numbers >= 0, ({len(inputs)},)"
        )
    if not np.isfinite(inputs).all():
        raise ValueError(f"data = {path}: inputs must be finite")
    if group is not None and (group.shape != () or group.dtype.kind not in "iuU"):
        raise ValueError(
            f"data = {path}: group is {group.dtype} {group.shape}: must be one text or whole number"
        )
    data = Dataset(inputs.astype(np.float32), labels.astype(np.int64))
    return data, None if group is None else group.item()


def check_fit(path: Path, data: Dataset, task: Task) -> None:
    """Raise ValueError if the samples of a file do not fit a task on one of `tasks.datasets`.

    They must have as many features as the task's own samples, labels below its number of classes and, if
    they are images, pixels from 0 to 1. A task of a user's own on other data is not checked.
    """
    if not isinstance(task, PartitionedTask):
        return
    own, found = task.data, f"data = {path}:"
    if (features := data.inputs.shape[1]) != own.num_features:
        raise ValueError(
            f"{found} inputs have {features} features: must have {own.num_features} for the run's task"
        )
    low, high = data.inputs.min(), data.inputs.max()
    if own.encoding == "pixels" and not 0 <= low <= high <= 1:
        raise ValueError(
            f"{found} inputs are from {low:g} to {high:g}: must be from 0 to 1 for the run's task"
        )
    if (label := data.labels.max()) >= own.num_classes:
        raise ValueError(
            f"{found} labels are up to {label}: must be at most {own.num_classes - 1} for the run's task"
        )


def describe(path: Path) -> str:
    """Describe the samples in a file, for their owner. Raises ValueError as `read_data_file`."""
    data, _ = read_data_file(path)
    n, features = data.inputs.shape
    return (
        f"{n} samples of {features} features from {data.inputs.min():g} to {data.inputs.max():g}, "
        f"labels from {data.labels.min()} to {data.labels.max()}"
    )
