"""A client that says no to a TRAIN message is left out, and not chosen again until it is back."""

import json
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

import client.app
import server.app

from ..server.test_apps import DEFAULTS
from ..support.toy_grid import ToyGrid, node_of


def test_a_client_that_declines_is_not_selected_until_it_is_back(tmp_path: Path) -> None:
    pause = tmp_path / "paused"
    config = {
        **DEFAULTS,
        "num-clients": 2,
        "clients-per-round": 2,
        "num-rounds": 5,
        "selector": "uniform",
        "output-dir": str(tmp_path / "out"),
    }
    limits = ({}, {"pause-file": str(pause)})
    nodes = {
        m: node_of(client.app.app, {"partition-id": m, "num-partitions": 2, **limits[m]}, config)
        for m in range(2)
    }
    asked: list[str] = []

    def pausing(message: Message) -> Any:
        asked.append(message.metadata.message_type)
        if len(asked) == 3:  # after its status and round 1
            pause.touch()
        if len(asked) == 5:  # asked in rounds 3 and 4
            pause.unlink()
        return nodes[1](message)

    server.app.app(ToyGrid({0: nodes[0], 1: pausing}), Context(1, 1, {}, RecordDict(), config))
    lines = [json.loads(line) for line in (tmp_path / "out" / "history.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["type"] == "round"][1:]
    assert asked == ["query.status", "train", "train", "query.status", "query.status", "train", "train"]
    assert [line["num_available"] for line in rounds] == [2, 2, 1, 2, 2]
    assert [f["reason"] for f in rounds[1]["failures"]] == ["it does not want to train now"]
    assert [bool(line["failures"]) for line in rounds] == [False, True, False, False, False]
