"""A client's identity, group, task and part of the data, from the config of its node and of the run."""

from typing import NamedTuple

from flwr.app import Context

import tasks

Group = int | str
"""A group's number or name."""


class LocalData(NamedTuple):
    """What one client has."""

    client_id: str
    task: tasks.Task
    data: tasks.Dataset
    group: Group | None = None

    @classmethod
    def from_context(cls, context: Context) -> "LocalData":
        """Read the node's config: ``partition-id``, ``num-partitions``, optional ``client-id``, ``group``.

        Without ``group`` the client has the group that the run's ``partition`` gives it, if any.

        Raises
        ------
        ValueError
            If one of them is missing or out of range.
        """
        partition = _whole_number(context, "partition-id")
        num_partitions = _whole_number(context, "num-partitions")
        run = context.run_config
        task = tasks.create(str(run["task"]), partition=str(run["partition"]), data_dir=str(run["data-dir"]))
        share = (partition, num_partitions, int(run["seed"]))
        data = task.client_data(*share)
        group = group_of(context)
        client_id = str(context.node_config.get("client-id", client_name(partition, num_partitions)))
        return cls(client_id, task, data, task.client_group(*share) if group is None else group)


def client_name(number: int, num_clients: int) -> str:
    """Return the default name of a client; padded, so that names sort in the order of the numbers."""
    return f"client-{number:0{max(2, len(str(num_clients - 1)))}d}"


def group_of(context: Context) -> Group | None:
    """Return the node's ``group``, which the client reports with its status; None if it has none.

    Raises
    ------
    ValueError
        If it is neither text nor a whole number.
    """
    group = context.node_config.get("group")
    if isinstance(group, bool) or not isinstance(group, int | str | None):
        raise ValueError(f"group = {group!r} in the node's config: must be text or a whole number")
    return group


def _whole_number(context: Context, name: str) -> int:
    value = context.node_config.get(name)
    if not isinstance(value, int):
        raise ValueError(f"{name} = {value!r} in the node's config: must be a whole number")
    return value
