"""The OSMD family: lazy against dense, OSMD, the doubling trick; uniform and md at scale."""

import math
import tracemalloc

import numpy as np
import pytest

from strategies.selectors import Selection
from strategies.selectors.baselines.md import MultinomialSelector
from strategies.selectors.baselines.uniform import UniformSelector
from strategies.selectors.osmd.adaptive_doubling_osmd import AdaptiveDoublingOSMDSelector
from strategies.selectors.osmd.adaptive_osmd import AdaptiveOSMDSelector
from strategies.selectors.osmd.osmd import OSMDSelector

from ...support.selections import assert_same_selections, assert_same_state, feedback, play
from .test_adaptive_osmd import drawn

FAMILY = [AdaptiveOSMDSelector, OSMDSelector, AdaptiveDoublingOSMDSelector]
StreamedUniform = type("StreamedUniform", (UniformSelector,), {"lazy_from": 1})
StreamedMultinomial = type("StreamedMultinomial", (MultinomialSelector,), {"lazy_from": 1})


def both(kind, *arguments, **settings):
    """One selector in the dense form and one in the lazy form."""
    dense = type("Dense", (kind,), {"lazy_from": 10**9})(*arguments, **settings)
    return dense, type("Lazy", (kind,), {"lazy_from": 1})(*arguments, **settings)


def rescaled(selector, selection, here):
    """The same draws, weighted by another selector's p over the available clients."""
    p = selector.probabilities[selection.clients] / selector.probabilities[here].sum()
    sizes = selector.client_sizes
    importance = selection.counts / (selection.counts.sum() * p)
    weights = importance * sizes[selection.clients] / sizes[here].sum()
    return Selection(selection.clients, selection.counts, p, importance, weights)


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("initial", ["uniform", "sizes"])
@pytest.mark.parametrize(("multiplier", "seed"), [(1e4, 1), pytest.param(1.0, 1, marks=pytest.mark.slow)])
def test_lazy_equals_dense(kind, multiplier, initial, seed):
    """140 rounds of 400 to 500 clients that sleep, join and leave; 8 experts (osmd: 1)."""
    rng = np.random.default_rng(seed)
    m, k = 400, 12
    settings = {"client_sizes": rng.lognormal(0, 1, m), "clients_per_round": k, "num_rounds": 1000}
    settings |= {"seed": seed, "learning_rate_multiplier": multiplier, "initial": initial}
    dense, lazy = both(kind, m, **settings)
    np.testing.assert_allclose(lazy.probabilities, dense.probabilities, rtol=1e-9)
    scale = rng.lognormal(0, 2, 600)
    for round in range(1, 141):
        asleep = rng.permutation(dense.num_clients)[: rng.integers(0, 40)]
        here = np.setdiff1d(np.flatnonzero(dense.state_dict()["registered"]), asleep)
        selection = lazy.select(round, unavailable=asleep)
        expected = rescaled(dense, selection, here)
        np.testing.assert_allclose(selection.probabilities, expected.probabilities, rtol=1e-9)
        np.testing.assert_allclose(selection.importance, expected.importance, rtol=1e-9)
        np.testing.assert_allclose(selection.weights, expected.weights, rtol=1e-9)
        norms = scale[selection.clients] * rng.lognormal(0, 0.3, selection.clients.size)
        norms[rng.random(norms.size) < 0.1] = np.nan
        for each in (dense, lazy):
            each.update(round, selection, feedback(norms))
        if round % 20 == 0:
            joining = rng.lognormal(0, 1, rng.integers(0, 20))
            leaving = rng.choice(here, 9, replace=False)
            for each in (dense, lazy):
                each.add_clients(joining)
                each.remove_clients(leaving)
        np.testing.assert_allclose(lazy.probabilities, dense.probabilities, rtol=1e-9)
        np.testing.assert_allclose(
            np.exp(lazy.state_dict()["log_theta"]),
            np.exp(dense.state_dict()["log_theta"]),
            rtol=1e-9,
            atol=1e-15,
        )
        assert abs(lazy.probabilities.sum() - 1) < 1e-12
    num_experts = {"adaptive-osmd": 8, "osmd": 1, "adaptive-doubling-osmd": 6}[kind.name]
    assert lazy.state_dict()["experts"].shape[0] == num_experts
    if multiplier > 100:
        assert lazy.probabilities.max() > 1.5 / m


