"""The contract of all designs, and what each of them promises."""

import numpy as np
import pytest

from strategies.designs import DESIGNS, draw
from strategies.designs.inclusion import Inclusion, inclusion
from strategies.designs.running_sum import WHOLE, RunningSum

SCORES = np.array([0.2, 1.0, 0.0, 30.0, 2.0, 0.5, 1.0, 1.5, 3.0, 0.7, 1.2, 0.4])
K = 4
NAMES = sorted(DESIGNS)
WITH_FEATURES = sorted(name for name, design in DESIGNS.items() if design.uses_features)
FIXED = sorted(name for name, design in DESIGNS.items() if design.fixed_size)


def remembered(seed=0, n=SCORES.size):
    x = np.random.default_rng(seed).normal(size=(n, 3))
    x[1] = np.nan
    return lambda clients: x[clients]


def importance(name, scores, k, rounds, features=None, seed=1):
    rng = np.random.default_rng(seed)
    w = np.zeros((rounds, scores.size))
    for row in w:
        drawn = draw(name, scores, k, rng, features)
        row[drawn.clients] = drawn.importance
    return w


def assert_mean(values, expected):
    """Within 5 standard errors."""
    error = values.std(axis=0) / np.sqrt(len(values))
    assert (np.abs(values.mean(axis=0) - expected) <= 5 * error + 1e-9).all()


@pytest.mark.parametrize("name", NAMES)
def test_importance_has_mean_1(name):
    rounds = 600 if name in WITH_FEATURES else 2000
    assert_mean(importance(name, SCORES, K, rounds, remembered()), SCORES > 0)


@pytest.mark.parametrize("name", sorted({*FIXED, "poisson"}))
def test_clients_have_their_inclusion_probabilities(name):
    """W is 1/π wherever a client is drawn, and the client with 30 of 41.5 is always drawn."""
    w = importance(name, SCORES, K, 300, remembered())
    pi = Inclusion(SCORES, K).of(np.arange(SCORES.size))
    np.testing.assert_allclose(pi.sum(), K)
    for drawn, p in zip(w.T, pi, strict=True):
        np.testing.assert_allclose(drawn[drawn > 0], 1 / p if p else 0)
    assert (w[:, 3] == 1).all()
    if name != "poisson":
        assert (np.count_nonzero(w, axis=1) == K).all()


@pytest.mark.parametrize("features", [None, remembered()], ids=["unknown", "known"])
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"stratified"}))
def test_relabelling_changes_nothing(name, features):
    """The mean of W_i W_j of each pair, over 600 draws, is the same if the clients are in reverse order."""
    reverse = None if features is None else lambda clients: features(SCORES.size - 1 - clients)
    first = importance(name, SCORES, K, 600, features, 2)
    second = importance(name, SCORES[::-1], K, 600, reverse, 3)[:, ::-1]
    pairs = [(w[:, :, None] * w[:, None, :]).reshape(600, -1) for w in (first, second)]
    gap = pairs[0].mean(axis=0) - pairs[1].mean(axis=0)
    error = np.sqrt((pairs[0].var(axis=0) + pairs[1].var(axis=0)) / 600)
    assert (np.abs(gap) <= 5 * error + 0.1).all()


@pytest.mark.parametrize(
    ("scores", "k"),
    [
        ([1.0, 3.0], 1),
        ([1.0] * 6, 5),
        ([0.0, 1.0, 0.0, 2.0, 0.0], 3),  # fewer positive scores than k
        ([1e-300, 2e-300, 3e-300, 1e-300, 1e-300, 1e-300], 2),
        ([1e150, 1.0, 1e-300, 1e150, 2e150, 1e149], 3),
    ],
)
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e150])
@pytest.mark.parametrize("name", NAMES)
def test_edges(name, scores, k, scale):
    scores, rng = np.array(scores), np.random.default_rng(4)
    x = scale * np.random.default_rng(5).normal(size=(scores.size, 2))
    for features in (None, lambda c: x[c], lambda c: x[c] * np.nan, lambda c: np.ones((c.size, 2)) * scale):
        drawn = draw(name, scores, k, rng, features)
        assert np.unique(drawn.clients).size == drawn.clients.size
        assert (scores[drawn.clients] > 0).all()
        assert (np.isfinite(drawn.importance) & (drawn.importance > 0)).all()
        if DESIGNS[name].fixed_size:
            assert drawn.clients.size == min(k, np.count_nonzero(scores))


@pytest.mark.parametrize("n", [3, WHOLE + 1])
@pytest.mark.parametrize("score", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_scores_must_be_finite_and_not_all_0(name, score, n):
    with pytest.raises(ValueError, match=f"scores have sum {score}"):
        draw(name, np.full(n, score), 1, np.random.default_rng(0))


@pytest.mark.parametrize("name", ["independent", "stratified"])
def test_repeated_draws_of_many_clients_are_those_of_the_whole_running_sum(name):
    scores = np.random.default_rng(12).lognormal(size=3 * WHOLE + 100)
    drawn = draw(name, scores, 200, np.random.default_rng(13))
    shares = np.random.default_rng(13).random(200)
    targets = shares if name == "independent" else (np.arange(200) + shares) / 200
    expected = np.searchsorted(scores.cumsum(), targets * scores.sum(), side="right")
    assert drawn.clients.tolist() == list(dict.fromkeys(expected.tolist()))
    np.testing.assert_allclose(drawn.importance, drawn.counts * scores.sum() / (200 * scores[drawn.clients]))


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="design = 'pareto': must be one of 'independent'"):
        draw("pareto", SCORES, K, np.random.default_rng(0))


