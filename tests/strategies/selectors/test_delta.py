"""DELTA, FedIS, their practical forms and cluster-based IS: by hand."""

import numpy as np
import pytest

from strategies.selectors import settings_of_run
from strategies.selectors.delta.cluster_is import ClusterISSelector, _boundaries
from strategies.selectors.delta.delta import DeltaSelector, FedISSelector
from strategies.selectors.delta.practical import PracDeltaSelector, PracISSelector

from ...support import selections
from ...support.selections import feedback, whole_p

NO_FLOOR = 1e-9


def make(kind, num_clients, **arguments):
    return kind(num_clients, **({"clients_per_round": 2, "seed": 3} | arguments))


def ask(selector, reports, round=1, **who):
    """Select with reports of all available clients, taken from arrays (M,)."""
    candidates = selector.candidates(round, **who)
    told = {kind: np.asarray(values)[candidates] for kind, values in reports.items()}
    return selector.select(round, candidates=candidates, reports=told, **who)


def p_of(selector, reports):
    return whole_p(selector.num_clients, lambda round: ask(selector, reports, round))


def drawn(clients, m):
    """The selection of one draw each, from the uniform distribution."""
    return selections.drawn(clients, np.ones(len(clients), dtype=int), np.full(m, 1 / m))


# DELTA and FedIS with full information


def test_delta_by_hand():
    """ζ = (3, 0, 4), σ² = (16, 25, 9): scores sqrt(25/2), sqrt(25/2), sqrt(25/2); sizes (1, 2, 1)."""
    reports = {"diversity": [3.0, 0.0, 4.0], "gradient_variance": [16.0, 25.0, 9.0]}
    selector = make(DeltaSelector, 3, client_sizes=[1.0, 2.0, 1.0], floor=NO_FLOOR)
    np.testing.assert_allclose(p_of(selector, reports), [0.25, 0.5, 0.25], rtol=1e-8)
    # α1 = 1, α2 = 0: λζ as 3, 0, 4. The floor ε = .3 lets the second be drawn all the same.
    selector = make(DeltaSelector, 3, client_sizes=[1.0, 2.0, 1.0], alpha_1=1, alpha_2=0, floor=0.3)
    np.testing.assert_allclose(p_of(selector, reports), [0.4, 0.1, 0.5], rtol=1e-14)
    # Two local steps: ζ/2 = (1.5, 0, 2), so the squared scores are (18.25, 25, 13)/2.
    selector = make(DeltaSelector, 3, local_steps=2, floor=NO_FLOOR)
    scores = np.sqrt([18.25, 25, 13])
    np.testing.assert_allclose(p_of(selector, reports), scores / scores.sum(), rtol=1e-8)


def test_alphas_from_the_constants_of_corollary_3_7():
    """K = 5, L = 2, η_L = .01, η = 1, n = 4: α1 = 20 * 25 * 2 * .01 and α2 = 5 * 5 * 2 * .01 + 1/4."""
    constants = {"smoothness": 2.0, "local_learning_rate": 0.01, "global_learning_rate": 1.0}
    settings = make(DeltaSelector, 6, local_steps=5, **constants).settings
    np.testing.assert_allclose(settings.alphas(4), (10.0, 0.75), rtol=1e-14)
    assert make(DeltaSelector, 6).settings.alphas(4) == (0.5, 0.5)
    # ζ = 10 of five steps is 2 a step: sqrt(10 * 4 + .75 * 12) = 7.
    scores = settings.scores(np.array([10.0]), np.array([12.0]), 4)
    np.testing.assert_allclose(scores, [7.0], rtol=1e-14)


@pytest.mark.parametrize("name", ["delta", "prac-delta"])
def test_the_number_of_local_steps_is_that_of_the_run_unless_it_is_given(name):
    assert settings_of_run(name, {"floor": 0.2}, 5) == {"floor": 0.2, "local_steps": 5}
    assert settings_of_run(name, {"local_steps": 1}, 5) == {"local_steps": 1}
    assert settings_of_run(name, {}, 0) == {}  # clients make different numbers of steps
    assert settings_of_run("prac-is", {}, 5) == {}


def test_a_client_that_misses_a_report_has_not_answered():
    selector = make(DeltaSelector, 5)
    reports = {"diversity": [1, np.nan, 2, 3, 1.0], "gradient_variance": [1, 1, 1, np.inf, 1.0]}
    seen = {int(client) for round in range(40) for client in ask(selector, reports, round).clients}
    assert seen == {0, 2, 4}


