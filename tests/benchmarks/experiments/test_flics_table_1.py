"""Table I and Figures 2 and 3 of the FLICS paper: the federations they are made on, and what is read off."""

import numpy as np
import pytest

from benchmarks.experiments.flics import table_1 as figures
from tasks.federated_data import FederatedData

ROWS = ("Poisson", "trace, correlated")


@pytest.fixture
def small(monkeypatch):
    """Few clients and few rows."""
    monkeypatch.setattr(figures, "CLIENTS_PER_GROUP", 30)
    monkeypatch.setattr(figures, "IMAGE_CLIENTS", 40)
    monkeypatch.setattr(figures, "ROWS", ROWS)
    monkeypatch.setattr(figures, "PAPER_ROWS", ROWS)


@pytest.fixture
def images(tmp_path):
    """A file with 400 images of noise: the digits, and letters that are not to be used."""
    rng = np.random.default_rng(0)
    file = tmp_path / "femnist.npz"
    arrays = {}
    for half, count in (("train", 400), ("test", 100)):
        arrays[f"x_{half}"] = rng.integers(256, size=(count, 28, 28)).astype(np.uint8)
        arrays[f"y_{half}"] = np.arange(count) % 12
    np.savez(file, **arrays)
    return file


def same(one, again):
    assert one.cells.keys() == again.cells.keys()
    np.testing.assert_array_equal(list(one.cells.values()), list(again.cells.values()))
    for panel, lines in one.curves.items():
        for name, curve in lines.items():
            np.testing.assert_array_equal(curve, again.curves[panel][name])


def check(run, **settings):
    """An experiment is a function of its seed, its accuracies are percents."""
    one, other = (run(seed, num_rounds=10, **settings) for seed in (3, 4))
    same(one, run(3, num_rounds=10, **settings))
    assert one.cells.keys() == other.cells.keys()
    assert list(one.cells.values()) != list(other.cells.values())
    assert {column for _, column in one.cells} == set(figures.TRIALS)
    assert {*ROWS} == one.curves.keys()
    for (row, column), value in one.cells.items():
        if row in ROWS:
            assert 0 <= one.cells[f"{row}, worst group", column] <= value <= 100
    return one


@pytest.mark.usefixtures("small")
def test_the_synthetic_federation_runs_in_all_trials():
    outcome = check(figures.run_synthetic)
    for lines in outcome.curves.values():
        for curve in lines.values():
            assert curve.x.tolist() == [5, 10]


@pytest.mark.usefixtures("small")
def test_the_distribution_over_groups_goes_from_none_to_all(images):
    outcome = check(figures.run_digits, path=images)
    for row, lines in outcome.curves.items():
        for trial, curve in lines.items():
            assert (np.diff(curve.y) >= 0).all()
            assert curve.y[-1] == 100
            # Nobody is below the worst group, and it is the first step.
            worst = outcome.cells[f"{row}, worst group", trial]
            np.testing.assert_array_equal(curve.y > 0, curve.x >= worst)


def test_the_groups_of_the_synthetic_data_differ_as_the_paper_says(monkeypatch):
    assert figures.CLIENTS_PER_GROUP == 1000
    monkeypatch.setattr(figures, "CLIENTS_PER_GROUP", 200)
    problem = figures.synthetic(0)
    data = problem.data
    assert data.num_clients == 2000
    assert (data.sizes() == 50).all()
    assert len(np.unique(data.inputs[:1000], axis=0)) == 1000
    for group, (x, test) in enumerate(zip(np.split(data.inputs, 10), problem.tests, strict=True)):
        assert (data.groups[group * 200 : (group + 1) * 200] == group).all()
        np.testing.assert_allclose(x.std(axis=0), (group + 1) ** -0.6, rtol=0.04)
        np.testing.assert_allclose(x.mean(axis=0), test.inputs.mean(axis=0), atol=0.4)
        assert len(test) == 200
    np.testing.assert_array_equal(problem.mixtures, np.eye(10))
    other = figures.synthetic(1).data
    assert not np.allclose(data.inputs[:1000].mean(axis=0), other.inputs[:1000].mean(axis=0), atol=0.5)


@pytest.mark.usefixtures("small")
def test_a_group_of_digits_holds_two_of_them(images):
    problem = figures.digits(images, 0)
    data = problem.data
    assert data.groups.tolist().count(0) == 4
    assert len(data.labels) == 400 * 10 // 12 + 1  # 34 of each of 0 to 3, 33 of the others; no letters
    for client in range(data.num_clients):
        group = data.groups[client]
        assert {*data.client(client).labels.tolist()} <= {group, (group + 1) % 10}
    for digit, test in enumerate(problem.tests):
        assert test.labels.tolist() == [digit] * (9 if digit < 4 else 8)  # all of the 100 test images
    with np.load(images) as raw:
        first = raw["x_test"][raw["y_test"] == 3][0] / 255
    np.testing.assert_allclose(problem.tests[3].inputs[0][:15], [*corners(first, 0), *corners(first, 2)[:1]])
    # The accuracy of group 9: that of its digits, 9 and 0.
    assert (np.arange(10.0) @ problem.mixtures.T).tolist() == [
        0.5,
        1.5,
        2.5,
        3.5,
        4.5,
        5.5,
        6.5,
        7.5,
        8.5,
        4.5,
    ]


def corners(image, row):
    """The means of 2 x 2 pixels, of two rows."""
    return [image[row : row + 2, column : column + 2].mean() for column in range(0, 28, 2)]


def test_a_record_is_assigned_at_random_or_by_group():
    groups = np.repeat(np.arange(10), 100)
    data = FederatedData(np.zeros((1000, 1), np.float32), np.zeros(1000, np.int64), np.arange(1001), groups)
    shares = {}
    for row in ("trace, random", "trace, correlated"):
        here = figures.availability(row, data, 300, 0)
        counts = [np.bincount(groups[here.available(number)], minlength=10) for number in range(1, 301)]
        assert min(count.sum() for count in counts[:20]) > 10  # the record begins in full swing
        shares[row] = np.mean(counts, axis=0) / 100
    # Who is here in any part of an hour is here in that round: somewhat more than the shares of the time.
    np.testing.assert_allclose(shares["trace, random"], 1.4 * figures.SHARES.mean(), rtol=0.3)
    third = shares["trace, correlated"]
    assert third[:3].max() < 0.06 < third[3:7].min() < third[3:7].max() < 0.2 < third[7:].min()


def test_the_table_is_computed_from_the_accuracies():
    """Two groups; ten looks at the accuracy at the end are averaged over."""
    steady = np.array([[10.0, 30.0], [80.0, 60.0], *[[60.0, 50.0]] * 10])
    slow = np.array([*[[20.0, 20.0]] * 11, [66.0, 67.0]])
    trials = dict.fromkeys(figures.TRIALS, slow)
    cells = figures.tabulate({"a": {**trials, "FLICS-AVG": steady}, "b": {**trials, "FLICS-AVG": 2 * steady}})
    assert cells["a", "FLICS-AVG"] == 70
    assert cells["a, worst group", "FLICS-AVG"] == 50
    assert cells["a, rounds", "FLICS-AVG"] == 10
    assert cells["a", "FedAvg"] == 66.5  # 95 % of 70
    assert cells["a, worst group", "FedAvg"] == pytest.approx((9 * 20 + 66) / 10)
    assert cells["a, rounds", "FedAvg"] == 60
    assert np.isnan(cells["b, rounds", "FedAvg"])
