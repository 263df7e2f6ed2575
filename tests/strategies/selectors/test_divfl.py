"""DivFL: the greedy search and the weights by hand, first visits, ties, and large federations."""

import numpy as np
import pytest

from strategies.selectors import create

from .test_clustered import told

POINTS = [[0, 0], [3, 0], [0, 4], [3, 10]]
"""Distances: 3, 4, sqrt(109) from 0; 5, 10 from 1; sqrt(45) between 2 and 3. Sums 17.4, 18, 15.7, 27.1.

So client 2 is first. G is then 4 + 5 + 0 + 6.71; it is 9.71 with 0 or 1, and 9 with 3. So 3 is second, and
0, 1 and 2 are nearest to 2.
"""


def made(m=4, k=2, **more):
    return create("divfl", m, clients_per_round=k, seed=1, **more)


@pytest.mark.parametrize(
    ("averaging", "weights"), [("clusters", [0.75, 0.25]), ("plain", [0.5, 0.5]), ("sizes", [1 / 3, 2 / 3])]
)
def test_the_greedy_search_and_the_weights_by_hand(averaging, weights):
    selector = told(made(averaging=averaging, client_sizes=[1, 1, 1, 2]), POINTS)
    chosen = selector.select(1)
    assert chosen.clients.tolist() == [2, 3]
    np.testing.assert_allclose(chosen.weights, weights, rtol=1e-14)
    np.testing.assert_allclose(chosen.importance, np.array(weights) / [0.2, 0.4], rtol=1e-14)
    np.testing.assert_allclose(chosen.probabilities, 0.25, rtol=1e-15)
    np.testing.assert_allclose(selector.reweighted(chosen), weights, rtol=1e-14)
    np.testing.assert_allclose(selector.finalize(chosen, [True, False]), [1, 0], rtol=1e-14)


def test_absent_clients_are_neither_selected_nor_represented():
    """Without 2: 1 is first with 3 + 10, then 3; 1 represents 0."""
    chosen = told(made(), POINTS).select(1, unavailable=[2])
    assert chosen.clients.tolist() == [1, 3]
    np.testing.assert_allclose(chosen.weights, [2 / 3, 1 / 3], rtol=1e-14)


def test_all_available_clients_have_equal_weights():
    chosen = told(made(k=4), POINTS).select(1)
    assert sorted(chosen.clients) == [0, 1, 2, 3]
    np.testing.assert_allclose(chosen.weights, 0.25, rtol=1e-14)
    np.testing.assert_allclose(chosen.probabilities, 1, rtol=1e-15)


def test_clients_without_an_update_come_first():
    selector = made(k=2)
    assert {tuple(sorted(selector.select(round).clients)) for round in range(100)} == {
        (a, b) for a in range(4) for b in range(a + 1, 4)
    }
    np.testing.assert_allclose(selector.select(1).weights, 0.5, rtol=1e-15)
    told(selector, POINTS[:3])
    for round in range(20):  # 3 represents itself, and 0 (by hand: 3 + 4, 3 + 5, 4 + 5) the others
        chosen = selector.select(round)
        assert chosen.clients.tolist() == [3, 0]
        np.testing.assert_allclose(chosen.weights, [0.25, 0.75], rtol=1e-14)


def test_the_last_update_counts():
    selector = told(made(), POINTS)
    told(selector, [[3, 10], [0, 4]], [2, 3])
    assert selector.select(1).clients.tolist() == [3, 2]


def test_chance_decides_between_equally_good_clients():
    selector = told(made(m=6, k=2), [[0, 0]] * 3 + [[1, 0]] * 3)
    drawn = {tuple(sorted(selector.select(round).clients)) for round in range(300)}
    assert drawn == {(a, b) for a in range(3) for b in range(3, 6)}
    assert selector.select(1).weights.tolist() == [0.5, 0.5]


def test_a_stochastic_search_looks_at_a_share_of_the_clients():
    drawn = {"all": set(), "half": set(), "one": set()}
    for looked, subsample in (("all", 1.0), ("half", 0.5), ("one", 0.25)):
        selector = told(made(subsample=subsample), POINTS)
        for round in range(300):
            drawn[looked].add(tuple(selector.select(round).clients.tolist()))
    assert drawn["all"] == {(2, 3)}
    assert {first for first, _ in drawn["half"]} == {0, 1, 2}  # 3 is never the better one of two
    assert len(drawn["one"]) == 12  # all pairs


def test_a_large_federation_is_searched_in_part():
    rng = np.random.default_rng(1)
    kinds = np.arange(400) % 4
    selector = made(m=400, k=4, ground_set=60)
    told(selector, 10 * np.eye(4)[kinds] + rng.normal(size=(400, 4)))
    for round in range(10):
        chosen = selector.select(round)
        assert sorted(kinds[chosen.clients]) == [0, 1, 2, 3]
        assert chosen.weights.sum() == pytest.approx(1)
    assert len({tuple(selector.select(round).clients) for round in range(10)}) > 5


def test_without_sketches_selections_are_uniform():
    selector = made(m=5, k=2)
    for round in range(20):
        selector.select(round)
    np.testing.assert_allclose(selector.probabilities, 0.2, rtol=1e-15)
