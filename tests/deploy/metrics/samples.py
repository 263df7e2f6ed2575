"""Histories of many rounds in which everything happens, and the text that a collector makes of them."""

import json

from deploy.metrics.collector import Collector, Sources
from deploy.metrics.readiness import SuperLink
from server.history import VERSION

GROUP = 'north"\n\\\x1b[2J}'  # as a client may name its group


def run_line(**more):
    settings = {"selector": "md", "selector_settings": "", "task": "digits", "seed": 3, "num_rounds": 9}
    return {"type": "run", "version": VERSION, "started": "2026", **settings, **more}


def round_line(number, **more):
    """Return the line of a round with three selected clients, of which one failed and one was clipped."""
    found = {
        "type": "round",
        "round": number,
        "num_available": 5,
        "clients": [0, 1, 2],
        "failures": [{"client": "b", "reason": "late"}],
        "clipped": [{"client": "c", "reason": "norm"}],
        "quarantined": ["d", "e"],
        "silent": ["e"],
        "skipped": "",
        "seconds": 2.5,
        "phases": {"poll": 0.5, "train": 1.75, "aggregate": 0.25},
        "messages_sent": 4,
        "bytes_sent": 1000,
        "messages_received": 3,
        "bytes_received": 800,
        "train_loss": 0.75,
        "test_loss": 0.5,
        "test_accuracy": 0.875,
        "group_metrics": {GROUP: {"loss": 0.25, "accuracy": 0.5}},
    }
    return {**found, **more}


def roster(count=6):
    return {"type": "roster", "client_ids": [str(each) for each in range(count)], "client_sizes": [1] * count}


def append(folder, *lines):
    """Add lines to the history in a folder, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "history.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return folder


def collector_of(runs):
    """Return a collector whose SuperLink does not answer."""
    nowhere = "127.0.0.1:1"
    files = {"authority": runs / "no-ca.crt", "secret": runs / "no-secret"}
    superlink = SuperLink(nowhere, nowhere, "127.0.0.1", **files)
    return Collector(Sources(runs, superlink, starts=lambda: {"superlink": 2}))
