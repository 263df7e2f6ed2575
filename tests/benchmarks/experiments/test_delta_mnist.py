from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from benchmarks.experiments.delta import mnist as delta_mnist
from benchmarks.experiments.delta import training
from benchmarks.experiments.delta.mnist import TABLES
from benchmarks.experiments.delta.training import BASELINE, METHODS, LargeClustersSelector, Run
from benchmarks.experiments.report import Curve
from strategies.selectors.delta.cluster_is import ClusterISSelector
from tasks import datasets
from tests.support.made_data import made

BY_NAME = {each.name: each for each in delta_mnist.EXPERIMENTS}


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    return made(tmp_path_factory.mktemp("data"), "mnist", 1200, 200)


def small(federation):
    return replace(
        federation,
        num_clients=24,
        clients_per_round=min(4, federation.clients_per_round),
        num_rounds=25,
        evaluate_every=1,
    )


def shrunk(experiment):
    """Return the experiment's run with few clients and rounds; all else as it is."""
    keywords = dict(experiment.run.keywords)
    if "federation" in keywords:
        keywords["federation"] = small(keywords["federation"])
    else:
        keywords["federations"] = {group: small(each) for group, each in keywords["federations"].items()}
    return partial(experiment.run.func, **keywords)


def one_run(mnist, method=METHODS[BASELINE], seed=0, **changes):
    federation = replace(small(TABLES), **changes)
    images = datasets.load("mnist", str(mnist))
    return training.train_all(federation, {"row": method}, seed, images)["row"]


@pytest.mark.parametrize("experiment", BY_NAME.values(), ids=lambda each: each.name)
def test_an_experiment_has_the_same_rows_for_every_seed(experiment, mnist):
    run = partial(shrunk(experiment), quick=True)
    one, other = run(3, mnist), run(4, mnist)
    assert one.cells.keys() == other.cells.keys() >= experiment.known.keys()
    assert one.cells != other.cells
    assert all(np.isfinite(figure) for (_, column), figure in one.cells.items() if "rounds to" not in column)
    for lines in one.curves.values():
        for curve in lines.values():
            assert curve.x.tolist() == [1, 2, 3, 4, 5]
            assert ((curve.y > 0) & (curve.y <= 100)).all()


@pytest.mark.parametrize("experiment", BY_NAME.values(), ids=lambda each: each.name)
def test_rounds_are_measured_to_the_last(experiment):
    keywords = experiment.run.keywords
    for each in keywords.get("federations", {"": keywords.get("federation")}).values():
        assert each.num_rounds % (5 * each.evaluate_every) == 0  # the quick form's, too
        assert 1 <= each.clients_per_round < each.num_clients


def test_the_best_accuracies_are_averaged_and_the_first_that_reaches_the_threshold_counts():
    accuracy = Curve(np.arange(2.0, 13.0, 2), np.array([10.0, 60.0, 50.0, 90.0, 70.0, 80.0]))
    run = Run(accuracy, np.zeros((12, 2)), np.arange(1.0, 13))
    assert run.best(2) == 85
    assert run.best(2, until=6) == 55
    assert run.best(10) == 60
    assert run.reached(60) == 4
    assert run.reached(60.5) == 8
    assert np.isnan(run.reached(90.5))
    assert run.seconds_to(60) == 1 + 2 + 3 + 4
    assert np.isnan(run.seconds_to(90.5))


def test_the_small_cluster_is_left_out_in_the_second_half_of_the_rounds():
    norms = np.array([0.1, 0.2, 0.1, 5.0, 6.0, 5.5, 7.0, 6.0])
    settings = {"clients_per_round": 3, "num_rounds": 8, "seed": 2, "update_norms": norms}
    plain, large = (kind(8, **settings) for kind in (ClusterISSelector, LargeClustersSelector))
    small = {"early": 0, "late": 0}
    for round in range(1, 9):
        one, other = plain.select(round), large.select(round)
        if round <= 4:
            assert np.array_equal(one.clients, other.clients)
            assert np.array_equal(one.weights, other.weights)
        else:
            assert other.counts.sum() == 3
        small["early" if round <= 4 else "late"] += int((other.clients < 3).sum())
    assert small["early"] > 0 == small["late"]
    # The mean weights are those of the mean over the large cluster; all draws have the same size here.
    mean = np.zeros(8)
    for round in range(5, 4005):
        selection = large.select(round)
        mean[selection.clients] += selection.weights / 4000
    assert mean == pytest.approx(np.where(norms > 1, 0.2, 0), abs=0.02)


def test_clients_without_a_norm_are_not_left_out():
    norms = np.array([-1.0, -1.0, 0.1, 5.0, -1.0])
    large = LargeClustersSelector(5, clients_per_round=2, num_rounds=2, update_norms=norms)
    chosen = {client for round in range(2, 60) for client in large.select(round).clients.tolist()}
    assert chosen == {0, 1, 3, 4}
    alone = LargeClustersSelector(5, clients_per_round=2, num_rounds=2, update_norms=np.ones(5))
    assert len({client for round in range(2, 60) for client in alone.select(round).clients.tolist()}) == 5
    with pytest.raises(ValueError, match=r"^num_rounds = None: must be given with large-clusters-is"):
        LargeClustersSelector(5, clients_per_round=2).select(1)