def test_bad_reports_are_refused():
    selector = make(DeltaSelector, 3)
    fine = np.ones(3)
    for reports, text in (
        (None, "reports = None: must hold 'diversity' and 'gradient_variance' of the candidates"),
        ({"diversity": fine}, "must hold 'diversity' and 'gradient_variance'"),
        ({"diversity": fine, "gradient_variance": -fine}, r"reports\['gradient_variance'\] holds -1\.0"),
        ({"diversity": -fine, "gradient_variance": fine}, r"reports\['diversity'\] holds -1\.0"),
        ({"diversity": fine[:2], "gradient_variance": fine}, r"reports\['diversity'\] has shape \(2,\)"),
    ):
        with pytest.raises(ValueError, match=text):
            selector.select(1, candidates=[0, 1, 2], reports=reports)
    with pytest.raises(ValueError, match="candidates holds 5"):
        selector.select(1, candidates=[0, 1, 5], reports={"diversity": fine, "gradient_variance": fine})
    with pytest.raises(ValueError, match="reports = None"):
        selector.select(1, candidates=None, reports=None)


@pytest.mark.parametrize(
    ("floor", "largest", "effective"), [(0.1, (9.9, 10), (100, 200)), (1e-9, (5e5, 1e6), (0, 7))]
)
def test_the_floor_bounds_the_weights(floor, largest, effective):
    """A tenth of the scores is near 0: W = 1/(M q) is 1/ε at most, and the effective sample size stays up."""
    scores = np.ones(200)
    scores[:20] = 1e-6
    selector = make(PracISSelector, 200, clients_per_round=200, floor=floor)
    selector.update(1, selector.select(1), feedback(scores))
    weights = 1 / (200 * selector.probabilities)
    assert largest[0] < weights.max() <= largest[1]
    assert effective[0] < 200 / weights.mean() < effective[1]  # of 200 draws: E[W²] is the mean of W


# The practical forms


def test_prac_is_by_hand():
    """p = (.1, .2, .3, .4); clients 1 and 3 have .6 between them, shared out as λ||g|| = .2 * 6, .4 * 1."""
    selector = make(PracISSelector, 4, client_sizes=[1.0, 2.0, 3.0, 4.0], floor=NO_FLOOR)
    np.testing.assert_allclose(selector.probabilities, [0.1, 0.2, 0.3, 0.4], rtol=1e-7)
    selector.update(1, drawn([1, 3], 4), feedback([6.0, 1.0]))
    np.testing.assert_allclose(selector.probabilities, [0.1, 0.45, 0.3, 0.15], rtol=1e-7)
    selector.update(2, drawn([0, 1], 4), feedback([1.0, 0.0]))  # all .55 to the first
    np.testing.assert_allclose(selector.probabilities, [0.55, 0, 0.3, 0.15], rtol=0, atol=1e-8)
    selector.update(3, drawn([1, 2], 4), feedback([3.0, 1.0]))  # .3 as 2 * 3, 3 * 1: not absorbed
    np.testing.assert_allclose(selector.probabilities, [0.55, 0.2, 0.1, 0.15], rtol=1e-7)
    selector.update(4, drawn([1, 2], 4), feedback([0.0, 0.0]))  # nothing to go by
    np.testing.assert_allclose(selector.probabilities, [0.55, 0.2, 0.1, 0.15], rtol=1e-7)


def test_prac_delta_by_hand():
    """ζ = 8 and 6 of two steps, σ² = 9 and 0: scores as sqrt(16 + 9) = 5 and 3, sharing 1/2."""
    selector = make(PracDeltaSelector, 4, local_steps=2, floor=0.2)
    told = {"diversities": np.array([8.0, 6.0]), "gradient_variances": np.array([9.0, 0.0])}
    selector.update(1, drawn([0, 2], 4), feedback([1.0, 1.0], **told))
    p = np.array([5 / 16, 1 / 4, 3 / 16, 1 / 4])
    np.testing.assert_allclose(selector.probabilities, 0.8 * p + 0.05, rtol=1e-14)


