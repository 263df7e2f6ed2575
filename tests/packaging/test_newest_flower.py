"""The installed library on the newest Flower: one simulation with Ray. `make test-newest-flower` runs it."""

import os
import subprocess
import sys
from importlib.metadata import version
from textwrap import dedent

import pytest

pytestmark = pytest.mark.newest

APP = """
    import numpy as np
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation
    from flwr_cohort import Forecast

    client_app, server_app = ClientApp(), ServerApp()
    records, models = [], []


    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        (w,) = message.content["arrays"].to_numpy_ndarrays()
        metrics = MetricRecord({"num-examples": 10, "train-loss": 0.5})
        return Message(RecordDict({"arrays": ArrayRecord([w + 1]), "metrics": metrics}), reply_to=message)


    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Forecast(clients_per_round=2, min_available_clients=4, on_round=records.append)
        result = strategy.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=3)
        models.extend(result.arrays.to_numpy_ndarrays())


    resources = {"client_resources": {"num_cpus": 1}}
    run_simulation(server_app, client_app, num_supernodes=4, backend_config=resources)
    assert [record.round for record in records] == [1, 2, 3]
    assert not any(record.skipped or record.failures for record in records)
    assert np.isfinite(models[0]).all() and (models[0] > 0).all()
"""


def test_a_ray_simulation_with_the_installed_library(tmp_path):
    assert version("flwr") > "1.39.0"
    (tmp_path / "app.py").write_text(dedent(APP))
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    run = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
