"""TiFL: tiers of equal numbers by mean duration, the policies of the paper, clients without a duration."""

import numpy as np
import pytest

from strategies.selectors import Feedback, create

NAN = float("nan")


def told(selector, seconds, rounds=400, never=()):
    """Let a selector learn the clients' seconds; the clients in `never` do not reply."""
    for round in range(1, rounds):
        chosen = selector.select(round)
        replied = ~np.isin(chosen.clients, never)
        took = np.where(replied, np.array(seconds, dtype=float)[chosen.clients], NAN)
        unknown = np.full(took.size, NAN)
        selector.update(round, chosen, Feedback(unknown, unknown, unknown, unknown, replied, seconds=took))
    return selector


SECONDS = [5, 1, 4, 2, 3, 10, 6, 9, 7, 8]  # tiers by hand: 1 3 | 4 2 | 0 6 | 8 9 | 7 5


@pytest.mark.parametrize(
    ("policy", "shares"),
    [
        ("uniform", [0.2, 0.2, 0.2, 0.2, 0.2]),
        ("random", [0.7, 0.1, 0.1, 0.05, 0.05]),
        ("fast", [1, 0, 0, 0, 0]),
        ("slow", [0, 0, 0, 0, 1]),
    ],
)
def test_the_probabilities_are_those_of_the_policy_by_hand(policy, shares):
    selector = told(create("tifl", 10, clients_per_round=2, seed=1), SECONDS)
    selector = _with_policy(selector, policy)
    p = np.empty(10)
    for tier, share in zip([(1, 3), (4, 2), (0, 6), (8, 9), (7, 5)], shares, strict=True):
        p[list(tier)] = share / 2
    np.testing.assert_allclose(selector.probabilities, p, atol=1e-12)
    drawn = {tuple(sorted(selector.select(round).clients.tolist())) for round in range(1000, 1100)}
    assert drawn == {
        tier for tier, share in zip([(1, 3), (2, 4), (0, 6), (8, 9), (5, 7)], shares, strict=True) if share
    }


def _with_policy(selector, policy):
    other = create("tifl", 10, clients_per_round=2, seed=1, policy=policy)
    other.load_state_dict(selector.state_dict())
    return other


def test_clients_without_a_duration_are_a_tier_with_their_share():
    selector = create("tifl", 4, clients_per_round=1, seed=1)
    np.testing.assert_allclose(selector.probabilities, 0.25)
    told(selector, [1, 2, 3, 4], rounds=2)
    assert selector.probabilities == pytest.approx(0.25)


def test_a_client_without_a_reply_takes_as_long_as_the_slowest_of_its_round():
    selector = told(create("tifl", 10, clients_per_round=10, seed=1), SECONDS, rounds=3, never=[1])
    means = selector.state_dict()["total_seconds"] / selector.state_dict()["replies"]
    assert means[1] == 10
    assert means[3] == 2


@pytest.mark.parametrize("odd", [0.0, NAN, float("inf"), 1e300])
def test_odd_durations_leave_probabilities_that_sum_to_one(odd):
    selector = told(create("tifl", 10, clients_per_round=3, seed=1), [odd, *SECONDS[1:]], rounds=60)
    assert selector.probabilities.sum() == pytest.approx(1)
    assert np.isfinite(selector.state_dict()["total_seconds"]).all()


def test_a_tier_with_too_few_clients_is_filled_from_the_next():
    selector = _with_policy(told(create("tifl", 10, clients_per_round=2, seed=1), SECONDS), "fast")
    assert sorted(selector.select(500, available=[1, 5, 4, 2]).clients.tolist()) == [1, 4]