def test_a_missing_variance_is_the_mean_of_those_reported():
    scores = []
    for variances in ([9.0, np.nan, 16.0, 2.0], [9.0, 12.5, 16.0, np.nan]):
        selector = make(PracDeltaSelector, 5, clients_per_round=4)
        told = {"diversities": np.array([4.0, 1.0, 3.0, np.nan]), "gradient_variances": np.array(variances)}
        responded = np.array([True, True, True, False])
        selector.update(1, drawn([0, 1, 2, 3], 5), feedback([1.0] * 4, responded=responded, **told))
        scores.append(selector.probabilities)
    np.testing.assert_array_equal(*scores)
    assert scores[0][3] == scores[0][4]  # a client that did not respond keeps its score
    # No variance is reported: diversities alone decide. The largest floats do not overflow into "unknown".
    selector = make(PracDeltaSelector, 2, floor=NO_FLOOR)
    selector.update(1, drawn([0, 1], 2), feedback([1.0, 1.0], diversities=np.array([3.0, 1.0])))
    np.testing.assert_allclose(selector.probabilities, [0.75, 0.25], rtol=1e-8)
    largest = {"diversities": np.array([1e308, 0.0]), "gradient_variances": np.array([1e308, 1.7e308])}
    selector.update(1, drawn([0, 1], 2), feedback([1.0, 1.0], **largest))
    assert selector.probabilities[0] > 0.99


@pytest.mark.parametrize("kind", [PracISSelector, PracDeltaSelector])
def test_a_distribution_to_the_last_bit_and_the_others_keep_theirs(kind):
    selector = make(kind, 40, clients_per_round=6, client_sizes=np.arange(1.0, 41.0), floor=NO_FLOOR)
    rng = np.random.default_rng(4)
    for round in range(200):
        selection = selector.select(round)
        norms = rng.lognormal(0, 2, selection.clients.size)
        before = selector.probabilities
        selector.update(round, selection, feedback(norms, diversities=norms, gradient_variances=norms))
        after = selector.probabilities
        assert abs(after.sum() - 1) < 4.5e-16
        others = np.setdiff1d(np.arange(40), selection.clients)
        np.testing.assert_allclose(after[others], before[others], rtol=1e-12)
    assert after.max() > 10 * np.median(after)


@pytest.mark.parametrize("kind", [PracISSelector, PracDeltaSelector])
def test_the_unit_of_scores_changes_nothing(kind):
    one, other = make(kind, 6), make(kind, 6)
    for round in range(20):
        selection = one.select(round)
        x = 1.0 + selection.clients
        one.update(round, selection, feedback(x, diversities=x, gradient_variances=x**2))
        other.update(round, selection, feedback(1e3 * x, diversities=1e3 * x, gradient_variances=1e6 * x**2))
        np.testing.assert_allclose(other.probabilities, one.probabilities, rtol=1e-12)
    assert one.probabilities.max() > 1.2 * one.probabilities.min()


def test_joiners_get_p_lambda_leavers_share_theirs_and_sizes_move_p():
    selector = make(PracISSelector, 3, client_sizes=[1.0, 2.0, 1.0], floor=NO_FLOOR)
    selector.update(1, drawn([0, 1], 3), feedback([4.0, 1.0]))  # .75 as 4, 2
    np.testing.assert_allclose(selector.probabilities, [0.5, 0.25, 0.25], rtol=1e-7)
    selector.add_clients([4.0])  # half of the data
    np.testing.assert_allclose(selector.probabilities, [0.25, 0.125, 0.125, 0.5], rtol=1e-7)
    selector.remove_clients([1])
    np.testing.assert_allclose(selector.probabilities, np.array([2, 0, 1, 4]) / 7, rtol=1e-7, atol=1e-300)
    selector.add_clients([6.0])  # half of the data that is left
    np.testing.assert_allclose(selector.probabilities, np.array([2, 0, 1, 4, 7]) / 14, rtol=1e-7, atol=1e-300)
    selector.remove_clients([4])
    selector.set_sizes([2], [4.0])
    np.testing.assert_allclose(selector.probabilities, np.array([2, 0, 4, 4, 0]) / 10, rtol=1e-7, atol=1e-300)
    selector.remove_clients([0, 2, 3])
    assert not selector.probabilities.any()
    selector.add_clients([1.0, 3.0])
    np.testing.assert_allclose(selector.probabilities[5:], [0.25, 0.75], rtol=1e-7)


# Clusters


