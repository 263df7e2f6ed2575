"""K-Vib: the paper's probabilities and rates by hand, coins, cumulated squares."""

import numpy as np
import pytest

from strategies.selectors import Selection, create

from ...support.selections import feedback, play


def made(m=4, k=2, rounds=16, **more):
    return create("k-vib", m, clients_per_round=k, num_rounds=rounds, seed=1, **more)


def told(selector, clients, importance, norms, round=1):
    """Let a selector learn a round whose clients were selected with these importance weights."""
    ones = np.ones(len(clients))
    importance = np.array(importance, dtype=float)
    selection = Selection(
        np.array(clients), np.ones(len(clients), dtype=int), 1 / importance, importance, ones
    )
    selector.update(round, selection, feedback(norms))
    return selector


def test_the_probabilities_are_the_papers_by_hand():
    """M = 4, K = 2, T = 16: θ = (4/32)^(1/3) = 1/2, and γ = G² 4/(2/2) = 4 G²."""
    selector = made()
    np.testing.assert_allclose(selector.probabilities, 0.25, rtol=1e-15)
    # a = (1, 1/4)/16 with G² = 1/16, and p̃ = 1/2: w = (2, 1/2, 0, 0) G²
    told(selector, [0, 1], [2, 2], [1, 0.5])
    np.testing.assert_allclose(selector.state_dict()["totals"], [2, 0.5, 0, 0], rtol=1e-14)
    roots = np.sqrt([6, 4.5, 4, 4])
    mixed = 0.5 * (2 * roots / roots.sum()) + 0.5 * 2 / 4
    np.testing.assert_allclose(selector.probabilities, mixed / 2, rtol=1e-14)
    # a norm of 2 makes G² four times as large, so w is a quarter in this unit; then 4 G²/G² / 1 is added
    told(selector, [2], [1], [2])
    np.testing.assert_allclose(selector.state_dict()["totals"], [0.5, 0.125, 1, 0], rtol=1e-14)


def test_probabilities_are_capped_at_1_by_hand():
    """With γ near 0, p is in proportion to the root of w: 10 : 1 : 1 : 1, so p = (1, 1/3, 1/3, 1/3)."""
    selector = made(gamma_multiplier=1e-12, mix=0.1)
    told(selector, [0, 1, 2, 3], [1, 1, 1, 1], [10, 1, 1, 1])
    expected = 0.9 * np.array([1, 1 / 3, 1 / 3, 1 / 3]) + 0.1 * 0.5
    np.testing.assert_allclose(2 * selector.probabilities, expected, rtol=1e-9)
    chosen = [selector.select(round) for round in range(50)]
    for each in chosen:
        np.testing.assert_allclose(each.probabilities, expected[each.clients], rtol=1e-9)
        np.testing.assert_allclose(each.importance, 1 / expected[each.clients], rtol=1e-9)
        np.testing.assert_allclose(each.weights, each.importance / 4, rtol=1e-14)


def test_settings_are_those_of_the_equations():
    """γ = `gamma_multiplier` · `bound` · M/(K θ): with `bound` = 1/4, λ = 1/4 and norms of 2, a = G²."""
    selector = told(made(gamma_multiplier=0.5, bound=0.25, mix=0.25), [0], [2], [2])
    roots = np.sqrt([2 + 4, 4, 4, 4])  # γ/G² = 0.5 · 4/(2/4) = 4; w/G² = 2 · (1/4)/(1/4)
    np.testing.assert_allclose(selector.probabilities, 0.75 * roots / roots.sum() + 0.25 / 4, rtol=1e-14)
    assert told(made(bound=1.0), [0], [2], [2]).state_dict()["totals"][0] == pytest.approx(0.5)


def test_short_runs_are_uniform():
    """θ = min(1, (M/(T K))^(1/3)) is 1 if T K <= M."""
    selector = told(made(rounds=2), [0], [2], [100])
    np.testing.assert_allclose(selector.probabilities, 0.25, rtol=1e-15)


def test_each_client_has_a_coin_of_its_own():
    """Numbers and pairs of selected clients are those of independent coins, within 5 standard errors."""
    selector = told(made(m=5, k=2, gamma_multiplier=0.01, mix=0.3), [0, 1], [2.5, 2.5], [3, 1])
    p = 2 * selector.probabilities
    n = 4000
    inside = np.zeros((n, 5))
    for round in range(n):
        inside[round, selector.select(round).clients] = 1
    error = 5 * np.sqrt(p * (1 - p) / n)
    assert (np.abs(inside.mean(axis=0) - p) < error).all()
    both = inside.T @ inside / n
    pairs = p[:, None] * p
    off = ~np.eye(5, dtype=bool)
    assert (np.abs(both - pairs)[off] < 5 * np.sqrt(pairs * (1 - pairs) / n)[off]).all()
    size = inside.sum(axis=1)
    assert set(size) >= {0, 1, 2, 3, 4}
    assert size.var() == pytest.approx((p * (1 - p)).sum(), rel=0.15)


def test_absent_clients_leave_k_expected_draws_among_the_others():
    selector = made(m=6, k=2, gamma_multiplier=0.01)
    play(selector, range(1, 11))
    sizes = [selector.select(round, available=[0, 2, 3, 5]).clients.size for round in range(2000)]
    assert np.mean(sizes) == pytest.approx(2, abs=0.15)
    few = selector.select(3, available=[1, 4])
    assert sorted(few.clients) == [1, 4]
    assert few.importance.tolist() == [1, 1]


def test_a_tuned_gamma_follows_a_large_client_sooner():
    """Client 0 has ten times the norm of the others, and their expectation has a 10 : 1 ratio of p."""
    shares = []
    for multiplier in (1.0, 0.01):
        selector = made(m=20, k=4, rounds=200, gamma_multiplier=multiplier)
        for round in range(1, 101):
            chosen = selector.select(round)
            selector.update(round, chosen, feedback(np.where(chosen.clients == 0, 10.0, 1.0)))
        shares.append(selector.probabilities[0] * 20)
    assert 1 < shares[0] < shares[1]


def test_joining_clients_get_the_mean():
    selector = told(made(), [0, 1], [2, 2], [1, 0.5])
    selector.add_clients([1.0])
    assert selector.state_dict()["totals"][4] == pytest.approx(2.5 / 4)
