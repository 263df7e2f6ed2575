"""What the page shows, as JSON values. All functions are pure: they compute from trials and nodes alone."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.page.database import Node, OpenMessage
from deploy.page.trial_numbers import TrialNumbers

ROWS = 40  # the most rows of the panel with the selections
PAGE = 25  # clients on one page of the table
NAMES = 200  # the most nodes outside the run that are listed
ORDERS = ("size", "group", "draws")
View = dict[str, Any]


def summary(trial: TrialNumbers, state: str) -> View:
    """Return one row of the table of trials."""
    end = trial.end or {}
    return {
        "label": trial.label,
        "selector": trial.settings.get("selector", ""),
        "seed": trial.settings.get("seed"),
        "task": trial.settings.get("task", ""),
        "started": trial.settings.get("started", ""),
        "per_round": trial.settings.get("clients_per_round"),
        "state": state,
        "reason": str(end.get("reason") or ""),
        "round": trial.round,
        "rounds": trial.settings.get("num_rounds"),
        "loss": trial.last.get("test_loss"),
        "accuracy": trial.last.get("test_accuracy"),
        "available": trial.last.get("num_available"),
        "clients": len(trial.client_ids),
        "drawn": int(np.count_nonzero(trial.counts["drawn"])),
        "seconds": trial.rounds[-1]["seconds"] if trial.rounds else None,
        "selected": trial.rounds[-1]["selected"] if trial.rounds else None,
        "quarantined": len(trial.quarantined),
        "failed": int(trial.counts["failed"].sum()),
        "clipped": int(trial.counts["clipped"].sum()),
        "groups": sum(1 for _ in members(trial)),
        "version": trial.version,
    }


def curves(trial: TrialNumbers, start: int = 0, width: int = 1) -> View:
    """Return the curves of a trial: a series over the rounds for each kind of number.

    `start`: the first bin that the browser lacks. `width`: the number of rounds in each of its bins. A series
    whose bins have another width by now is returned whole.
    """
    found = {}
    for name, series in trial.series.items():
        begin = min(start, len(series)) if series.width == width and start > 0 else 0
        found[name] = series.shown(begin)
    return found


def members(trial: TrialNumbers) -> Mapping[str, list[int]]:
    """Return the indexes of the clients in each group. Groups with shorter names come first."""
    found: dict[str, list[int]] = {}
    for client, group in enumerate(trial.client_groups):
        if group is not None:
            found.setdefault(group, []).append(client)
    return dict(sorted(found.items(), key=lambda each: (len(each[0]), each[0])))


def selections(trial: TrialNumbers, order: str) -> View:
    """Return the number of draws of each row of clients in each column of rounds; at most `ROWS` rows.

    `order`: the order of the clients: "size" (largest first), "draws" (most draws first), or "group": a row
    for each group. A trial without groups has the order "size" instead.
    """
    count = len(trial.client_ids)
    groups = members(trial)
    orders = [each for each in ORDERS if each != "group" or groups]
    order = order if order in orders else "size"
    if not count:
        return {"order": order, "orders": orders, "rows": [], "cells": [], "width": 1, "columns": 0}
    if order == "group":
        rows = _rows_of_groups(trial, groups)
    else:
        keys = trial.client_sizes if order == "size" else trial.counts["drawn"]
        ranked = np.argsort(-keys, kind="stable")
        rows = [("", each) for each in np.array_split(ranked, min(count, ROWS))]
    row_of = np.empty(count, dtype=np.int64)
    for number, (_, clients) in enumerate(rows):
        row_of[clients] = number
    total = int(trial.counts["drawn"].sum())
    found: View = {
        "order": order,
        "orders": orders,
        "clients": count,
        "round": trial.round,
        "width": trial.draws.width,
        "columns": trial.draws.columns,
        "draws": total,
        "cells": trial.draws.binned(row_of, len(rows)).tolist(),
        "missed": trial.missed.binned(row_of, len(rows)).tolist(),
        "rows": [_row(trial, name, clients) for name, clients in rows],
    }
    return found


def _rows_of_groups(
    trial: TrialNumbers, groups: Mapping[str, list[int]]
) -> list[tuple[str, NDArray[np.int64]]]:
    named = [(name, np.array(clients, dtype=np.int64)) for name, clients in groups.items()]
    without = [client for client, group in enumerate(trial.client_groups) if group is None]
    if without:
        named.append(("no group", np.array(without, dtype=np.int64)))
    if len(named) <= ROWS:
        return named
    large = {name for name, _ in sorted(named, key=lambda each: -len(each[1]))[: ROWS - 1]}
    rest = [clients for name, clients in named if name not in large]
    return [each for each in named if each[0] in large] + [(f"{len(rest)} more", np.concatenate(rest))]


def _row(trial: TrialNumbers, name: str, clients: NDArray[np.int64]) -> View:
    sizes = trial.client_sizes[clients]
    probability, importance = (trial.seen[each][clients] for each in ("probability", "importance"))
    return {
        "name": name or (trial.client_ids[int(clients[0])] if len(clients) == 1 else ""),
        "clients": len(clients),
        "low": float(sizes.min()),
        "high": float(sizes.max()),
        "samples": float(sizes.sum()),
        "draws": int(trial.counts["drawn"][clients].sum()),
        "never": int(np.count_nonzero(trial.counts["drawn"][clients] == 0)),
        "probability": _mean(probability),
        "importance": _mean(importance),
    }


def clients_page(
    trial: TrialNumbers,
    nodes: Mapping[str, Node] | None,
    *,
    sort: str = "name",
    descending: bool = False,
    find: str = "",
    page: int = 0,
    now: float = 0.0,
) -> View:
    """Return one page of the table of clients.

    `nodes`: the SuperLink's nodes by name; None if its database is not known. `sort`: the column by which the
    rows are sorted. Rows without a number in this column come last. `descending`: whether the order is
    reversed: large numbers, or late letters, come first. `find`: only clients whose identity or group
    contains this text are listed. `now`: the time, in seconds since 1970.
    """
    count = len(trial.client_ids)
    text = find.casefold()
    chosen = np.array(
        [
            client
            for client in range(count)
            if not text
            or text in trial.client_ids[client].casefold()
            or text in (trial.client_groups[client] or "").casefold()
        ],
        dtype=np.int64,
    )
    columns: dict[str, NDArray[np.float64]] = {
        "size": trial.client_sizes,
        **{name: values.astype(np.float64) for name, values in trial.counts.items()},
        **trial.seen,
    }
    if sort in columns:
        keys = columns[sort][chosen]
        ranked = np.argsort(np.where(np.isnan(keys), np.inf, -keys if descending else keys), kind="stable")
        chosen = chosen[ranked]
    elif sort in ("name", "group", "state"):
        text_of = {
            "name": lambda client: trial.client_ids[client],
            "group": lambda client: trial.client_groups[client] or "\uffff",
            "state": lambda client: _state(trial, nodes, client, now),
        }[sort]
        chosen = np.array(sorted(chosen.tolist(), key=text_of, reverse=descending), dtype=np.int64)
    page = max(0, min(page, (len(chosen) - 1) // PAGE))
    rows = [_client(trial, nodes, client, now) for client in chosen[page * PAGE : (page + 1) * PAGE].tolist()]
    states = [_state(trial, nodes, client, now) for client in range(count)]
    known = set(trial.client_ids)
    return {
        "rows": rows,
        "found": len(chosen),
        "page": page,
        "pages": max(1, -(-len(chosen) // PAGE)),
        "states": {state: states.count(state) for state in sorted(set(states))},
        "others": [
            {"name": name, "state": "online" if node.is_online(now) else "offline", "seen": node.seen(now)}
            for name, node in sorted((nodes or {}).items())
            if name not in known
        ][:NAMES],
    }


def _state(trial: TrialNumbers, nodes: Mapping[str, Node] | None, client: int, now: float) -> str:
    """Return the state of a client, from the SuperLink's nodes and from the trial's last round.

    The first of these that applies: offline, by the SuperLink; silent, quarantined or training, by the last
    round; online, by the SuperLink; away or available, by the last round. Otherwise unknown.
    """
    name = trial.client_ids[client]
    if nodes is not None:
        node = nodes.get(name)
        if node is not None and not node.is_online(now):
            return "offline"
    if name in trial.silent:
        return "silent"
    if name in trial.quarantined:
        return "quarantined"
    if name in trial.in_flight and trial.end is None:
        return "training"
    if nodes is not None and name in nodes:
        return "online"
    if trial.absent is None:
        return "unknown"
    return "away" if client in trial.absent else "available"


def _client(trial: TrialNumbers, nodes: Mapping[str, Node] | None, client: int, now: float) -> View:
    name = trial.client_ids[client]
    node = (nodes or {}).get(name)
    return {
        "name": name,
        "group": trial.client_groups[client],
        "state": _state(trial, nodes, client, now),
        "last_seen": None if node is None else node.seen(now),
        "size": _finite(trial.client_sizes[client]),
        "used_size": _finite(trial.used_sizes[client]),
        **{key: int(values[client]) for key, values in trial.counts.items()},
        **{key: _finite(values[client]) for key, values in trial.seen.items()},
        "failure": trial.failures.get(client, ""),
    }


def groups(trial: TrialNumbers) -> View:
    """Return each group: its number of clients, its shares of samples and draws, its metrics over rounds."""
    samples, draws = float(trial.client_sizes.sum()), int(trial.counts["drawn"].sum())
    found = []
    for name, clients in members(trial).items():
        series = trial.group_series.get(name, {})
        last = trial.group_last.get(name, {})
        found.append(
            {
                "name": name,
                "clients": len(clients),
                "samples": float(trial.client_sizes[clients].sum()) / samples if samples else None,
                "draws": int(trial.counts["drawn"][clients].sum()) / draws if draws else None,
                "never": int(np.count_nonzero(trial.counts["drawn"][clients] == 0)),
                "loss": last.get("loss"),
                "accuracy": last.get("accuracy"),
                "series": {metric: values.shown() for metric, values in series.items()},
            }
        )
    return {"groups": found[:100], "all": len(found)}


def timeline(trial: TrialNumbers, number: int | None) -> View:
    """Return the timeline of a round; of the last round if ``number`` is None or not kept."""
    kept = list(trial.rounds)
    if not kept:
        return {"first": None, "last": None, "round": None}
    found = next((each for each in kept if each["round"] == number), kept[-1])
    return {"first": kept[0]["round"], "last": kept[-1]["round"], **found}


def notes(trial: TrialNumbers) -> Sequence[View]:
    """Return the notable events of the run, the newest first. Ordinary rounds are not among them."""
    return list(trial.notes)[::-1]


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def under_way(trial: TrialNumbers, messages: Sequence[OpenMessage], now: float) -> View | None:
    """Return the round under way, from its open messages in the SuperLink's database.

    None if there is no such message, if the history has the round already, or if rounds are buffered.

    `messages`: the open TRAIN messages of the trial. `now`: the time, in seconds since 1970.
    """
    rounds = [int(each.round) for each in messages if each.round.isdigit()]
    number = max(rounds, default=0)
    if number <= trial.round:  # the history has the round already
        return None
    these = [each for each in messages if each.round == str(number)]
    order = {"asked": 0, "working": 1, "replied": 2}
    ranked = sorted(these, key=lambda each: (order[each.phase], each.client))
    return {
        "round": number,
        "phases": {phase: sum(each.phase == phase for each in these) for phase in order},
        "clients": [
            {"client": each.client, "phase": each.phase, "seconds": max(0.0, now - each.sent)}
            for each in ranked[:ROWS]
        ],
    }