def test_joiners_may_change_the_form(monkeypatch):
    monkeypatch.setattr(AdaptiveOSMDSelector, "lazy_from", 40)
    dense, _ = both(
        AdaptiveOSMDSelector, 38, clients_per_round=4, num_rounds=50, learning_rate_multiplier=1e3
    )
    changing = AdaptiveOSMDSelector(38, clients_per_round=4, num_rounds=50, learning_rate_multiplier=1e3)
    for round in range(1, 60):
        if round == 10:
            for each in (dense, changing):
                each.remove_clients([3])
        if round in (20, 30):
            for each in (dense, changing):
                each.add_clients(np.ones(2))
        selection = changing.select(round)
        norms = feedback(1.0 + selection.clients % 7)
        for each in (dense, changing):
            each.update(round, selection, norms)
        np.testing.assert_allclose(changing.probabilities, dense.probabilities, rtol=1e-9)
        assert (changing.state_dict()["touched"].size == changing.num_clients) == (round < 20)
    resumed = AdaptiveOSMDSelector(4, clients_per_round=4, num_rounds=50, learning_rate_multiplier=1e3)
    resumed.load_state_dict(changing.state_dict())
    np.testing.assert_array_equal(resumed.probabilities, changing.probabilities)


@pytest.mark.parametrize("initial", ["uniform", "sizes"])
@pytest.mark.parametrize("kind", FAMILY)
def test_a_lazy_run_resumes_bit_for_bit(kind, initial):
    """With growth of the tree, restarts, leavers and joiners between the checkpoint and the end."""

    def make(num_clients, sizes=None):
        settings = {"clients_per_round": 30, "num_rounds": 1000, "learning_rate_multiplier": 1e3}
        return both(kind, num_clients, client_sizes=sizes, initial=initial, **settings)[1]

    one = make(3000, np.random.default_rng(4).lognormal(0, 0.5, 3000))
    play(one, range(1, 50), unavailable=range(100))
    other = make(40)
    other.load_state_dict(one.state_dict())
    for each in (one, other):
        each.remove_clients([5, 2000])
        each.add_clients(np.ones(50))
    left, right = (play(each, range(50, 150)) for each in (one, other))
    assert_same_selections(left, right)
    assert_same_state(one.state_dict(), other.state_dict())
    assert one.state_dict()["touched"].size > 1024


@pytest.mark.parametrize("kind", FAMILY)
def test_a_start_in_proportion_to_data_by_hand(kind):
    """Sizes 1, 1, 2, 16 and floor .1: λ = 1/20, 1/20, 1/10, 4/5, so 2, 16 share .8 and then 2 sinks too."""
    settings = {"clients_per_round": 2, "num_rounds": 9, "initial": "sizes"}
    for selector in both(kind, 4, client_sizes=[1, 1, 2, 16], **settings):
        np.testing.assert_allclose(selector.probabilities, [0.1, 0.1, 0.1, 0.7], rtol=1e-14)
        selector.set_sizes([0], [100.0])
        np.testing.assert_allclose(selector.probabilities, [0.1, 0.1, 0.1, 0.7], rtol=1e-14)
    for selector in both(kind, 3, client_sizes=[2, 3, 5], **settings):
        np.testing.assert_allclose(selector.probabilities, [0.2, 0.3, 0.5], rtol=1e-14)
        selector.add_clients([7.0])
        np.testing.assert_allclose(selector.probabilities, [0.15, 0.225, 0.375, 0.25], rtol=1e-14)


