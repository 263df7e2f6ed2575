"""The settings `partition` and `data-dir` on their way from the run config to server and clients."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import tasks
from client.local_data import LocalData
from server.settings import RunSettings, check_same_run

from ..server.test_apps import DEFAULTS, federation


@pytest.fixture
def images(tmp_path):
    """Return a folder with 120 pictures of classes that a model learns at once."""
    content = {}
    for half, n in (("train", 120), ("test", 20)):
        labels = np.arange(n) % 10
        pixels = np.zeros((n, 784), np.uint8)
        pixels[np.arange(n), labels * 70] = 255
        content |= {f"x_{half}": pixels, f"y_{half}": labels}
    np.savez(tmp_path / "mnist.npz", **content)
    return tmp_path


def held_by(client, **run):
    node = {"partition-id": client, "num-partitions": 12, **run.pop("node", {})}
    settings = {name.replace("_", "-"): value for name, value in run.items()}
    return LocalData.from_context(Context(1, 1, node, RecordDict(), {**DEFAULTS, **settings}))


def test_a_run_trains_on_the_data_and_the_partition_that_it_names(images):
    settings = {"task": "mnist", "partition": "dirichlet:0.3", "data_dir": str(images)}
    lines = federation(images / "run", num_clients=6, learning_rate=5.0, local_steps=20, **settings)
    assert (lines[0]["partition"], lines[0]["data_dir"]) == ("dirichlet:0.3", str(images))
    roster = next(line for line in lines if line["type"] == "roster")
    task = tasks.create("mnist", partition="dirichlet:0.3", data_dir=str(images))
    assert roster["client_sizes"] == task.federated_data(6, 1).sizes().tolist()
    rounds = [line for line in lines if line["type"] == "round"]
    assert rounds[0]["test_accuracy"] == pytest.approx(0.1)
    assert rounds[-1]["test_accuracy"] > 0.5


def test_a_client_receives_the_partition(images):
    run = {"task": "mnist", "partition": "groups:5", "data_dir": str(images)}
    for m in range(12):
        mine = held_by(m, **run)
        assert isinstance(mine.group, int)
        assert set((mine.data.labels % 5).tolist()) <= {mine.group, (mine.group + 1) % 5}
    assert {held_by(m, **run).group for m in range(12)} == set(range(5))
    # The node's own config takes precedence; without groups there is no group.
    assert held_by(3, **run, node={"group": "north"}).group == "north"
    assert held_by(3, **{**run, "partition": "shards:2"}).group is None


def test_a_resumed_run_keeps_its_partition_but_may_find_its_data_elsewhere():
    before = RunSettings.from_run_config(DEFAULTS).model_dump()
    check_same_run(before, before | {"data_dir": "/elsewhere"})
    with pytest.raises(ValueError, match=r"^partition = 'balanced': the run to be resumed has 'skewed'$"):
        check_same_run(before, before | {"partition": "balanced"})
