"""Real federations: a SuperLink with TLS and node authentication, clients in processes of their own."""

import json
import time
from pathlib import Path
from textwrap import dedent

import pytest

from deploy.engines.local_cluster import LocalCluster

from ..server.test_apps import federation
from ..support.processes import kill_for_good

pytestmark = pytest.mark.network

NUM_CLIENTS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), NUM_CLIENTS) as running:
        yield running


def lines_of(folder):
    path = folder / "history.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def rounds_of(lines):
    return [line for line in lines if line["type"] == "round"]


def wait_for(condition, run, timeout):
    end = time.monotonic() + timeout
    while not condition():
        assert not run.over, run.log.read_text()
        assert time.monotonic() < end, run.log.read_text()
        time.sleep(0.1)


PLAIN = {"selector": "adaptive-osmd", "selector-settings": "learning-rate-multiplier=100", "seed": 3}
# What the papers combine their selectors with.
COMBINATIONS = {
    "FLICS-ADAM": {
        "selector": "flics",
        "partition": "groups:2",
        "server-strategy": "FedAdam:eta=0.05,tau=0.01",
        "learning-rate": "0.2@1/0.1@3",
    },
    "OSMD with SCAFFOLD": {"selector": "adaptive-osmd", "variates": "scaffold", "learning-rate": 0.1},
    "OSMD with the norms asked for": {
        "selector": "adaptive-osmd",
        "selector-settings": "ask-norms=true rates=v1 gamma=printed",
    },
    "OSMD with personal models": {"selector": "personalised-osmd", "personal-mu": 0.5, "learning-rate": 0.2},
    "DELTA with a proximal term": {"selector": "delta", "proximal-mu": 0.1, "learning-rate": 0.1},
}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(PLAIN, id="plain"),
        *(pytest.param(each, id=name, marks=pytest.mark.slow) for name, each in COMBINATIONS.items()),
    ],
)
def test_a_federation_over_grpc_is_the_same_run_as_in_process(cluster, tmp_path, settings):
    run = cluster.submit(
        {
            **settings,
            "num-clients": NUM_CLIENTS,
            "num-rounds": 4,
            "clients-per-round": 2,
            "shortest-deadline": 120.0,  # a busy machine may take long
            "output-dir": str(tmp_path / "grpc"),
        },
        tmp_path.name,
    )
    run.wait(timeout=180)
    over_grpc = lines_of(tmp_path / "grpc")
    assert over_grpc, run.log.read_text()
    assert over_grpc[-1]["type"] == "end", run.log.read_text()
    assert Path(over_grpc[-1]["model"]).stat().st_size > 64 * 10 * 4
    assert over_grpc[2]["client_ids"] == ["client-00", "client-01", "client-02", "client-03"]

    in_process = federation(
        tmp_path / "in-process", NUM_CLIENTS, num_rounds=4, clients_per_round=2, **settings
    )
    keys = (
        "clients",
        "counts",
        "probabilities",
        "weights",
        "update_norms",
        "reported_norms",
        "train_losses",
        "test_loss",
        "failures",
    )
    for ours, theirs in zip(rounds_of(over_grpc), rounds_of(in_process), strict=True):
        assert {key: ours.get(key) for key in keys} == {key: theirs.get(key) for key in keys}


PYPROJECT = """
    [project]
    name = "stranger"
    version = "1.0.0"
    license = { text = "MIT" }
    [tool.flwr.app]
    publisher = "someone"
    [tool.flwr.app.components]
    serverapp = "server.app:app"
    clientapp = "client.app:app"
    [tool.flwr.app.config]
"""


