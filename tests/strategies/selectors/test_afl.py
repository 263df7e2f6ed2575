"""AFL against its Algorithm 1: which clients are left out, how the others are drawn, and its bias."""

import numpy as np
import pytest

from strategies.selectors.power_of_choice.afl import AFLSelector

from ...support.selections import feedback


def afl(losses, sizes=None, clients_per_round=2, **settings):
    """A selector that has seen these losses (NaN: never selected)."""
    losses = np.asarray(losses, dtype=float)
    selector = AFLSelector(
        losses.size, client_sizes=sizes, clients_per_round=clients_per_round, seed=1, **settings
    )
    for client in np.flatnonzero(~np.isnan(losses)):
        selector.update(0, selector.select(0, available=[client]), feedback([1.0], losses=[losses[client]]))
    return selector


def test_probabilities_by_hand():
    """Values √size · loss = 4, 6, 2, 3: the lower half is left out; α2 = log(3)/2, so that e^(2 α2) = 3."""
    settings = {"alpha1": 0.5, "alpha2": np.log(3) / 2, "alpha3": 0.2}
    selector = afl([2.0, 2.0, 2.0, 1.0], [4.0, 9.0, 1.0, 9.0], **settings)
    expected = 0.2 / 4 + 0.8 * np.array([0.25, 0.75, 0, 0])
    np.testing.assert_allclose(selector.probabilities, expected, rtol=1e-14)
    # Client 3 grows: its value is 4 √1, then 2.5 · 2 = 5.
    selector.set_sizes([3], [25.0])
    weights = np.array([0, 1, 0, 3**-0.5])
    np.testing.assert_allclose(selector.probabilities, 0.05 + 0.8 * weights / weights.sum(), rtol=1e-14)


def test_the_lowest_are_left_out():
    selector = afl(np.arange(8.0), alpha3=0.0)
    np.testing.assert_array_equal(selector.probabilities > 0, np.arange(8) >= 6)  # 6 of 8 are out
    chosen = {tuple(sorted(selector.select(round).clients)) for round in range(30)}
    assert chosen == {(6, 7)}
    # Of four available clients three are left out, and the second is drawn uniformly.
    chosen = [set(selector.select(round, available=[0, 1, 2, 3]).clients) for round in range(60)]
    assert all(3 in clients for clients in chosen)
    assert set.union(*chosen) == {0, 1, 2, 3}


def test_values_equal_to_the_lowest_one_kept_are_kept():
    np.testing.assert_allclose(afl([5.0, 5.0, 5.0, 1.0], alpha3=0).probabilities, [1 / 3, 1 / 3, 1 / 3, 0])
    np.testing.assert_allclose(afl([5.0] * 4, alpha1=1.0).probabilities, [1 / 4] * 4)


def test_the_never_selected_come_first():
    selector = afl([9.0, np.nan, 1.0, np.nan, 2.0], alpha3=0.0)
    np.testing.assert_allclose(selector.probabilities, [0, 0.5, 0, 0.5, 0])
    for round in range(20):
        assert set(selector.select(round).clients) == {1, 3}
    selection = selector.select(1, budget=3)
    assert {1, 3} < set(selection.clients)
    selector.add_clients([1.0])
    np.testing.assert_allclose(selector.probabilities, [0, 1 / 3, 0, 1 / 3, 0, 1 / 3])


@pytest.mark.parametrize(("k", "alpha3"), [(1, 0.1), (3, 0.1), (4, 0.5), (3, 1.0), (3, 0.0)])
def test_the_uniform_part_is_right_on_average(k, alpha3):
    """Ten of forty clients are kept; the mean number of others is within 5 standard errors of its due.

    With u = α3 K uniform draws from the 40 - (K - u) not drawn yet, 30 of which were left out, the number of
    those among the K is 30 u/(40 - K + u).
    """
    selector = afl(np.arange(40.0), clients_per_round=k, alpha3=alpha3)
    found = np.array([(selector.select(round).clients < 30).sum() for round in range(800)])
    low, u = np.floor(alpha3 * k), alpha3 * k
    share = u - low
    expected = 30 * ((1 - share) * low / (40 - k + low) + share * (low + 1) / (41 - k + low))
    assert abs(found.mean() - expected) <= 5 * found.std() / np.sqrt(800)
    assert all(np.unique(selector.select(round).clients).size == k for round in range(50))


def test_draws_follow_the_softmax():
    """First of one draw: within 5 standard errors of `probabilities`, also over the available clients."""
    selector = afl([1.0, 2.0, 3.0, 4.0, 5.0], clients_per_round=1, alpha1=0.2, alpha2=0.7, alpha3=0.3)
    for who in ({}, {"unavailable": [4]}):
        seen, p = np.zeros(5), np.full(5, np.nan)
        for round in range(1000):
            selection = selector.select(round, **who)
            seen[selection.clients] += 1 / 1000
            p[selection.clients] = selection.probabilities
        assert abs(np.nansum(p) - 1) < 1e-12
        here = ~np.isnan(p)
        assert (np.abs(seen - p)[here] <= 5 * np.sqrt(p * (1 - p) / 1000)[here]).all()
        if not who:
            np.testing.assert_allclose(p, selector.probabilities, rtol=1e-14)


def test_weights_are_the_plain_mean():
    selector = afl([1.0, 2.0, 3.0], [1.0, 2.0, 5.0], clients_per_round=3)
    selection = selector.select(1)
    assert sorted(selection.clients) == [0, 1, 2]
    np.testing.assert_allclose(selection.weights, 1 / 3)
    np.testing.assert_allclose(selection.importance, 8 / 3 / selector.client_sizes[selection.clients])
    assert (selection.probabilities == 1).all()
    selection = selector.select(1, available=[0, 2])  # λ = 1/6, 5/6
    np.testing.assert_allclose(selection.importance, 3 / selector.client_sizes[selection.clients])


@pytest.mark.parametrize("losses", [[1e308, -1e308, 0.0, 1e300], [0.0] * 4, [-5.0, 0.0, 5.0, 1e-320]])
@pytest.mark.parametrize("alpha2", [0.0, 0.01, 1e3])
def test_any_loss_leaves_a_distribution(losses, alpha2):
    selector = afl(losses, [1e100, 1e-100, 1.0, 5.0], alpha2=alpha2, alpha1=0.5)
    assert abs(selector.probabilities.sum() - 1) < 1e-12
    assert (selector.probabilities > 0).all()
    assert selector.select(1).clients.size == 2


def test_unusable_losses_teach_nothing():
    selector = afl([1.0, 2.0, 3.0])
    selection = selector.select(1, available=[0, 1])
    before = selector.state_dict()["losses"]
    selector.update(1, selection, feedback([1.0, 1.0], losses=[np.nan, -np.inf]))
    selector.update(1, selection, feedback([1.0, 1.0], [False, False], losses=[7.0, 8.0]))
    np.testing.assert_array_equal(selector.state_dict()["losses"], before)


def test_a_client_that_never_reports_a_loss_is_not_selected_in_every_round():
    selector = afl([np.nan, 1.0, 1.0], clients_per_round=1, alpha3=0.0, alpha1=0.0)
    drawn = np.zeros(3, dtype=int)
    for round in range(1, 61):
        selection = selector.select(round)
        drawn[selection.clients] += 1
        losses = np.where(selection.clients == 0, np.nan, 1.0)
        selector.update(round, selection, feedback([1.0], losses=losses))
    assert drawn.min() >= 8
