"""The experiments on data that could not be had here, on a little made data in the same files."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.experiments.delta import other_data as delta
from benchmarks.experiments.flics import cifar_100
from benchmarks.experiments.power_of_choice import other_data as poc
from tasks import datasets
from tests.support.made_data import made

Make = Callable[..., Path]
DELTA = {each.name: each for each in delta.EXPERIMENTS}
POC = {each.name: each for each in poc.EXPERIMENTS}


@pytest.fixture
def make(tmp_path):
    return partial(made, tmp_path)


def check(outcome):
    """All numbers are percents, or differences of percents."""
    assert outcome.cells
    for (_, column), figure in outcome.cells.items():
        if not any(word in column for word in ("rounds", "norm", "seconds")):
            assert -100 <= figure <= 100
    for lines in outcome.curves.values():
        for curve in lines.values():
            assert ((curve.y >= 0) & (curve.y <= 100)).all()


@pytest.mark.parametrize("experiment", [*DELTA.values(), *POC.values(), *cifar_100.EXPERIMENTS])
def test_an_experiment_names_a_data_set_that_can_be_written(experiment):
    assert experiment.data.removesuffix(".npz") in datasets.DESCRIPTIONS
    assert experiment.name.startswith(("delta-", "poc-", "flics-"))
    assert ("no results of ours" in " ".join(experiment.text.about.split())) == (
        experiment.data != "mnist.npz"
    )


@pytest.mark.slow
def test_deltas_table_on_fashion_mnist(make):
    keywords = dict(DELTA["delta-table-3-fashion-mnist"].run.keywords)
    assert keywords["federations"].keys() == {"plain", "momentum", "proximal"}
    proximal = replace(keywords["federations"]["proximal"], num_clients=12, common_threshold=0.0)
    keywords["federations"] = {"proximal": proximal}
    keywords["methods"] = {row: delta.METHODS[row] for row in ("FedAvg", "PracDELTA")}
    outcome = partial(delta.run_table, **keywords)(1, make("fashion-mnist"), quick=True)
    check(outcome)
    assert {row for row, _ in outcome.cells} == {"proximal: FedAvg", "proximal: PracDELTA"}
    assert outcome.cells["proximal: FedAvg", "rounds to common threshold"] == 1  # 0 % is reached at once
    assert ("proximal: FedAvg", "seconds to threshold") in outcome.cells  # Table 2 has times


@pytest.mark.slow
def test_deltas_figure_on_femnist_has_a_writer_per_client(make):
    federation = replace(delta.USERS, num_clients=5)
    file = make("femnist", users=8)
    halves = datasets.load("femnist", str(file))
    data = federation.data(halves, seed=3)
    assert halves.train.users is not None
    whole = halves.train.take(slice(None))
    found = []
    for m in range(5):
        mine = data.client(m)
        rows = [int(np.flatnonzero((whole.inputs == row).all(axis=1))[0]) for row in mine.inputs]
        (writer,) = {str(halves.train.users[row]) for row in rows}
        found.append(writer)
        assert len(mine) == 30
    assert len(set(found)) == 5
    methods = {row: delta.METHODS[row] for row in ("FedAvg",)}
    check(delta.run_figure(1, file, federation=federation, methods=methods, dataset="femnist", quick=True))
    with pytest.raises(ValueError, match=r"^users_train: names 8 users: must name at least 9$"):
        replace(federation, num_clients=9).data(halves, seed=3)


@pytest.mark.parametrize("name", ["poc-cifar10", "poc-emnist-d", "poc-emnist"])
def test_power_of_choice_on_images(name, make):
    keywords = dict(POC[name].run.keywords)
    assert keywords["setting"].num_clients in (100, 500)
    keywords["setting"] = replace(keywords["setting"], num_clients=20, batch_size=4)
    keywords["trials"] = tuple(
        each._replace(
            clients_per_round=2, settings={key: min(4, value) for key, value in each.settings.items()}
        )
        for each in keywords["trials"]
    )
    outcome = partial(poc.run, **keywords)(1, make(keywords["setting"].dataset), quick=True)
    check(outcome)
    assert {row.partition(": ")[0] for row, _ in outcome.cells} == {"α=2", "α=0.3"}
    assert any("afl" in row for row, _ in outcome.cells)


def test_power_of_choice_on_sent140_has_an_account_per_client(make):
    file = make("sent140", train=25 * 12, users=12)  # and 8 or 9 in the test half
    setting = replace(poc.SENT140, num_clients=10, local_steps=4)
    data, test = poc.split(setting, file, 1, None)
    assert {*data.sizes().tolist()} <= {26, 27}  # 80 % of 33 or 34: only both halves together are 32 or more
    assert len(test) in range(50, 61)
    halves, users = datasets.load("sent140", str(file)), []
    for half in halves:
        assert half.users is not None
        users += [
            (row.tobytes(), user) for row, user in zip(half.take(slice(None)).inputs, half.users, strict=True)
        ]
    for m in range(10):
        assert len({dict(users)[row.tobytes()] for row in data.client(m).inputs}) == 1
    trials = tuple(each._replace(clients_per_round=3) for each in poc._trials(3, (6,), setting))
    assert trials[-2].settings == {"num_candidates": 5}  # rpow-d: half of the clients
    check(poc.run(1, file, setting=setting, trials=trials, quick=True))
    with pytest.raises(ValueError, match=r"name 12 users with at least 32 samples: must name at least 13$"):
        poc.split(replace(setting, num_clients=13), file, 1, None)


def test_power_of_choice_on_sent140_needs_the_accounts(make):
    with pytest.raises(ValueError, match="must have users_train and users_test"):
        poc.split(poc.SENT140, make("sent140"), 1, None)


def test_a_candidate_of_cpow_d_evaluates_as_many_samples_as_a_mini_batch_has():
    found = {}
    for name, experiment in POC.items():
        keywords = experiment.run.keywords
        for trial in keywords["trials"]:
            if trial.selector == "cpow-d":
                found[name] = trial.settings["batch_size"], keywords["setting"].batch_size
    assert found == {"poc-cifar10": (128, 128), "poc-sent140": (32, 32), "poc-emnist": (64, 64)}


def test_power_of_choice_splits_all_samples_once(make):
    setting = replace(poc.EMNIST, num_clients=5)
    data, test = poc.split(setting, make("emnist"), 1, 0.3)
    assert data.sizes().sum() == 340 * 80 // 100
    assert len(test) == 51
    both = np.concatenate([data.inputs, test.inputs])
    assert len(np.unique(both, axis=0)) == len(both)
    assert [setting.learning_rate(round) for round in (1, 300, 301)] == [0.005, 0.005, 0.0025]


def test_coarse_labels_are_those_of_cifar_100():
    coarse = cifar_100.coarse_labels()
    assert np.bincount(coarse).tolist() == [5] * 20
    # The first are apple, aquarium_fish, baby, bear and beaver; the last are wolf, woman and worm.
    assert coarse[:5].tolist() == [4, 1, 14, 8, 0]
    assert coarse[-3:].tolist() == [8, 14, 13]


def test_clients_of_cifar_100_prefer_the_label_of_their_group(monkeypatch):
    labels = np.random.default_rng(0).permutation(np.arange(50_000) % 100)
    parts, groups, mixtures = cifar_100.distribute(labels, 400, 2)
    assert {len(part) for part in parts} == {100}
    assert len(np.unique(np.concatenate(parts))) == 40_000
    assert set(groups.tolist()) == set(range(mixtures.shape[0]))
    np.testing.assert_allclose(mixtures.sum(axis=1), 1)
    coarse = cifar_100.coarse_labels()[labels]
    own = [np.bincount(coarse[part], minlength=20).max() for part in parts]
    assert np.mean(own) > 50  # of 100; five if labels were uniform
    with pytest.raises(ValueError, match=r"^num_clients = 501: must be at most 500 \(100 samples each\)$"):
        cifar_100.distribute(labels, 501, 2)


@pytest.mark.slow
def test_flics_on_cifar_100(make, monkeypatch):
    monkeypatch.setattr(cifar_100, "SAMPLES", 5)
    monkeypatch.setattr(cifar_100, "PROCESSES", {"Poisson": ("poisson", 1.0)})
    monkeypatch.setattr(cifar_100, "TRIALS", {"FLICS-ADAM": ("flics", True)})
    file = make("cifar100", train=200)
    outcome = cifar_100.run(1, file, num_clients=20, largest=2, training=cifar_100.QUICK)
    check(outcome)
    assert set(outcome.cells) == {("Poisson", "FLICS-ADAM"), ("Poisson, worst group", "FLICS-ADAM")}