def test_saving_changes_nothing():
    one, other = (
        both(AdaptiveOSMDSelector, 500, clients_per_round=5, num_rounds=20, learning_rate_multiplier=1e3)[1]
        for _ in range(2)
    )
    for round in range(1, 30):
        one.state_dict()
        assert_same_selections(play(one, [round]), play(other, [round]))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"touched": np.array([1, 1])}, "holds 1 more than once"),
        ({"touched": np.array([1, 30])}, "holds 30: must be between 0 and 19"),
        ({"touched": np.array([1, 7])}, "holds a client that was removed"),
    ],
)
def test_a_bad_lazy_state_is_refused(change, text):
    selector = both(AdaptiveOSMDSelector, 20, clients_per_round=3, num_rounds=9)[1]
    selector.remove_clients([7])
    state = selector.state_dict() | change
    state["experts"] = np.ones((state["default"].size, 2))
    with pytest.raises(ValueError, match=text):
        selector.load_state_dict(state)


def test_a_dense_state_holds_all_clients():
    lazy = both(AdaptiveOSMDSelector, 20, clients_per_round=3, num_rounds=9)[1]
    dense = AdaptiveOSMDSelector(20, clients_per_round=3, num_rounds=9)
    with pytest.raises(ValueError, match=r"state\['touched'\] = \[\]: must be all clients, 0..19"):
        dense.load_state_dict(lazy.state_dict())


def test_absent_clients_with_nearly_all_the_mass():
    """Two of 100 hold .99 of it: rejection would take long, so the draw is made from the others' p."""
    settings = {"clients_per_round": 3, "num_rounds": 9, "learning_rate_multiplier": 1e9, "alpha": 0.05}
    dense, lazy = both(AdaptiveOSMDSelector, 100, **settings)
    for round in range(1, 5):
        for each in (dense, lazy):
            each.update(round, drawn([0, 1], [1, 1], dense.probabilities), feedback([1.0, 1.0]))
    assert lazy.probabilities[:2].sum() > 0.9
    for round in range(20):
        selection = lazy.select(round, unavailable=[0, 1])
        assert selection.clients.min() > 1
        expected = rescaled(dense, selection, np.arange(2, 100))
        np.testing.assert_allclose(selection.weights, expected.weights, rtol=1e-9)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("asleep", [[], [2, 30, 31]])
@pytest.mark.parametrize("kind", [AdaptiveOSMDSelector, StreamedUniform, StreamedMultinomial])
def test_unbiased_where_draws_are_a_stream(kind, asleep, replacement):
    """400 rounds of 60 clients, 5 removed; within 5 standard errors."""
    rng = np.random.default_rng(7)
    m, rounds = 60, 400
    settings = {"client_sizes": rng.lognormal(0, 1, m), "clients_per_round": 6, "replacement": replacement}
    if kind in FAMILY:
        settings |= {"num_rounds": 40, "learning_rate_multiplier": 1e3, "alpha": 0.2}
        selector = both(kind, m, **settings)[1]
    else:
        selector = kind(m, **settings)
    play(selector, range(1, 31))
    selector.remove_clients(range(40, 45))
    here = np.setdiff1d(np.arange(m), [*range(40, 45), *asleep])
    u = rng.normal(1, 1, m)
    truth = np.average(u[here], weights=selector.client_sizes[here])
    estimates = np.array(
        [
            selection.weights @ u[selection.clients]
            for selection in (selector.select(round, unavailable=asleep) for round in range(rounds))
        ]
    )
    assert abs(estimates.mean() - truth) < 5 * estimates.std() / math.sqrt(rounds)


@pytest.mark.parametrize("kind", [StreamedUniform, StreamedMultinomial])
def test_most_clients_removed(kind):
    """A fifth of 100 clients is registered: uniform draws then come from a list of these."""
    selector = kind(100, client_sizes=np.arange(1.0, 101.0), clients_per_round=4)
    selector.remove_clients(np.arange(80))
    found = np.concatenate([selector.select(round).clients for round in range(300)])
    assert set(found) == set(range(80, 100))
    selector.set_sizes([85], [1e6])  # and md follows at once
    share = np.mean([85 in selector.select(round).clients for round in range(300)])
    assert share == 1.0 if kind is StreamedMultinomial else share < 0.4