def test_clusters_by_hand():
    """Norms 1, 1, 2, 9, 11 and one unseen, K = 3: clusters of 3, 2 and 1; ε = .3.

    Within the low one p is .7 (1, 1, 2)/4 + .1, within the high one .7 (9, 11)/20 + .15; their shares are
    3/6, 2/6 and 1/6.
    """
    selector = make(
        ClusterISSelector, 6, clients_per_round=3, floor=0.3, update_norms=[1.0, 9.0, -1.0, 2.0, 11.0, 1.0]
    )
    low, high = np.array([0.275, 0.275, 0.45]), np.array([0.465, 0.535])
    expected = np.array([low[0] / 2, high[0] / 3, 1 / 6, low[2] / 2, high[1] / 3, low[1] / 2])
    np.testing.assert_allclose(selector.probabilities, expected, rtol=1e-14)
    for round in range(60):  # quotas 1.5, 1 and .5
        selection = selector.select(round)
        counts = np.zeros(6)
        counts[selection.clients] = selection.counts
        in_low, in_high, unseen = counts[[0, 3, 5]].sum(), counts[[1, 4]].sum(), counts[2]
        assert (in_low, in_high, unseen) in {(2, 1, 0), (1, 1, 1)}
        np.testing.assert_allclose(selection.probabilities, expected[selection.clients], rtol=1e-14)
        within = expected * np.array([2, 3, 6, 2, 3, 2])
        draws = np.array([in_low, 1, 1, in_low, 1, in_low])
        weights = counts / (draws * within * np.array([1, 1, 0.5, 1, 1, 1]))
        np.testing.assert_allclose(selection.importance, weights[selection.clients], rtol=1e-13)


def test_clusters_learn_the_last_norms():
    selector = make(ClusterISSelector, 4)
    np.testing.assert_array_equal(selector.probabilities, [0.25] * 4)  # all unseen: uniform
    selector.update(1, drawn([0, 2], 4), feedback([8.0, 2.0]))
    selector.update(2, drawn([2, 3], 4), feedback([1.0, np.nan]))
    assert selector.state_dict()["update_norms"].tolist() == [8, -1, 1, -1]
    np.testing.assert_allclose(selector.probabilities, 0.25, rtol=1e-15)  # clusters of 1, 1 and 2


def test_the_never_seen_are_drawn_uniformly_and_the_others_by_lambda_and_norm():
    sizes = [1.0, 3.0, 1.0, 3.0]
    selector = make(
        ClusterISSelector,
        4,
        client_sizes=sizes,
        floor=0.2,
        num_clusters=1,
        update_norms=[6.0, 1.0, -1.0, -1.0],
    )
    within = 0.8 * np.array([6, 3]) / 9 + 0.1
    np.testing.assert_allclose(selector.probabilities, [*(within / 2), 0.25, 0.25], rtol=1e-14)


def test_clusters_of_the_available_clients():
    """Four of low and two of high norm; with two of the low ones away, each two get half of the draws."""
    selector = make(ClusterISSelector, 6, update_norms=[1.0, 1.0, 1.0, 1.0, 50.0, 60.0])
    for round in range(20):
        selection = selector.select(round, unavailable=[1, 2])
        assert np.isin(selection.clients, [0, 3]).sum() == 1
        assert selection.counts.sum() == 2


@pytest.mark.parametrize(
    ("values", "k", "expected"),
    [
        ([], 2, []),
        ([5.0], 2, []),
        ([1.0, 2.0, 10.0, 11.0], 1, []),
        ([11.0, 1.0, 10.0, 2.0], 2, [10.0]),
        ([1.0, 1.1, 5.0, 5.1, 5.2, 90.0], 3, [5.0, 90.0]),
        ([0.0, 0.0, 0.0], 2, []),
        ([1e150, 1e150, 1.0, 2.0], 2, [1e150]),
    ],
)
def test_k_means(values, k, expected):
    found = _boundaries(np.array(values), k)
    assert [bound for bound in found if bound > min(values)] == expected


def test_k_means_is_a_fixed_point():
    """Every value is nearest to the mean of its own cluster."""
    values = np.random.default_rng(5).lognormal(0, 1, 300)
    for k in (2, 3, 5):
        labels = np.searchsorted(_boundaries(values, k), values, side="right")
        means = np.array([values[labels == label].mean() for label in range(k)])
        np.testing.assert_array_equal(np.abs(values[:, None] - means).argmin(axis=1), labels)


# The design "systematic"


def test_systematic_holds_inclusion_probabilities():
    """Norms 1, 7, 2 and K = 2: the second is certain, the others share 1 (ε next to none)."""
    selector = make(FedISSelector, 3, design="systematic", floor=NO_FLOOR)
    for round in range(20):
        selection = ask(selector, {"update_norm": [1.0, 7.0, 2.0]}, round)
        pi = np.array([1 / 3, 1, 2 / 3])[selection.clients]
        np.testing.assert_allclose(selection.probabilities, pi, rtol=1e-7)
        np.testing.assert_allclose(selection.weights, 1 / 3 / pi, rtol=1e-7)
        assert 1 in selection.clients
