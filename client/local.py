"""What this client holds: its identity, its group, its task, its part of the data."""

from typing import NamedTuple

from flwr.app import Context

import tasks

Group = int | str
"""A group's number or name."""


class LocalData(NamedTuple):
    """One client's side of a run."""

    client_id: str
    task: tasks.Task
    data: tasks.Dataset
    group: Group | None = None

    @classmethod
    def from_context(cls, context: Context) -> "LocalData":
        """Read the node's config: ``partition-id``, ``num-partitions``; ``client-id`` and ``group`` if given.

        Raises
        ------
        ValueError
            If one of them is missing or out of range.
        """
        partition = _whole_number(context, "partition-id")
        num_partitions = _whole_number(context, "num-partitions")
        task = tasks.create(str(context.run_config["task"]))
        data = task.client_data(partition, num_partitions, int(context.run_config["seed"]))
        # Padded, so that identities sort as numbers do.
        default = f"client-{partition:0{max(2, len(str(num_partitions - 1)))}d}"
        return cls(str(context.node_config.get("client-id", default)), task, data, group_of(context))


def group_of(context: Context) -> Group | None:
    """Return the node's ``group``, which the client tells whoever asks for its status; None if it has none.

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
