"""The strategies of the papers on data with three groups, and what the history of each run must hold.

All clients train in round 1, and three in each later round.
"""

import json
from typing import Any

import numpy as np
from flwr.app import Array

import tasks

Lines = list[dict[str, Any]]

CLIENTS = 6
SEED = 3
LATER = 3  # the clients that train in rounds 2, 3, ...
SETTINGS = {
    "partition": "groups:3",
    "evaluate-share": 1.0,
    "learning-rate": 0.2,
    "budget": f"{CLIENTS}@1/{LATER}@2",
}
CANDIDATES = 4  # of Power-of-Choice in rounds 2, 3, ...
FEW = f"num-candidates={CLIENTS}@1/{CANDIDATES}@2"
SELECTORS = {
    "adaptive-osmd": "learning-rate-multiplier=100",
    "delta": "",
    "prac-delta": "local-steps=5",
    "pow-d": FEW,
    "cpow-d": f"{FEW},batch-size=16",
    "rpow-d": FEW,
    "adapow-d": FEW,
    "flics": "group-shares=2/1/1,min-shares=0.2/0.3/0.1",
    "flics-private": "group-shares=2/1/1,epsilon=50",  # 50: hardly any noise, so that results are certain
}
# How many messages a round's polls take, beyond those of training and evaluation, and in how many of them the
# model travels to the client, and back.
NONE, LOSSES = (0, 0, 0), (CANDIDATES, CANDIDATES, 0)
POLLS = {
    "delta": (CLIENTS, CLIENTS, CLIENTS),  # every client trains before the selection
    "pow-d": LOSSES,
    "cpow-d": LOSSES,
    "adapow-d": LOSSES,
    "flics-private": (2 * CLIENTS, 0, 0),  # its group, and whether it accepts
}


def argument(selector, settings=None):
    """Return the selector with its settings, as `cohort up --selector` takes it."""
    given = SELECTORS[selector] if settings is None else settings
    return f"{selector}:{given}" if given else selector


def histories_below(folder):
    """Return the histories of a comparison, by selector."""
    found = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in folder.glob("**/history.jsonl")
    ]
    return {lines[0]["selector"]: lines for lines in found}


def rounds_of(lines):
    """Return the lines of the rounds, the first of which is round 0."""
    return [line for line in lines if line["type"] == "round"]


def check_history(lines, num_rounds, groups):
    """Assert that a run is complete, and that its messages, bytes and groups are those of its selector.

    Parameters
    ----------
    lines : list of dict
        The history.
    num_rounds : int
        The number of rounds.
    groups : sequence of str
        The groups that the server knows.
    """
    name = lines[0]["selector"]
    assert [line["type"] for line in lines] == ["run", "round", "roster", *["round"] * num_rounds, "end"]
    before, *rounds = rounds_of(lines)
    model = sum(len(Array(array).data) for array in tasks.create("digits").initial_arrays(SEED).values())
    for line in rounds:
        first, trained = line["round"] == 1, len(line["clients"])
        polls, sent, returned = POLLS.get(name, NONE)
        if first and POLLS.get(name) == LOSSES:
            polls = sent = CLIENTS
        assert line["failures"] == []
        assert line["num_available"] == CLIENTS
        assert line["messages_sent"] == line["messages_received"]
        status = CLIENTS * first
        assert line["messages_sent"] == status + polls + trained + CLIENTS, (name, line["round"])
        assert line["bytes_sent"] == model * (sent + trained + CLIENTS)
        assert line["bytes_received"] == model * (returned + trained)
        assert sorted(line["group_metrics"]) == sorted(groups)
    assert rounds[-1]["test_loss"] < before["test_loss"]


def check_private_groups(private, other, groups, shares):
    """Assert that in round 1 each client of `flics-private` scaled its update by its own group's factor.

    All clients train in round 1 of both runs, from the same model and on the same mini-batches.

    Parameters
    ----------
    private, other : list of dict
        The histories of `flics-private`, and of a selector that leaves updates as they are.
    groups : mapping of str to str
        The private group of each client.
    shares : mapping of str to float
        The weight of each group in the objective.
    """
    scaled, plain = (
        dict(zip(line["client_ids"], line["update_norms"], strict=True))
        for line in (rounds_of(private)[1], rounds_of(other)[1])
    )
    assert scaled.keys() == plain.keys() == groups.keys()
    held = list(groups.values())
    for client, group in groups.items():
        factor = shares[group] / sum(shares.values()) / held.count(group)
        np.testing.assert_allclose(scaled[client], factor * plain[client], rtol=1e-3)
