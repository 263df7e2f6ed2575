"""The lazy experts against the dense projection, and draws from streams against the draws from p."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.numerics.lazy_experts import AT_FLOOR, LazyExperts, Ranking, Untouched
from strategies.numerics.projection import project_floored_simplex
from strategies.numerics.rejection import (
    accepted,
    first_seen,
    independent_draws,
    successive_draws,
    uniform_stream,
)


def uniform(num_experts, num_clients, alpha, registered=None):
    registered = np.ones(num_clients, dtype=bool) if registered is None else registered
    nobody = np.empty(0, dtype=np.int64)
    alike = Untouched.alike(np.ones(num_experts))
    return LazyExperts(nobody, np.empty((num_experts, 0)), alike, registered, alpha)


def by_base(num_experts, base, alpha, registered=None):
    registered = np.ones(base.size, dtype=bool) if registered is None else registered
    nobody, slope = np.empty(0, dtype=np.int64), np.full(num_experts, 1 / base.max())
    untouched = Untouched.proportional(slope)
    return LazyExperts(nobody, np.empty((num_experts, 0)), untouched, registered, alpha, Ranking(base))


def dense_step(q, clients, exponents, floor):
    logs = np.log(q)
    logs[:, clients] += exponents
    return np.array([project_floored_simplex(row, floor) for row in logs])


def everything(lazy):
    (touched, weights, untouched), (values, others) = lazy.arrays(), lazy.values()
    return [touched, weights, *untouched, lazy.scale, values, *others, *lazy._levels]


def test_hand_computed():
    """Four clients, floor .1: client 2 is raised 2 to 1, then 4 to 1, then client 1 so that 0 and 3 sink."""
    lazy = uniform(1, 4, 0.4)
    lazy.step(np.array([2]), np.log([[2.0]]))
    np.testing.assert_allclose(lazy.mixture(np.ones(1)), [0.2, 0.2, 0.4, 0.2], rtol=1e-15)
    lazy.step(np.array([2]), np.log([[2.0]]))  # .2 .2 .8 .2 -> / 1.4
    np.testing.assert_allclose(lazy.mixture(np.ones(1)), np.array([1, 1, 4, 1]) / 7, rtol=1e-15)
    # 1/7, 16/7, 4/7, 1/7 -> 1/22, 16/22, 4/22, 1/22; the two ones to .1, the others share .8 as 16 to 4.
    lazy.step(np.array([1]), np.log([[16.0]]))
    np.testing.assert_allclose(lazy.mixture(np.ones(1)), [0.1, 0.64, 0.16, 0.1], rtol=1e-15)
    assert lazy.touched.tolist() == [2, 1]
    assert lazy.untouched.default.tolist() == [AT_FLOOR]
    # A client at the floor is raised from .1: .16 .64 .16 .1, sum 1.06, and client 3 stays at the floor.
    lazy.step(np.array([0]), np.log([[1.6]]))
    np.testing.assert_allclose(lazy.at(np.arange(4)), [np.array([0.15, 0.6, 0.15, 0.1])], rtol=1e-15)


@settings(max_examples=120, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(1, 7),
    st.sampled_from([1e-15, 1e-3, 0.4, 0.999, 1.0]),
    st.sampled_from([0.01, 1.0, 30.0, 700.0, 1e5]),
    st.sampled_from([None, 0.0, 1.0, 50.0]),
    st.integers(0, 10**6),
)
def test_equals_the_dense_projection(num_clients, num_experts, alpha, largest, spread, seed):
    """By a base, untouched clients sink in its order; ties and sizes of e^±100 included."""
    rng = np.random.default_rng(seed)
    floor = alpha / num_clients
    if spread is None:
        lazy, q = uniform(num_experts, num_clients, alpha), np.full(num_clients, 1 / num_clients)
    else:
        base = np.exp(spread * rng.normal(size=num_clients).round(1).clip(-2, 2))
        lazy, q = by_base(num_experts, base, alpha), project_floored_simplex(np.log(base), floor)
    q = np.tile(q, (num_experts, 1))
    np.testing.assert_allclose(lazy.at(np.arange(num_clients)), q, rtol=1e-9)
    for _ in range(25):
        clients = rng.permutation(num_clients)[: rng.integers(0, min(num_clients, 8) + 1)]
        exponents = rng.uniform(0, largest, (num_experts, clients.size)) * rng.integers(0, 2, clients.size)
        lazy.step(clients, exponents)
        q = dense_step(q, clients, exponents, floor)
        got = lazy.at(np.arange(num_clients))
        np.testing.assert_allclose(got, q, rtol=1e-9, atol=1e-15)
        assert got.min() >= floor
        np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-12)
        theta = rng.dirichlet(np.ones(num_experts))
        np.testing.assert_allclose(lazy.mixture(theta), theta @ got, rtol=1e-12)
        q = got  # or rounding would split a tie at the floor for good


def test_a_base_by_hand():
    """b = 1, 8, 1/4, 3 and floor .1: the third is at the floor, then the first."""
    lazy = by_base(1, np.array([1.0, 8.0, 0.25, 3.0]), 0.4)
    np.testing.assert_allclose(lazy.mixture(np.ones(1)), [0.1, 0.8 * 8 / 11, 0.1, 0.8 * 3 / 11], rtol=1e-15)
    lazy = by_base(1, np.array([3.0, 8.0, 0.25, 3.0]), 0.4)
    np.testing.assert_allclose(lazy.mixture(np.ones(1)), np.array([2.7, 7.2, 1.4, 2.7]) / 14, rtol=1e-15)
    lazy.step(np.array([1]), np.log([[2.0]]))  # 3 16 . 3 share .9
    np.testing.assert_allclose(lazy.mixture(np.ones(1)), [0.9 * 3 / 22, 0.9 * 16 / 22, 0.1, 0.9 * 3 / 22])
    lazy.step(np.array([1]), np.log([[2.0]]))  # 3 32 . 3 would leave .071: both sink
    np.testing.assert_allclose(lazy.mixture(np.ones(1)), [0.1, 0.7, 0.1, 0.1], rtol=1e-14)
    assert lazy.touched.tolist() == [1]


def test_many_steps_stay_within_range():
    """Weights grow by e^100 a round: without new units for them they would overflow after seven."""
    lazy = uniform(2, 50, 0.4)
    for round in range(100):
        lazy.step(np.array([round % 50]), np.array([[100.0], [0.5]]))
        got = lazy.at(np.arange(50))
        np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-12)
        assert got[0, round % 50] > 0.6 - 1e-12


@pytest.mark.parametrize("has_base", [False, True])
def test_a_rebuilt_tree_is_the_same_bit_for_bit(has_base):
    rng = np.random.default_rng(1)
    registered = rng.random(5000) < 0.9
    base = rng.lognormal(0, 1, 5000)
    lazy = by_base(3, base, 0.4, registered) if has_base else uniform(3, 5000, 0.4, registered)
    for round in range(120):
        clients = rng.choice(np.flatnonzero(registered), 40, replace=False)
        lazy.step(clients, rng.exponential(0.5, (3, 40)))
        if round % 10 == 0:
            again = LazyExperts(*lazy.arrays(), registered, 0.4, Ranking(base) if has_base else None)
            for one, other in zip(everything(lazy), everything(again), strict=True):
                np.testing.assert_array_equal(one, other)
            np.testing.assert_array_equal(
                lazy.stream(np.ones(3) / 3, np.random.default_rng(round))(500),
                again.stream(np.ones(3) / 3, np.random.default_rng(round))(500),
            )
    assert lazy.touched.size > 2000
    assert (lazy.arrays()[1] == AT_FLOOR).any()


@pytest.mark.parametrize("has_base", [False, True])
@pytest.mark.parametrize("share_registered", [1.0, 0.7, 0.2])
def test_draws_follow_the_mixture(share_registered, has_base):
    """100,000 draws; each frequency within 5 standard errors, over free, floored and untouched clients."""
    rng = np.random.default_rng(3)
    registered = rng.permutation(200) < 200 * share_registered
    base = rng.lognormal(0, 1, 200)
    lazy = by_base(3, base, 0.4, registered) if has_base else uniform(3, 200, 0.4, registered)
    everyone = np.flatnonzero(registered)
    for _ in range(30):
        lazy.step(everyone[rng.choice(30, 6, replace=False)], rng.exponential([[0.01], [0.3], [0.9]], (3, 6)))
    theta, n = np.array([0.5, 0.2, 0.3]), 100_000
    p = lazy.mixture(theta)
    assert (lazy.arrays()[1] == AT_FLOOR).any()
    assert lazy.num_untouched > 0
    assert abs(p.sum() - 1) < 1e-12
    found = np.bincount(lazy.stream(theta, rng)(n), minlength=200)
    assert (np.abs(found - n * p) <= 5 * np.sqrt(n * p)).all()


def test_no_client_is_registered():
    nobody = np.zeros(3, dtype=bool)
    for lazy in (uniform(2, 3, 0.4, nobody), by_base(2, np.ones(3), 0.4, nobody)):
        assert not lazy.mixture(np.array([0.5, 0.5])).any()


P = np.array([0.5, 0.3, 0.15, 0.05])


def from_p(rng, p=P):
    return lambda n: rng.choice(p.size, size=n, p=p)


def test_first_seen():
    clients, counts = first_seen(np.array([7, 3, 7, 7, 0, 3]))
    assert clients.tolist() == [7, 3, 0]
    assert counts.tolist() == [3, 2, 1]


def test_accepted_is_the_conditional_distribution():
    rng = np.random.default_rng(2)
    drawn = accepted(from_p(rng), lambda clients: clients != 0, 0.5)(100_000)
    assert drawn.size == 100_000
    expected = 100_000 * np.array([0, 0.6, 0.3, 0.1])
    assert (np.abs(np.bincount(drawn, minlength=4) - expected) <= 5 * np.sqrt(expected)).all()


def test_uniform_streams():
    rng = np.random.default_rng(2)
    assert set(uniform_stream(3, rng)(100)) == {0, 1, 2}
    assert set(uniform_stream(np.array([5, 9]), rng)(100)) == {5, 9}


def test_independent_draws_weigh_by_count():
    draw = independent_draws(lambda n: np.array([2, 0, 2, 2]), lambda clients: P[clients], 4)
    assert draw.clients.tolist() == [2, 0]
    assert draw.counts.tolist() == [3, 1]
    np.testing.assert_allclose(draw.importance, [3 / (4 * 0.15), 1 / (4 * 0.5)], rtol=1e-15)


def test_successive_draws_hand_computed():
    """0, then 2, then 1 of p: W = (1/.5 + 2)/3, (1/(.15/.5) + 1)/3, (1/(.3/.35))/3 (Algorithm 6)."""
    stream = itertools.chain([np.array([0, 0, 2, 0, 1])], itertools.repeat(np.array([3])))
    draw = successive_draws(lambda n: next(stream), lambda c: P[c], 3, P.copy, np.random.default_rng(0))
    assert draw.clients.tolist() == [0, 2, 1]
    expected = [(1 / 0.5 + 2) / 3, (0.5 / 0.15 + 1) / 3, 0.35 / 0.3 / 3]
    np.testing.assert_allclose(draw.importance, expected, rtol=1e-14)


@pytest.mark.parametrize("p", [P, np.array([0.9, 0.07, 0.02, 0.01])])
def test_successive_draws_follow_algorithm_6(p):
    """Ordered pairs and triples have p_i p_j/(1 - p_i) ...; of the second p little is left after a draw."""
    rng, n = np.random.default_rng(4), 4_000
    found, mean = dict.fromkeys(itertools.permutations(range(4), 3), 0), np.zeros(4)
    squares = np.zeros(4)
    for _ in range(n):
        draw = successive_draws(from_p(rng, p), lambda clients: p[clients], 3, p.copy, rng)
        found[tuple(draw.clients.tolist())] += 1
        mean[draw.clients] += draw.importance / n
        squares[draw.clients] += draw.importance**2 / n
    for (i, j, k), count in found.items():
        expected = n * p[i] * p[j] / (1 - p[i]) * p[k] / (1 - p[i] - p[j])
        assert abs(count - expected) <= 5 * np.sqrt(expected)
    assert (np.abs(mean - 1) < 5 * np.sqrt((squares - mean**2) / n) + 1e-12).all()
