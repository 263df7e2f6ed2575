"""Finds a client's identity, group, task and samples, from the config of its node and the run's config."""

from math import inf
from pathlib import Path
from typing import NamedTuple

from flwr.app import Context

import tasks
from strategies.selectors import available, selector_type

from .data_file import check_fit, read_data_file

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
            If the file cannot be read, or does not fit the task; or, without a file, if ``partition-id`` or
            ``num-partitions`` is missing; or if an entry is invalid.
        """
        if "data" in context.node_config:
            path = Path(str(context.node_config["data"]))
            task = tasks.create(str(context.run_config["task"]))
            data, group = read_data_file(path)
            check_fit(path, data, task)
            name = path.stem
        else:
            task, part = _part(context)
            data = task.client_data(*part)
            group = None if _is_private(context) else task.client_group(*part)
            name = client_name(*part[:2])
        given = group_of(context)
        client_id = str(context.node_config.get("client-id", name))
        return cls(client_id, task, data, group if given is None else given)


def _part(context: Context) -> tuple[tasks.Task, tuple[int, int, int]]:
    """Return the task of the run; and the client's partition, the number of partitions, and the seed."""
    partition, num_partitions = (_whole_number(context, name) for name in ("partition-id", "num-partitions"))
    run = context.run_config
    task = tasks.create(str(run["task"]), partition=str(run["partition"]), data_dir=str(run["data-dir"]))
    return task, (partition, num_partitions, int(run["seed"]))


def partition_group(context: Context) -> int | None:
    """Return the group that the run's ``partition`` gives the client.

    None: the partition makes no groups, or the client has data of its own.
    """
    if "data" in context.node_config or "partition-id" not in context.node_config:
        return None
    task, part = _part(context)
    return task.client_group(*part)


def _is_private(context: Context) -> bool:
    """Return whether the client must not report the group that the run's ``partition`` gives it."""
    selector = str(context.run_config.get("selector", ""))
    return "private-group" in context.node_config or (
        selector in available() and selector_type(selector).clients_decide
    )


def client_name(number: int, num_clients: int) -> str:
    """Return the default name of a client. Its number has leading zeros, so names sort like numbers."""
    return f"client-{number:0{max(2, len(str(num_clients - 1)))}d}"


def group_of(context: Context, name: str = "group") -> Group | None:
    """Return a group in the node's config, or None if it is missing. The status reports the entry ``group``.

    Raises
    ------
    ValueError
        If the group is neither text nor a whole number.
    """
    group = context.node_config.get(name)
    if isinstance(group, bool) or not isinstance(group, int | str | None):
        raise ValueError(f"{name} = {group!r} in the node's config: must be text or a whole number")
    return group


def number_of(context: Context, name: str) -> float | None:
    """Return the entry ``name`` of the node's config, a number that the client reports; None if missing."""
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
