"""The tree of sums against cumulative sums."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.numerics.sum_tree import SumTree


def test_by_hand():
    tree = SumTree(np.array([1.0, 0.0, 2.0, 0.0]))
    assert tree.total == 3
    assert tree.find(np.array([0.0, 0.99, 1.0, 2.99])).tolist() == [0, 0, 2, 2]
    tree.assign(np.array([1, 2]), np.array([5.0, 0.0]))
    assert tree.total == 6
    assert tree.find(np.array([0.5, 1.0, 5.9])).tolist() == [0, 1, 1]
    assert tree.find(np.empty(0)).size == 0


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=700).filter(any),
    st.lists(st.floats(0, 1, exclude_max=True), max_size=20),
)
def test_finds_what_a_cumulative_sum_finds(weights, uniforms):
    weights = np.array(weights, dtype=float)
    targets = np.array(uniforms) * weights.sum()  # integers add up exactly
    found = SumTree(weights).find(targets)
    np.testing.assert_array_equal(found, np.searchsorted(np.cumsum(weights), targets, side="right"))


@pytest.mark.parametrize("size", [1, 16, 17, 256, 257, 5000])
def test_a_changed_tree_equals_a_new_one_bit_for_bit(size):
    rng = np.random.default_rng(size)
    weights = rng.lognormal(0, 5, size)
    tree = SumTree(weights)
    for _ in range(20):
        indexes = rng.choice(size, min(size, 30), replace=False)
        weights[indexes] = rng.lognormal(0, 5, indexes.size) * (rng.random(indexes.size) < 0.7)
        tree.assign(indexes, weights[indexes])
    fresh, targets = SumTree(weights), rng.random(100)
    assert tree.total == fresh.total
    np.testing.assert_array_equal(tree.find(targets * tree.total), fresh.find(targets * tree.total))


def test_weight_0_is_never_found_not_even_by_rounding():
    weights = np.zeros(40)
    weights[[3, 20]] = [0.1, 0.2]
    tree = SumTree(weights)
    beyond = np.array([0.0, 0.1, tree.total, tree.total * (1 + 1e-15)])
    assert tree.find(beyond).tolist() == [3, 20, 20, 20]


@pytest.mark.parametrize("n", [1, 15, 16, 17, 256, 300, 5000])
def test_sums_before_an_index(n):
    weights = np.random.default_rng(n).exponential(size=n)
    weights[::3] = 0
    indexes = np.unique(np.concatenate([np.arange(0, n + 1, max(1, n // 70)), [n - 1, n]]))
    before = np.concatenate([[0.0], np.cumsum(weights)])
    np.testing.assert_allclose(SumTree(weights).before(indexes), before[indexes], rtol=1e-12)