def write_app(folder, files, *settings):
    """Write a foreign app, with these defaults in its run config."""
    project = dedent(PYPROJECT) + "".join(f"{line}\n" for line in settings)
    for name, text in {"pyproject.toml": project, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder


FOREIGN_APP = {  # its settings are the folder of its files, and the number of rounds
    "server/__init__.py": "OWN = 'the foreign app\\'s server package'",
    "server/app.py": """
        import json
        from pathlib import Path

        import numpy as np
        from flwr.app import ArrayRecord
        from flwr.serverapp import ServerApp
        from flwr.serverapp.strategy import FedAdam
        from strategies import AdaptiveOSMD, Checkpoints

        from server import OWN

        app = ServerApp()

        @app.main()
        def main(grid, context):
            folder = Path(context.run_config["folder"])
            strategy = AdaptiveOSMD(
                clients_per_round=2, seed=1, min_available_clients=4,
                server_strategy=FedAdam(fraction_evaluate=0.0, eta=0.1),
                checkpoints=Checkpoints(folder / "state", resume=True),
            )
            result = strategy.start(
                grid, ArrayRecord([np.zeros(3)]), num_rounds=context.run_config["rounds"]
            )
            answer = {
                "own": OWN,
                "w": result.arrays.to_numpy_ndarrays()[0].tolist(),
                "ids": strategy.roster.ids(),
                "sizes": strategy.selector.client_sizes.tolist(),
                "p": strategy.selector.probabilities.tolist(),
                "metrics": {n: dict(m) for n, m in sorted(result.train_metrics_clientapp.items())},
            }
            (folder / "result.json").write_text(json.dumps(answer))
    """,
    "client/__init__.py": "RATE = 0.1",
    "client/app.py": """
        from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp

        from client import RATE

        app = ClientApp()

        @app.train()
        def train(message, context):
            (w,) = message.content["arrays"].to_numpy_ndarrays()
            partition = context.node_config["partition-id"]
            distance = float(abs(w - partition).sum())
            metrics = MetricRecord({"num-examples": 10 * (1 + partition), "distance": distance})
            content = RecordDict({"arrays": ArrayRecord([w + RATE * (partition - w)]), "metrics": metrics})
            return Message(content, reply_to=message)
    """,
}


def write_foreign_app(folder):
    return write_app(folder, FOREIGN_APP, 'folder = ""', "rounds = 3")


def test_a_foreign_app_with_its_own_server_and_client_uses_adaptive_osmd(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "app", write_foreign_app(tmp_path / "app"))
    run = cluster.submit({"folder": str(tmp_path)}, "stranger")
    run.wait(timeout=180)
    assert (tmp_path / "result.json").exists(), run.log.read_text()
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["own"] == "the foreign app's server package"
    assert result["ids"] == ["client-00", "client-01", "client-02", "client-03"]  # the registered names
    assert list(result["metrics"]) == ["1", "2", "3"]
    assert result["w"][0] > 0
    assert result["w"] == [result["w"][0]] * 3
    assert len(set(result["sizes"])) > 1  # learned from num-examples


SILENT_APP = {
    "server/__init__.py": "",
    "server/app.py": """
        import json
        import numpy as np
        from flwr.app import ArrayRecord
        from flwr.serverapp import ServerApp
        from strategies import Deadlines, SelectionStrategy

        app = ServerApp()

        @app.main()
        def main(grid, context):
            rounds = []
            strategy = SelectionStrategy(
                "full", clients_per_round=4, on_round=rounds.append, deadlines=Deadlines(round=60)
            )
            strategy.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=24)
            name = strategy.roster.id_of
            with open(context.run_config["output"], "w") as file:
                for record in rounds:
                    line = {
                        "seconds": record.seconds,
                        "asked": [name(client) for client in record.selection.clients],
                        "failed": [name(client) for client in record.failures],
                        "silent": [name(client) for client in record.silent],
                    }
                    file.write(json.dumps(line) + "\\n")
    """,
    "client/__init__.py": "",
    "client/app.py": """
        import time
        from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp

        app = ClientApp()

        @app.train()
        def train(message, context):
            time.sleep(3600 if context.node_config["partition-id"] == 1 else 0.5)
            metrics = MetricRecord({"num-examples": 5})
            content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
            return Message(content, reply_to=message)
    """,
}


@pytest.mark.slow
def test_a_client_whose_app_hangs_is_soon_left_out(tmp_path):
    with LocalCluster(tmp_path / "cluster", NUM_CLIENTS) as cluster:
        cluster.app = write_app(tmp_path / "app", SILENT_APP, 'output = ""')
        run = cluster.submit({"output": str(tmp_path / "rounds.jsonl")}, "hung")
        run.wait(timeout=300)
    assert (tmp_path / "rounds.jsonl").exists(), run.log.read_text()
    rounds = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    asked = [number for number, line in enumerate(rounds, 1) if "client-01" in line["asked"]]
    assert asked == [1, 6, 23]  # a deadline of 60 s would have passed in each of 24 rounds
    assert all(
        line["failed"] == (["client-01"] if number in asked else []) for number, line in enumerate(rounds, 1)
    )
    assert max(line["seconds"] for line in rounds) < 30
    assert {name for line in rounds for name in line["silent"]} == {"client-01"}


def test_a_client_that_is_killed_does_not_stop_the_run(cluster, tmp_path):
    run = cluster.submit(
        {
            "selector": "uniform",
            "num-clients": NUM_CLIENTS,
            "clients-per-round": NUM_CLIENTS,  # all, so that the next round misses the killed one
            "num-rounds": 6,
            "round-deadline": 60.0,  # s; the round of the kill does not wait that long
            "output-dir": str(tmp_path),
        },
        "killed",
    )
    wait_for(lambda: len(rounds_of(lines_of(tmp_path))) > 1, run, timeout=120)
    kill_for_good(cluster, 2)
    killed = time.monotonic()
    run.wait(timeout=180)
    assert time.monotonic() - killed < 45
    lines = lines_of(tmp_path)
    assert lines[-1]["type"] == "end", run.log.read_text()
    first, *later, last = rounds_of(lines)[1:]
    assert first["failures"] == []
    (missed,) = [line for line in later if line["failures"]]
    assert [failure["client"] for failure in missed["failures"]] == ["client-02"]
    assert missed["responded"].count(True) == NUM_CLIENTS - 1
    assert "client-02" not in last["client_ids"]  # it is known to be offline
    # The other weights are scaled up for the missing client, and the model has changed.
    scale = NUM_CLIENTS / (NUM_CLIENTS - 1)
    for weight, expected, here in zip(missed["weights"], first["weights"], missed["responded"], strict=True):
        assert weight == pytest.approx(expected * scale if here else 0)
    assert last["test_loss"] != rounds_of(lines)[-2]["test_loss"]
