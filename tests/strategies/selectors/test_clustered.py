"""Clustered sampling: the distributions of both algorithms by hand, and aggregates without bias."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from strategies.options import Faults
from strategies.rounds.logic import RoundLogic
from strategies.rounds.replies import Reply
from strategies.selectors import Selection, create, selector_type
from strategies.server_steps.compatibility import check_masked

from ...support.selections import feedback

ROUNDS = 1500


def told(selector, updates, clients=None, scale=1.0):
    """Let a selector learn the updates (n, d) of clients, as their sketches."""
    updates = scale * np.array(updates, dtype=float)
    clients = np.arange(len(updates)) if clients is None else np.array(clients)
    ones = np.ones(len(clients))
    selection = Selection(clients, np.ones(len(clients), dtype=int), ones, ones, ones)
    selector.update(1, selection, feedback(np.linalg.norm(updates, axis=1), sketches=updates))
    return selector


def at(*degrees):
    angles = np.radians(degrees)
    return np.column_stack([np.cos(angles), np.sin(angles)])


def frequencies(selector, **who):
    """How often each multiset of clients is drawn, as shares of the rounds."""
    tally = Counter()
    for round in range(ROUNDS):
        chosen = selector.select(round, **who)
        tally[tuple(sorted(np.repeat(chosen.clients, chosen.counts).tolist()))] += 1
        np.testing.assert_allclose(chosen.weights, chosen.counts / chosen.counts.sum(), rtol=1e-12)
    return {drawn: count / ROUNDS for drawn, count in tally.items()}


def expected(*distributions):
    """The probability of each multiset, with one client from each distribution {client: probability}."""
    shares = Counter()
    for drawn in product(*(each.items() for each in distributions)):
        shares[tuple(sorted(client for client, _ in drawn))] += np.prod([share for _, share in drawn])
    return shares


def assert_close(found, wanted):
    """Within 5 standard errors."""
    assert found.keys() <= wanted.keys()
    for drawn, share in wanted.items():
        assert abs(found.get(drawn, 0) - share) < 5 * np.sqrt(share * (1 - share) / ROUNDS) + 1e-9, drawn


def test_distributions_by_size_by_hand():
    """Sizes 1, 4, 2, 3 and K = 2: the clients 1, 3, 2, 0 are segments of .8, .6, .4, .2."""
    selector = create("clustered-sizes", 4, client_sizes=[1, 4, 2, 3], clients_per_round=2, seed=3)
    assert_close(frequencies(selector), expected({1: 0.8, 3: 0.2}, {3: 0.4, 2: 0.4, 0: 0.2}))
    # without client 1: 3, 2, 0 are segments of 1, 2/3, 1/3
    assert_close(frequencies(selector, unavailable=[1]), expected({3: 1.0}, {2: 2 / 3, 0: 1 / 3}))


def test_a_client_may_fill_distributions_of_its_own():
    """Sizes 12, 1, 1, 1 and K = 3: client 0 is a segment of 2.4."""
    wanted = expected({0: 1.0}, {0: 1.0}, {0: 0.4, 1: 0.2, 2: 0.2, 3: 0.2})
    for name in ("clustered-sizes", "clustered-updates"):
        selector = create(name, 4, client_sizes=[12, 1, 1, 1], clients_per_round=3, seed=3)
        assert_close(frequencies(selector), wanted)


def test_clients_of_equal_size_are_in_the_same_distributions_in_all_rounds():
    """K = 2 of 6: two clients of the same half are never drawn together. The halves depend on the seed."""
    halves = set()
    for seed in range(5):
        selector = create("clustered-sizes", 6, clients_per_round=2, seed=seed)
        together = {tuple(sorted(selector.select(round).clients)) for round in range(300)}
        assert len(together) == 9
        halves.add(frozenset(together))
    assert len(halves) > 1


def test_groups_of_similar_clients_by_hand():
    """Sizes 3, 2, 2, 1 and K = 2: {0, 3} and {1, 2} fill a distribution each."""
    selector = create("clustered-updates", 4, client_sizes=[3, 2, 2, 1], clients_per_round=2, seed=3)
    told(selector, at(0, 90, 95, 5) * [[1], [9], [2], [4]])
    assert_close(frequencies(selector), expected({0: 0.75, 3: 0.25}, {1: 0.5, 2: 0.5}))


def test_other_groups_fill_the_distributions_by_hand():
    """Sizes 2, 1, 1, 1 and K = 2: {0} and {1, 2} have .8, and client 3 fills .2 of each.

    Client 3 is nearer to {1, 2} than to 0, but all three would have 1.2.
    """
    selector = create("clustered-updates", 4, client_sizes=[2, 1, 1, 1], clients_per_round=2, seed=3)
    told(selector, at(0, 90, 90, 170))
    assert_close(frequencies(selector), expected({0: 0.8, 3: 0.2}, {1: 0.4, 2: 0.4, 3: 0.2}))


def test_the_distance_is_an_angle_or_euclids():
    """0 and 1 have one direction, 0 and 2 nearly the same length."""
    updates = [[1, 0], [10, 0], [0, 1], [0, 10]]
    for similarity, pairs in (("cosine", ({0, 1}, {2, 3})), ("euclidean", ({0, 2},))):
        selector = told(
            create("clustered-updates", 4, clients_per_round=2, seed=3, similarity=similarity), updates
        )
        drawn = [set(selector.select(round).clients.tolist()) for round in range(200)]
        assert not any(pair in drawn for pair in pairs)
        assert len({frozenset(each) for each in drawn}) == 4


def test_the_tree_of_the_published_code_has_the_rows_of_the_distances():
    """Client 3 has sent nothing, so its angles are 0. 0 and 1 are 20° apart, 2 is opposite.

    The nearest rows of the matrix are those of 0 and 1, so they share a distribution. By its distances, 3
    merges with any of the others first.
    """
    drawn = {}
    for tree in ("rows", "distances"):
        selector = create("clustered-updates", 4, clients_per_round=2, seed=3, tree=tree)
        told(selector, at(0, 20, 180))
        drawn[tree] = [set(selector.select(round).clients.tolist()) for round in range(200)]
    assert {0, 1} not in drawn["rows"]
    assert {0, 1} in drawn["distances"]
    assert all(each & {0, 1} for each in drawn["rows"])


def test_only_the_last_update_counts_and_a_lost_or_broken_one_does_not():
    selector = create("clustered-updates", 4, clients_per_round=2, seed=3)
    told(selector, at(0, 90, 0, 90))
    told(selector, at(0, 0, 90), [0, 1, 2])
    told(selector, [[np.nan, 1.0]], [3])
    drawn = [set(selector.select(round).clients.tolist()) for round in range(200)]
    assert {0, 1} not in drawn
    assert {2, 3} not in drawn


@pytest.mark.parametrize("known", [0, 3, 30])
@pytest.mark.parametrize("tree_size", [2, 10, 500])
def test_the_aggregate_is_unbiased_however_many_are_in_the_tree(known, tree_size):
    """The mean weights are within 5 standard errors of md, and their variance is below that of md."""
    rng = np.random.default_rng(5)
    sizes = rng.lognormal(0, 1.5, 30)
    selector = create(
        "clustered-updates", 30, client_sizes=sizes, clients_per_round=6, seed=3, tree_size=tree_size
    )
    if known:
        told(selector, rng.normal(size=(known, 4)))
    rounds = 500
    weights = np.zeros((rounds, 30))
    for round in range(rounds):
        chosen = selector.select(round)
        weights[round, chosen.clients] = chosen.weights
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-12)
    shares = sizes / sizes.sum()
    most = np.sqrt(shares * (1 - shares) / 6 / rounds)  # the standard error of md
    assert (np.abs(weights.mean(axis=0) - shares) < 5 * most).all()
    assert weights.var(axis=0).sum() < (shares * (1 - shares)).sum() / 6


def test_a_joiner_is_known_after_its_update():
    selector = told(create("clustered-updates", 2, clients_per_round=2, seed=3), at(0, 90))
    selector.add_clients([1.0, 1.0])
    told(selector, at(0, 90), [2, 3])
    drawn = [set(selector.select(round).clients.tolist()) for round in range(100)]
    assert {0, 2} not in drawn
    assert {1, 3} not in drawn


@pytest.mark.parametrize("name", ["clustered-updates", "divfl"])
def test_updates_of_a_run_reach_the_memory(name):
    """Each client has a direction of its own; a sketch is as long as the update over the learning rate."""
    logic = RoundLogic(create(name, 4, clients_per_round=2, seed=3), Faults(), local_learning_rate=0.5)
    model = {"w": np.zeros(300)}
    for round in range(1, 7):
        chosen = logic.choose(logic.open(round))
        moves = [np.eye(4, 300)[client] for client in chosen.selection.clients]
        logic.finish(chosen, model, [Reply({"w": move}) for move in moves])
    state = logic.selector.state_dict()
    assert sorted(state["sketched"]) == [0, 1, 2, 3]
    assert state["sketches"].shape == (4, 256)
    np.testing.assert_allclose(np.linalg.norm(state["sketches"], axis=1), 2, rtol=1e-6)


def test_masked_updates_cannot_be_compared():
    for name in ("clustered-updates", "divfl"):
        with pytest.raises(
            ValueError, match=f"selector = '{name}' with masked_updates = True: must not compare"
        ):
            check_masked(selector_type(name), {}, None, None, Faults())
    check_masked(selector_type("clustered-sizes"), {}, None, None, Faults())
