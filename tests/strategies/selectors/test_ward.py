"""Ward's tree by hand and by its definition, and the cut at a weight."""

import numpy as np
import pytest

from strategies.selectors.clustered.ward import ward_groups


def groups_of(points, weights, limit):
    points = np.array(points, dtype=float)
    squares = (points[:, None] - points) ** 2
    return sorted(sorted(group.tolist()) for group in ward_groups(squares, np.array(weights, float), limit))


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0.5, [[0], [1], [2], [3]]),  # each item is heavier than the limit, or a pair is
        (1.0, [[0, 1], [2], [3]]),
        (1.5, [[0, 1], [2, 3]]),
        (2.5, [[0, 1, 2, 3]]),
    ],
)
def test_four_points_by_hand(limit, expected):
    """0 and 1 merge first, then 5 and 7, then all."""
    assert groups_of([0, 1, 5, 7], [0.5, 0.5, 0.5, 1.0], limit) == expected


def test_the_size_of_clusters_counts():
    """{0, 1, 2} and {4}: the distance of means is 3, and Ward's is 3 sqrt(2 · 3/4) > 3.2 = |4 - 7.2|."""
    points, weights = [0, 1, 2, 4, 7.2], [1.0] * 5
    assert groups_of(points, weights, 3) == [[0, 1, 2], [3, 4]]
    assert groups_of([0, 1, 2, 4, 9], weights, 4) == [[0, 1, 2, 3], [4]]


def slow_groups(squares, weights, limit):
    """Merge the two nearest clusters of points again and again, by increases of the sums of squares."""
    clusters = [[i] for i in range(len(weights))]
    inside = {(i,) for i in range(len(weights))}
    d = squares.copy()
    while len(clusters) > 1:
        pairs = [(d[a, b], a, b) for a in range(len(clusters)) for b in range(a)]
        _, a, b = min(pairs)
        n = np.array([len(each) for each in clusters])
        row = ((n[a] + n) * d[a] + (n[b] + n) * d[b] - n * d[a, b]) / (n[a] + n[b] + n)
        d[a], d[:, a] = row, row
        d = np.delete(np.delete(d, b, 0), b, 1)
        merged = sorted(clusters[a] + clusters[b])
        if sum(weights[merged]) <= limit:
            inside -= {tuple(clusters[a]), tuple(clusters[b])}
            inside.add(tuple(merged))
        clusters[a] = merged
        del clusters[b]
    return inside


@pytest.mark.parametrize("seed", range(20))
def test_chains_of_nearest_neighbours_find_the_tree_of_the_definition(seed):
    """For points, and for dissimilarities that are no distances."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 25))
    squares = rng.random((n, n)) if seed % 2 else np.zeros((n, n))
    for coordinate in () if seed % 2 else rng.normal(size=(3, n)):
        squares += (coordinate[:, None] - coordinate) ** 2
    squares = squares + squares.T
    np.fill_diagonal(squares, 0)
    weights = rng.random(n)
    weights *= rng.integers(1, n + 1) / weights.sum()
    before = squares.copy()
    found = {tuple(sorted(group.tolist())) for group in ward_groups(squares, weights, 1.0)}
    assert found == slow_groups(squares, weights, 1.0)
    np.testing.assert_array_equal(squares, before)


def test_equal_items_and_one_item():
    assert groups_of([3, 3, 3, 3], [0.25] * 4, 1.0) == [[0, 1, 2, 3]]
    assert groups_of([3], [7.0], 1.0) == [[0]]
