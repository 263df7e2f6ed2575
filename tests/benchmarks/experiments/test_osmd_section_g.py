"""The test bed of section G of the OSMD paper, on made-up images."""

import math

import numpy as np
import pytest

from benchmarks.experiments.osmd.logistic_regression import _batch, section_g
from strategies.selectors import create as registry_create
from tests.support.made_data import made


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return made(tmp_path_factory.mktemp("images"), "mnist", 2000)


def arms(*names):
    def maker(name):
        return lambda sizes, norms: registry_create(
            name, sizes.size, client_sizes=sizes, clients_per_round=4, num_rounds=30, seed=1
        )

    return {name: maker(name) for name in names}


def test_section_g_learns_and_is_a_function_of_the_seed(images):
    def run(seed, *names):
        return section_g(arms(*names), seed, images, num_clients=60, clients_per_round=4, num_rounds=30)

    both = run(1, "uniform", "md")
    assert both["md"].regret < 0.5 * both["uniform"].regret
    assert all(arm.loss < math.log(10) - 0.3 and arm.accuracy > 0.5 for arm in both.values())
    alone = run(1, "md")
    assert alone["md"] == pytest.approx(both["md"], rel=1e-5)  # arms do not touch each other
    assert alone == run(1, "md") != run(2, "md")


def test_section_g_norms_are_those_of_the_gradients():
    rng = np.random.default_rng(9)
    x = rng.random((3, 4, 6), dtype=np.float32)
    y, w = rng.integers(10, size=(3, 4)), rng.normal(size=(6, 2, 10)).astype(np.float32)
    batch = _batch(x, y, w)
    for arm in range(2):
        e = np.exp(x @ w[:, arm])
        e = e / e.sum(axis=2, keepdims=True) - np.eye(10)[y]
        g = x.transpose(0, 2, 1) @ e / 4
        np.testing.assert_allclose(batch.norms[arm], np.linalg.norm(g, axis=(1, 2)), rtol=1e-5)


def test_section_g_says_what_the_file_lacks(images, tmp_path):
    with pytest.raises(ValueError, match="holds 2000 images: must be at least"):
        section_g(arms("md"), 1, images)
    np.savez(tmp_path / "other.npz", a=1)
    with pytest.raises(ValueError, match=r"must hold .'x_train', 'y_train'. too"):
        section_g(arms("md"), 1, tmp_path / "other.npz")
