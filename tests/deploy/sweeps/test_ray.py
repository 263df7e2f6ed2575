"""`cohort sweep --on ray`, on a cluster of two nodes on this machine."""

import csv
import os
import subprocess
import sys

import pytest

from .test_command import GRID, OWN

pytestmark = pytest.mark.simulation


@pytest.fixture
def address():
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def test_a_sweep_on_two_nodes_gives_the_results_of_this_machine(tmp_path, address):
    (tmp_path / "sweep.toml").write_text(GRID.replace("[1, 3]", "1").replace('"md"', '"by-size"'))
    (tmp_path / "my.py").write_text(OWN)
    (tmp_path / "helper.py").write_text("POWER = 1.0\n")
    found = {}
    for where, environment in (("ray", {**os.environ, "RAY_ADDRESS": address}), ("local", os.environ)):
        program = (sys.executable, "-c", "from deploy.command import main; main()", "sweep", "sweep.toml")
        command = [*program, "--out", where, "--on", where, "--import", "my.py"]
        run = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stdout + run.stderr
        with (tmp_path / where / "results.csv").open() as file:
            found[where] = [
                {name: value for name, value in row.items() if name != "seconds"}
                for row in csv.DictReader(file)
            ]
    assert len(found["ray"]) == 4
    assert found["ray"] == found["local"]
    assert len(list(tmp_path.glob("ray/trials/*/history.jsonl"))) == 4


def test_a_cluster_that_is_not_there_is_named(tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "sweep.toml").write_text(GRID)
    program = (sys.executable, "-c", "from deploy.command import main; main()", "sweep", "sweep.toml")
    run = subprocess.run(
        [*program, "--out", "out", "--on", "ray"],
        cwd=tmp_path,
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 1
    assert "RAY_ADDRESS = '127.0.0.1:1': there is no Ray cluster: " in run.stderr
    assert "Traceback" not in run.stderr


ATTACK = """
import os, subprocess, sys
import deploy.sweeps.ray_cluster as cluster

def attack():
    import ray
    address = ray.get_runtime_context().gcs_address
    stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    command = [sys.executable, "-c", f"import ray; ray.init(address={address!r})"]
    print(subprocess.run(command, env=stranger, capture_output=True, text=True).stderr)

cluster.ship = attack
print(list(cluster.on_ray([])))
"""


def test_a_cluster_that_starts_here_serves_nobody_else():
    """Without a secret, whoever reached the machine's ports could run programs as its user."""
    pytest.importorskip("ray")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    run = subprocess.run(
        [sys.executable, "-c", ATTACK],
        env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "ConnectionError: Failed to connect to Ray cluster" in run.stdout
    assert "uthentication" in run.stdout
    assert run.stdout.endswith("[]\n")
