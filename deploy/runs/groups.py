"""Statistics by group of clients: how often the clients train, and how good the model is on their samples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from deploy.runs.trial_statistics import LAST, number
from server.history import Line, RunHistory

SHOWN = 6  # the table shows at most this many groups of a trial: those with the lowest accuracies
GROUP_NOTES = (
    "Samples and draws: the group's share of all samples, and of all draws. Loss and accuracy: means of the "
    f"last {LAST} rounds on the samples of the group's clients, measured only with --set evaluate-share."
)


@dataclass(frozen=True)
class GroupSummary:
    """Statistics of one group of clients in one trial. A number is NaN if the history has no value."""

    name: str
    clients: int
    """The number of clients in the group."""
    sample_share: float
    """The group's share of all samples, from 0 to 1."""
    draw_share: float
    """The group's share of all draws in the trial, from 0 to 1."""
    loss: float
    """The model's loss on samples of the group: the mean of the last `LAST` rounds that measured it."""
    accuracy: float
    """The model's accuracy on samples of the group, from 0 to 1: averaged over the same rounds as `loss`."""


def group_summaries(trial: RunHistory) -> list[GroupSummary]:
    """Summarise the groups of a trial.

    The group with the lowest accuracy is first, and groups without an accuracy are last. If the trial has
    fewer than two groups, the list is empty.
    """
    members: dict[str, list[int]] = {}
    for client, group in enumerate(trial.client_groups):
        if group is not None:
            members.setdefault(group, []).append(client)
    if len(members) < 2:
        return []
    samples = sum(trial.client_sizes) or math.nan
    draws = [0] * len(trial.client_groups)
    for line in trial.trained:
        for client, count in zip(line["clients"], line["counts"], strict=True):
            draws[client] += count
    found = [
        GroupSummary(
            name=group,
            clients=len(clients),
            sample_share=sum(trial.client_sizes[each] for each in clients) / samples,
            draw_share=sum(draws[each] for each in clients) / (sum(draws) or math.nan),
            loss=_last(trial.trained, group, "loss"),
            accuracy=_last(trial.trained, group, "accuracy"),
        )
        for group, clients in members.items()
    ]
    return sorted(found, key=lambda each: (math.isnan(each.accuracy), each.accuracy, each.name))


def worst_accuracy(line: Line) -> float:
    """Return the lowest accuracy of a group in one round of a history; NaN if no group was measured."""
    found = [metrics["accuracy"] for metrics in line.get("group_metrics", {}).values()]
    return min((value for value in found if value is not None), default=math.nan)


def group_table(trials: Sequence[RunHistory]) -> Table | None:
    """Return a table of the groups of all trials; None if no trial has groups.

    A trial whose server knows no client's group, as with `flics-private`, has a row that says so.
    """
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for head in ("selector", "group"):
        table.add_column(head, vertical="bottom", overflow="fold")
    for head in ("clients", "samples", "draws", "loss", "acc. %"):
        table.add_column(head, justify="right", vertical="bottom")
    known = False  # whether a trial has groups
    for trial in trials:
        found = group_summaries(trial)
        for position, group in enumerate(found[:SHOWN]):
            worst = position == 0 and not math.isnan(group.accuracy)
            table.add_row(
                Text(trial.label if position == 0 else ""),
                Text(group.name, style="bold").append(" (worst)" if worst else ""),
                str(group.clients),
                number(group.sample_share, ".0f", " %", scale=100),
                number(group.draw_share, ".0f", " %", scale=100),
                number(group.loss, ".3f"),
                number(group.accuracy, ".1f", scale=100),
            )
        if len(found) > SHOWN:
            table.add_row("", f"{len(found) - SHOWN} more groups")
        known = known or bool(found)
        if trial.client_groups and all(group is None for group in trial.client_groups):
            table.add_row(Text(trial.label), "not disclosed")
    return table if known else None


def _last(rounds: Sequence[Line], group: str, metric: str) -> float:
    """Return the mean of a group's metric over the last `LAST` rounds in which the group was measured."""
    measured = [line["group_metrics"][group] for line in rounds if group in line.get("group_metrics", {})]
    values = [each[metric] for each in measured[-LAST:] if each.get(metric) is not None]
    return sum(values) / len(values) if values else math.nan