def test_one_giant_asleep():
    """λ is renormalised over the others, whose sizes vanish next to the absent one's."""
    selector = StreamedMultinomial(20, client_sizes=[1e100, *[1.0] * 19], clients_per_round=4)
    selection = selector.select(1, unavailable=[0])
    np.testing.assert_allclose(selection.weights, selection.counts / 4, rtol=1e-14)
    selector = StreamedUniform(20, client_sizes=[1e100, *[1.0] * 19], clients_per_round=4)
    np.testing.assert_allclose(
        selector.select(1, unavailable=[0]).weights,
        selector.select(1, unavailable=[0]).counts / 4,
        rtol=1e-14,
    )


# Adaptive-Doubling-OSMD


def doubling(num_clients=6, **arguments):
    return AdaptiveDoublingOSMDSelector(num_clients, **({"clients_per_round": 2} | arguments))


def test_the_reference_is_the_largest_of_the_previous_block():
    selector, seen = doubling(4), []
    norms = {1: 5.0, 2: 3.0, 3: 2.0, 4: 0.0, 5: np.nan, 6: 0.0, 7: np.inf, 8: 9.0}
    for round in range(1, 17):
        p = selector.probabilities
        selector.update(round, drawn([0, 2], [1, 1], p), feedback([norms.get(round, 1.0), 0.0]))
        seen.append(float(selector.state_dict()["reference"]))
    # Rounds 1 | 2 3 | 4 .. 7 | 8 .. 15 | 16: block 3 saw only zeros and keeps what block 2 taught.
    assert seen == [5.0, 5.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 9.0, 9.0]


def test_nothing_seen_in_the_first_blocks():
    selector = doubling(4)
    for round, norm in enumerate([0.0, 0.0, 0.0, 2.0, 6.0], start=1):
        p = selector.probabilities
        selector.update(round, drawn([0, 2], [1, 1], p), feedback([norm, 0.0]))
    state = selector.state_dict()
    assert (float(state["reference"]), float(state["largest"]), int(state["block"])) == (2.0, 6.0, 3)


def test_a_late_round_ends_a_block_too():
    selector = doubling()
    play(selector, [0])
    assert int(selector.state_dict()["block"]) == 1
    play(selector, [100])
    assert int(selector.state_dict()["block"]) == 7
    play(selector, [5])
    assert int(selector.state_dict()["block"]) == 7


def test_norms_far_above_the_reference():
    """ā = 1e-600 of what comes next: finite, and the drawn take all that the floor leaves."""
    for lazy_from in (1, 10**9):
        selector = type("Forced", (AdaptiveDoublingOSMDSelector,), {"lazy_from": lazy_from})(
            10, clients_per_round=2
        )
        for round, norm in enumerate([1e-300, 1e-300, 1e-300, 1e300], start=1):
            selector.update(round, drawn([4], [2], selector.probabilities), feedback([norm]))
        assert abs(selector.probabilities.sum() - 1) < 1e-12
        np.testing.assert_allclose(selector.probabilities[4], 1 - 9 * 0.04, rtol=1e-12)


# Scale


@pytest.mark.parametrize("kind", [*FAMILY, StreamedUniform, StreamedMultinomial])
def test_a_round_touches_nothing_of_size_m(kind):
    """Except for what is cached, a round of a million clients allocates less than one byte per client."""
    m = 1_000_000
    settings = {"learning_rate_multiplier": 1e3} if kind in FAMILY else {}
    selector = kind(m, clients_per_round=50, num_rounds=1000, **settings)
    selector.remove_clients(np.arange(0, 2000, 2))
    asleep = np.arange(1, 4000, 2)
    play(selector, [5, 6], unavailable=asleep)
    tracemalloc.start()
    play(selector, [6])
    play(selector, [6], unavailable=asleep)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < m
