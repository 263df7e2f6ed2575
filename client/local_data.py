"""Finds a client's identity, group, task and samples, from the config of its node and the run's config."""

from math import inf
from pathlib import Path
from typing import NamedTuple

from flwr.app import Context

import tasks
from strategies.selectors import available, selector_type

from .data_file import read_data_file

Group = int | str
"""A group's number or name."""


class LocalData(NamedTuple):
    """The identity, task and samples of one client."""

    client_id: str
    task: tasks.Task
    data: tasks.Dataset
    group: Group | None = None

    @classmethod
    def from_context(cls, context: Context) -> "LocalData":
        """Return the identity, task, samples and group of the client.

        The samples are those of the file that the node's config names as ``data`` (see `read_data_file`), or
        else the part ``partition-id`` of ``num-partitions`` of the task's data. The identity is ``client-id``
        of the node's config; by default the file's name without its ending or, if there is no file,
        `client_name`. The group is ``group`` of the node's config; by default the group in the file, or the
        group that the run's ``partition`` gives the client. A private group is not returned here, see
        `client.privacy.private_group`.

        Raises
        ------
        ValueError
            If the file cannot be read; or, without a file, if ``partition-id`` or ``num-partitions`` is
            missing; or if an entry is invalid.
        """
        file = context.node_config.get("data")
        return cls._of_partition(context) if file is None else cls._of_file(context, Path(str(file)))

    @classmethod
    def _of_file(cls, context: Context, path: Path) -> "LocalData":
        task = tasks.create(str(context.run_config["task"]))
        data, group = read_data_file(path)
        given = group_of(context)
        client_id = str(context.node_config.get("client-id", path.stem))
        return cls(client_id, task, data, group if given is None else given)

    @classmethod
    def _of_partition(cls, context: Context) -> "LocalData":
        partition = _whole_number(context, "partition-id")
        num_partitions = _whole_number(context, "num-partitions")
        run = context.run_config
        task = tasks.create(str(run["task"]), partition=str(run["partition"]), data_dir=str(run["data-dir"]))
        share = (partition, num_partitions, int(run["seed"]))
        data = task.client_data(*share)
        group = group_of(context)
        if group is None and not _is_private(context):
            group = task.client_group(*share)
        client_id = str(context.node_config.get("client-id", client_name(partition, num_partitions)))
        return cls(client_id, task, data, group)


def partition_group(context: Context) -> int | None:
    """Return the group that the run's ``partition`` gives the client.

    None: the partition makes no groups, or the client has data of its own.
    """
    if "data" in context.node_config or "partition-id" not in context.node_config:
        return None
    run = context.run_config
    task = tasks.create(str(run["task"]), partition=str(run["partition"]), data_dir=str(run["data-dir"]))
    partition, num_partitions = (_whole_number(context, name) for name in ("partition-id", "num-partitions"))
    return task.client_group(partition, num_partitions, int(run["seed"]))


def _is_private(context: Context) -> bool:
    """Return whether the client must not report the group that the run's ``partition`` gives it."""
    selector = str(context.run_config.get("selector", ""))
    return "private-group" in context.node_config or (
        selector in available() and selector_type(selector).clients_decide
    )


def client_name(number: int, num_clients: int) -> str:
    """Return the default name of a client. Its number has leading zeros, so names sort like numbers."""
    return f"client-{number:0{max(2, len(str(num_clients - 1)))}d}"


def group_of(context: Context) -> Group | None:
    """Return the entry ``group`` of the node's config, or None if it is missing.

    The client reports this group with its status.

    Raises
    ------
    ValueError
        If the group is neither text nor a whole number.
    """
    group = context.node_config.get("group")
    if isinstance(group, bool) or not isinstance(group, int | str | None):
        raise ValueError(f"group = {group!r} in the node's config: must be text or a whole number")
    return group


def number_of(context: Context, name: str) -> float | None:
    """Return the entry ``name`` of the node's config, a number that the client reports; None if missing.

    Raises
    ------
    ValueError
        If the entry is not a finite number of at least 0.
    """
    number = context.node_config.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < inf:
        raise ValueError(f"{name} = {number!r} in the node's config: must be a finite number of at least 0")
    return float(number)


def _whole_number(context: Context, name: str) -> int:
    value = context.node_config.get(name)
    if not isinstance(value, int):
        raise ValueError(f"{name} = {value!r} in the node's config: must be a whole number")
    return value
