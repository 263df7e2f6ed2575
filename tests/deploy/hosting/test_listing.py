"""`cohort server list`, `runs` and `stop`: what devices and runs have done."""

import json

import pytest
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.hosting.listing import RUN_ID, Share, shares
from deploy.hosting.server import Server, ServerError
from server.history import TOLD_TO_END, VERSION, RunHistory

KEY = "ecdsa-sha2-nistp256 AAAA"


def line(number, weights, late=(), **more):
    responded = [client not in late for client in weights]
    columns = {"client_ids": list(weights), "weights": list(weights.values()), "responded": responded}
    clients = range(len(weights))
    return {"type": "round", "round": number, "clients": [*clients], **columns, **more}


def write_run(folder, *lines):
    folder.mkdir(parents=True)
    settings = {"selector": "md", "selector_settings": "", "num_rounds": 9, "started": folder.name}
    with (folder / "history.jsonl").open("w") as file:
        names = ["a", "b", "c"]
        roster = {"type": "roster", "client_ids": names, "client_sizes": [1.0] * len(names)}
        for each in ({"type": "run", "version": VERSION, **settings}, roster, *lines):
            file.write(json.dumps(each) + "\n")
    history = RunHistory(folder / "history.jsonl")
    history.read()
    return history


def test_shares_are_those_of_the_updates_that_were_used(tmp_path):
    history = write_run(
        tmp_path / "run",
        {"type": "round", "round": 0, "test_loss": 1.0},
        line(1, {"a": 0.75, "b": 0.25}),
        line(2, {"a": 0.0, "b": 1.0}, late=("a",)),
        line(3, {"a": 0.5, "c": 0.5}, skipped="too few"),
        line(4, {"c": None}),
    )
    assert shares(history) == {
        "a": Share(3, 1, 0.375, 1.0, 1.0),
        "b": Share(2, 2, 0.625, 1.0, 1.0),
        "c": Share(2, 1, 0.0, 1.0, 1.0),
    }
    nobody = dict.fromkeys("abc", Share(claimed_size=1.0, used_size=1.0))
    assert shares(write_run(tmp_path / "empty")) == nobody
    edited = line(1, {"a": 1.0})
    del edited["weights"]
    assert shares(write_run(tmp_path / "edited", edited)) == {**nobody, "a": Share(1, 1, 0.0, 1.0, 1.0)}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server with two devices, one of them offline, and a foreign node."""
    server = Server(tmp_path / "server", ("localhost",), control_port=1)
    server.save()
    for name, node in (("pi-1", "7"), ("pi-2", "8"), ("pi-3", "9")):
        server.registry.record(name, node, KEY)
    nodes = [
        {"node-id": "7", "status": "online", "online-at": "2026-01-01 00:00:00Z", "offline-at": "N/A"},
        {"node-id": "8", "status": "offline", "offline-at": "2026-01-02 03:04:05Z"},
        {"node-id": "9", "status": "registered", "offline-at": "N/A"},
    ]
    monkeypatch.setattr(Server, "flwr", lambda self, *_: {"success": True, "nodes": nodes})
    return server


def run(server, *arguments):
    return CliRunner().invoke(cli, ["server", *arguments, "--dir", str(server.folder)])


def test_the_list_has_what_each_device_did_in_the_newest_run(server):
    assert run(server, "list").output.splitlines() == [
        "client  state       last seen",
        "pi-1    online      now",
        "pi-2    offline     2026-01-02 03:04:05Z",
        "pi-3    registered  never",
        "3 registered, 1 online",
    ]
    write_run(server.folder / "runs" / "1", line(1, {"pi-3": 1.0}))
    roster = {
        "type": "roster",
        "client_ids": ["pi-1", "pi-2", "pi-3"],
        "client_sizes": [500, 120, None],
        "used_sizes": [250, 120, None],
        "mean_size": 185,
    }
    trained = line(1, {"pi-1": 0.25, "pi-2": 0.75}), line(2, {"pi-1": 1.0})
    write_run(server.folder / "runs" / "2", roster, *trained)
    write_run(server.folder / "runs" / "3")  # has not trained yet
    assert run(server, "list").output.splitlines() == [
        "client  state       last seen             selected  used  contribution  samples",
        "pi-1    online      now                   2         2     62.5 %        500, used as 250",
        "pi-2    offline     2026-01-02 03:04:05Z  1         1     37.5 %        120",
        "pi-3    registered  never                 0         0     0.0 %         -, used as 185",
        "selected, used: rounds of the newest run, 2",
        "contribution: the client's share of the total weight of all used updates",
        "samples: as the client claims; 'used as' if another number determines its weights",
        "3 registered, 1 online",
    ]
    found = json.loads(run(server, "list", "--json").output)
    assert (found["newest_run"], found["registered"], found["online"]) == ("2", 3, 1)
    first, second, third = found["clients"]
    assert first["last_seen"].startswith("20")
    assert second == {
        "name": "pi-2",
        "state": "offline",
        "node_id": "8",
        "last_seen": "2026-01-02 03:04:05Z",
        "in_newest_run": {
            "selected": 1,
            "used": 1,
            "contribution": 0.375,
            "claimed_size": 120,
            "used_size": 120,
        },
    }
    assert third["last_seen"] is None


def test_runs_are_listed_with_their_states(server):
    assert run(server, "runs").output == "there is no run yet\n"
    assert json.loads(run(server, "runs", "--json").output) == []
    write_run(
        server.folder / "runs" / "1", {"type": "round", "round": 4, "test_accuracy": 0.5}, {"type": "end"}
    )
    write_run(server.folder / "runs" / "2", {"type": "error", "reason": "x"})
    (server.folder / "runs" / "2" / RUN_ID).write_text("17")
    write_run(server.folder / "runs" / "3")
    write_run(server.folder / "runs" / "4", {"type": "error", "reason": TOLD_TO_END})
    assert run(server, "runs").output.splitlines() == [
        "run  state        round  accuracy  selector",
        "1    finished     4/9    50.0 %    md",
        "2    failed       0/9    -         md",
        "3    interrupted  0/9    -         md",
        "4    stopped      0/9    -         md",
    ]
    found = json.loads(run(server, "runs", "--json").output)
    assert [each["flower_run"] for each in found] == [None, "17", None, None]
    assert found[0]["folder"] == str(server.folder / "runs" / "1")


def test_a_run_is_stopped_by_name_folder_or_id(server, monkeypatch):
    asked = []
    monkeypatch.setattr(Server, "flwr", lambda self, *arguments: asked.append(arguments))
    folder = server.folder / "runs" / "2026-01-01"
    write_run(folder)
    refused = run(server, "stop", "last")
    assert (refused.exit_code, "holds no flower-run; give Flower's id" in refused.output) == (2, True)
    (folder / RUN_ID).write_text("17")
    for name in ("last", "2026-01-01", str(folder), "18"):
        assert run(server, "stop", name).exit_code == 0
    assert asked == [("stop", "17"), ("stop", "17"), ("stop", "17"), ("stop", "18")]
    refused = run(server, "stop", "nonsense")
    assert "run = nonsense: must be the name or folder of a run, last, or Flower's id" in refused.output

    def fail(self, *arguments):
        raise ServerError("Run is already finished.")

    monkeypatch.setattr(Server, "flwr", fail)
    refused = run(server, "stop", "17")
    assert (refused.exit_code, refused.output) == (2, "Run is already finished.\n")
