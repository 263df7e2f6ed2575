"""Reads the samples of a device that has data of its own, and so needs no partition of the task's data."""

from pathlib import Path

from flwr.app import Context

import tasks

from .data_file import read_data_file
from .local_data import LocalData, group_of


def local_data(context: Context) -> LocalData:
    """Return the client's data: the file that the node's config names as ``data``, or its partition.

    The form of the file is that of `read_data_file`.

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
    data, group = read_data_file(path)
    given = group_of(context)
    client_id = str(context.node_config.get("client-id", path.stem))
    return LocalData(client_id, task, data, group if given is None else given)
