"""Reads the samples of a device that has data of its own, and so needs no partition of the task's data."""

from pathlib import Path

import numpy as np
from flwr.app import Context

import tasks

from .local import Group, LocalData, group_of


def local_data(context: Context) -> LocalData:
    """Return the client's data: the file that the node's config names as ``data``, or its partition.

    The file is a NumPy ``.npz`` file of n >= 1 samples. It holds ``inputs`` (n, features), finite numbers;
    ``labels`` (n,), whole numbers >= 0; and optionally ``group``, one text or one whole number.

    The client's identity is ``client-id`` of the node's config, or by default the name of the file without
    its ending. If the node's config has a ``group``, it takes precedence over the group in the file.

    Raises
    ------
    ValueError
        If the file cannot be read or is not of this form. Without a file, see `LocalData.from_context`.
    """
    file = context.node_config.get("data")
    if file is None:
        return LocalData.from_context(context)
    path = Path(str(file))
    task = tasks.create(str(context.run_config["task"]))
    data, group = _read(path)
    given = group_of(context)
    client_id = str(context.node_config.get("client-id", path.stem))
    return LocalData(client_id, task, data, group if given is None else given)


def _read(path: Path) -> tuple[tasks.Dataset, Group | None]:
    try:
        with np.load(path, allow_pickle=False) as arrays:  # a pickle could run code
            inputs, labels = arrays["inputs"], arrays["labels"]
            group = arrays.get("group")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"data = {path}: must be an .npz with inputs and labels: {error}") from error
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
    data = tasks.Dataset(inputs.astype(np.float32), labels.astype(np.int64))
    return data, None if group is None else group.item()