@pytest.mark.parametrize("name", WITH_FEATURES)
def test_features_lower_the_variance(name):
    """60 clients of five kinds, 10 a round: the error of the sum is below 0.6 of that of systematic draws."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(5, 3))[np.arange(60) % 5] + 0.1 * rng.normal(size=(60, 3))
    means = {
        each: np.mean(((importance(each, np.ones(60), 10, 150, lambda c: x[c]) @ x - x.sum(0)) ** 2).sum(1))
        for each in (name, "systematic")
    }
    assert means[name] < 0.6 * means["systematic"]


def test_balanced_draws_reproduce_the_sum_of_what_is_remembered():
    """100 of 400 clients, two features: only the landing phase is left, under 5 % of systematic variance."""
    x = np.random.default_rng(7).normal(size=(400, 2))
    errors = [
        np.mean((importance(name, np.ones(400), 100, 40, lambda c: x[c]) @ x - x.sum(axis=0)) ** 2)
        for name in ("balanced", "systematic")
    ]
    assert errors[0] < 0.05 * errors[1]


@pytest.mark.parametrize("name", ["ordered", "spread"])
def test_twins_are_seldom_drawn_together(name):
    """20 clients in 10 pairs of twins, π = 1/2: chance alone would draw a pair together 9.5/19 * 1/2."""
    x = np.random.default_rng(8).normal(size=(10, 2))[np.arange(20) // 2]
    w = importance(name, np.ones(20), 10, 200, lambda c: x[c])
    together = np.mean((w[:, ::2] > 0) & (w[:, 1::2] > 0))
    assert together < 0.12


@pytest.mark.parametrize("name", WITH_FEATURES)
def test_features_of_few_are_read(name):
    asked = []

    def features(clients):
        asked.append(clients.size)
        return np.random.default_rng(9).normal(size=(clients.size, 3))

    for n in (2_000, WHOLE + 1_000):
        drawn = draw(
            name, np.random.default_rng(10).lognormal(size=n), 20, np.random.default_rng(11), features
        )
        assert drawn.clients.size == 20
    assert max(asked) <= 500


# Many clients


def test_many_clients_have_the_same_inclusion_probabilities():
    rng = np.random.default_rng(12)
    scores = rng.lognormal(sigma=3, size=WHOLE + 777)
    scores[::5] = 0
    every = np.arange(scores.size)
    for k in (1, 3, 50, 2000):
        for scale in (1.0, 1e-300, 1e290):
            np.testing.assert_allclose(
                inclusion(scores * scale, k).of(every), Inclusion(scores, k).of(every), rtol=1e-11
            )
    few = np.where(every < 7, scores, 0)
    assert inclusion(few, 50).of(every).sum() == np.count_nonzero(few)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(WITH_FEATURES)))
def test_many_clients_are_drawn_with_these(name):
    """Clients of one kind share a count: 20 kinds by score, 400 draws, within 5 standard errors."""
    rng = np.random.default_rng(13)
    scores = rng.lognormal(sigma=2, size=WHOLE + 777)
    scores[5] = scores.sum()
    kinds = np.searchsorted(np.quantile(scores, np.arange(1, 20) / 20), scores)
    kinds[5] = 20
    totals = np.zeros((400, 21))
    for row in totals:
        drawn = draw(name, scores, 60, rng)
        np.add.at(row, kinds[drawn.clients], drawn.importance)
        if DESIGNS[name].fixed_size:
            assert np.unique(drawn.clients).size == 60
    expected = np.bincount(kinds)
    # In the kinds of small scores a draw is rare, and the mean of W is far from normal.
    often = np.bincount(kinds, Inclusion(scores, 60).of(np.arange(scores.size))) * 400 > 30
    assert np.count_nonzero(often) > 10
    assert_mean(totals[:, often], expected[often])


def test_a_running_sum_in_blocks_finds_what_a_whole_one_finds():
    rng = np.random.default_rng(14)
    weights = rng.lognormal(size=WHOLE + 300)
    weights[::3] = 0
    shares = np.concatenate([rng.random(500), [0.0, np.nextafter(1, 0)]])
    for limit in (np.inf, 5.0):
        kept = np.where(weights > limit, 0, weights)
        ends = kept.cumsum()
        found = RunningSum(weights).below(limit).find(shares)
        assert (found == ends.searchsorted(shares * ends[-1], side="right")).mean() > 0.99
        assert (kept[found] > 0).all()
    assert RunningSum(weights).above(5.0).tolist() == np.flatnonzero(weights > 5).tolist()
