"""Forecast: formulas by hand, invariances, draws, and regret on made-up streams."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.experiments.forecast.streams import Stream, make_stream, regret_on_stream
from strategies.selectors import Selection, create
from strategies.selectors.baselines.md import MultinomialSelector
from strategies.selectors.baselines.uniform import UniformSelector
from strategies.selectors.forecast.forecast import ForecastSelector

from ...support.selections import feedback


def make(num_clients, **arguments):
    return ForecastSelector(num_clients, **({"clients_per_round": 2, "seed": 3} | arguments))


def drawn(clients, counts=None):
    """A selection of these clients; Cohort learns from clients and counts alone."""
    counts = np.ones(len(clients), dtype=int) if counts is None else np.array(counts)
    ones = np.ones(len(clients))
    return Selection(np.array(clients), counts, ones / 2, ones, ones)


def play(selector, norms_of, rounds, **select):
    for round in rounds:
        selection = selector.select(round, **select)
        selector.update(round, selection, feedback(norms_of(selection.clients)))


def dense(selector):
    """p from the state's arrays alone, over all clients."""
    state = selector.state_dict()
    sizes, registered, slots = state["client_sizes"], state["registered"], state["slots"]
    seen, rows = slots >= 0, slots[slots >= 0]
    x = np.clip(np.rint(np.log(sizes / state["median_size"]) / 0.02), -800, 800) * 0.02
    here = registered & seen
    s = np.zeros(sizes.size)
    s[seen] = state["means"][rows, 3]
    if not here.any():
        pi, u = np.exp(x), 1.0
    else:
        dx = x[here] - x[here].mean()
        b = (dx @ np.log(np.maximum(s[here], 1e-4)) + 4) / (dx @ dx + 4)
        residual = s[here] * np.exp(-min(max(b, -3), 3) * x[here])
        pi = residual.mean() * np.exp(min(max(b, -3), 3) * x)
        u = math.sqrt((residual**2).mean()) / residual.mean()
    score = u**1.5 * pi
    score[seen] = state["scores"][rows] * math.sqrt(1 + state["noise"])
    score, pi = np.where(registered, score, 0), np.where(registered, pi, 0)
    uniform, doubt = shares(state, pi[registered])
    on_score = 1 - uniform - doubt
    return on_score * score / score.sum() + doubt * pi / pi.sum() + uniform * registered / registered.sum()


def shares(state, pi):
    """The shares of p that are uniform, and in proportion to the prior `pi` of the registered clients."""
    draws, errors, visits = state["doubts"]
    q = errors / draws / 2
    doubt = 0.9 * q**2 / (1 + q**2) / (1 + visits / max(state["num_seen"], 1) / 16) ** 2
    evenness = pi.sum() ** 2 / (pi.size * (pi**2).sum())
    return 0.05 + 0.15 * (1 - evenness) / (1 + (visits / 5) ** 2), doubt


def test_starts_at_the_sizes_with_a_floor():
    selector = make(4, client_sizes=np.exp([0.0, 1.0, -1.0, 0.0]))
    weights = np.exp([0.0, 1.0, -1.0, 0.0])
    # The doubt only adds to what is in proportion to the sizes.
    uniform = 0.05 + 0.15 * (1 - weights.sum() ** 2 / (4 * (weights**2).sum()))
    expected = (1 - uniform) * weights / weights.sum() + uniform / 4
    np.testing.assert_allclose(selector.probabilities, expected, rtol=1e-14)


def test_the_first_round_by_hand():
    """Equal sizes, clients 0 and 1 send 1 and 3: the unit is 2, y = 1/2 and 3/2, L = 1, u² = (1/4 + 9/4)/2.

    All forecasts were 1: the weights w only forget and share, and the mean y/θ of 1 calibrates nothing.
    Nobody was known before, so ν is still 0.
    """
    selector = make(4)
    selector.update(1, drawn([0, 1]), feedback([1.0, 3.0]))
    state = selector.state_dict()
    assert (state["unit"], state["level"], state["noise"]) == (2, 0, 0)
    np.testing.assert_array_equal(state["means"][:2], [[0.5] * 4, [1.5] * 4])
    np.testing.assert_allclose(state["log_means"][:2, 0], np.log([0.5, 1.5]), rtol=1e-15)
    np.testing.assert_allclose(state["shifts"], 0, atol=1e-15)
    weights = np.array([0.7 / 8, 0.1 / 8, 0.1 / 8, 0.1 / 8] * 8) ** 0.998
    weights = (1 - 0.002) * weights / weights.sum() + 0.002 / 32
    np.testing.assert_allclose(np.exp(state["log_weights"]), weights, rtol=1e-12)
    np.testing.assert_allclose(state["dispersion"], 1 + 0.05 * ((0.5 / 1.1) ** 2 - 1), rtol=1e-14)

    kappa, w = np.array([0.02, 0.3, 3.0, 30.0]), weights[:4] * 4  # the memories agree after one visit
    u2, geometric = 1.25, math.log(0.75) / 2
    score = np.empty(4)
    for m, y in enumerate([0.5, 1.5]):
        score[m] = w @ ((kappa + y) / (kappa + 1))
        score[m] += w @ np.exp((kappa * geometric + math.log(y)) / (kappa + 1))
    score[2:] = u2**0.75
    # π is 1 for all. No seen client was drawn, so the doubt is that of the start: log(y/θ)⁴ of 2/3, half of
    # it 1/3, and one visit a seen client.
    doubt = 0.9 / 9 / (1 + 1 / 9) / (1 + 1 / 16) ** 2
    expected = (0.95 - doubt) * score / score.sum() + (doubt + 0.05) / 4
    np.testing.assert_allclose(selector.probabilities, expected, rtol=1e-12)


def test_the_noise_is_the_squared_error_of_those_known():
    """One of two draws is known: ν moves by half the rate towards its squared error, θ being 1 exactly."""
    selector = make(2)
    selector.update(1, drawn([0]), feedback([1.0]))
    before = selector.probabilities
    selector.update(2, drawn([0, 1]), feedback([3.1, 1.0]))
    state = selector.state_dict()
    np.testing.assert_allclose(state["noise"], 0.05 * 0.5 * (2.1 / 1.1) ** 2, rtol=1e-12)
    np.testing.assert_allclose(selector.probabilities, dense(selector), rtol=1e-12)
    np.testing.assert_allclose(before, 0.5, rtol=1e-12)


def test_memories_of_one_client():
    """y = 1 at the first visit sets the unit; then 2, 4, 8, at a level that stays (theirs is no evidence)."""
    selector = make(2)
    values = [1.0, 2.0, 4.0, 8.0]
    expected = np.zeros(4)
    for visit, norm in enumerate(values, start=1):
        level = float(selector.state_dict()["level"])
        selector.update(visit, drawn([0]), feedback([norm]))
        y = norm * math.exp(-float(selector.state_dict()["level"]))
        assert visit > 1 or level == 0
        expected += (y - expected) / np.minimum(visit, [1, 3, 12, np.inf])
        np.testing.assert_allclose(selector.state_dict()["means"][0], expected, rtol=1e-14)
        assert selector.state_dict()["visits"][0] == visit


def test_the_exponent_of_sizes_is_a_ridge_regression():
    """Norms in proportion to size³ at 3 clients: slopes shrink from λ ||g|| ∝ size⁴ towards 1."""
    x = np.array([-1.0, 0.0, 1.0])
    selector = make(4, client_sizes=np.exp([*x, 2.0]))
    # The median of the sizes lies between two, so x is off by a constant, and rounded to .02.
    selector.update(1, drawn([0, 1, 2]), feedback(np.exp(x)))
    state = selector.state_dict()
    classes = np.rint(np.log(state["client_sizes"] / state["median_size"]) / 0.02) * 0.02
    dx = classes[:3] - classes[:3].mean()
    b = (dx @ (2 * x) + 4) / (dx @ dx + 4)
    assert 1 < b < 2
    np.testing.assert_allclose(selector._mixed().prior.slope, b, rtol=1e-12)


def test_a_jump_of_all_clients_restarts_the_level():
    selector = make(10, clients_per_round=5)
    play(selector, lambda clients: 1.0 + clients, range(1, 101))
    before, p = float(selector.state_dict()["level"]), selector.probabilities
    selector.update(101, drawn([1, 4, 5, 7, 9]), feedback(100 * (1.0 + np.array([1, 4, 5, 7, 9]))))
    assert abs(float(selector.state_dict()["level"]) - before - math.log(100)) < 0.2
    np.testing.assert_allclose(selector.probabilities, p, rtol=0.1)


def test_one_of_five_is_no_change_of_all():
    selector = make(10, clients_per_round=5)
    play(selector, lambda clients: 1.0 + clients, range(1, 101))
    before = float(selector.state_dict()["level"])
    selector.update(101, drawn([1, 4, 5, 7, 9]), feedback([2.0, 5.0, 600.0, 8.0, 10.0]))
    assert abs(float(selector.state_dict()["level"]) - before) < 0.1


def level_after(rate, noise, rounds=150):
    rng = np.random.default_rng(1)
    selector = make(30, clients_per_round=5)
    for round in range(1, rounds + 1):
        selection = selector.select(round)
        norms = (1 + selection.clients) * rng.lognormal(0, noise, selection.clients.size)
        selector.update(round, selection, feedback(norms * math.exp(-rate * round)))
    return float(selector.state_dict()["level"])


def test_the_level_follows_a_decay_and_no_noise():
    """Heavy noise once made a bolder level run away, to -300."""
    for noise in (0.0, 2.0):
        assert abs(level_after(0.0, noise)) < 0.5, noise
    assert -15 < level_after(0.1, 0.3) < -4


@pytest.mark.parametrize("rate", [0.05, -0.05])
def test_the_slope_follows_a_steady_common_trend(rate):
    """The calibration h takes up to a third of the trend, so the slope stays below the rate."""
    selector = make(30, clients_per_round=5)
    norms = 1.0 + np.arange(30)
    for round in range(1, 301):
        selection = selector.select(round)
        selector.update(round, selection, feedback(norms[selection.clients] * math.exp(rate * round)))
    assert 0.6 < float(selector.state_dict()["slope"]) / rate < 1.1
    np.testing.assert_allclose(selector.probabilities, 0.95 * norms / norms.sum() + 0.05 / 30, rtol=0.7)


def test_norms_that_are_only_noise_leave_level_and_probabilities_in_place():
    """The slope once ran away to -.1 a round, and the level to -16."""
    rng = np.random.default_rng(1)
    selector = make(50, clients_per_round=5)
    for round in range(1, 501):
        selection = selector.select(round)
        selector.update(round, selection, feedback(rng.integers(0, 2, selection.clients.size).astype(float)))
    state = selector.state_dict()
    assert abs(float(state["slope"])) < 0.01
    assert abs(float(state["level"])) < 3
    assert (50 * selector.probabilities).max() < 4


def test_a_client_that_joins_does_not_move_the_level():
    selector = make(30, clients_per_round=5)
    for round in range(1, 101):
        selection = selector.select(round)
        selector.update(round, selection, feedback(np.full(selection.clients.size, math.exp(0.1 * round))))
    before = selector.state_dict()
    selector.add_clients([1.0], update_norms=[math.exp(10)])
    after = selector.state_dict()
    assert before["slope"] > 0.05
    assert (after["level"], after["slope"]) == (before["level"], before["slope"])


def test_the_cached_p_is_that_of_the_state():
    """Through joins, leaves and new sizes, with more clients than a round recomputes."""
    rng = np.random.default_rng(2)
    sizes = rng.lognormal(0, 1, 400)
    selector = make(400, client_sizes=sizes, clients_per_round=7)
    for round in range(1, 161):
        play(selector, lambda clients: rng.lognormal(clients % 3, 0.5), [round])
        if round == 50:
            selector.add_clients(rng.lognormal(0, 1, 30))
        if round == 80:
            selector.remove_clients(rng.choice(430, 40, replace=False))
        if round == 110:
            registered = np.flatnonzero(selector.state_dict()["registered"])
            selector.set_sizes(registered[::5], rng.lognormal(1, 1, registered[::5].size))
        np.testing.assert_allclose(selector.probabilities, dense(selector), rtol=1e-9)
    assert int(selector.state_dict()["num_seen"]) > 200


@pytest.mark.parametrize("learned", [0, 40])
def test_draws_follow_p(learned):
    """Frequencies of 200,000 draws, within 5 standard deviations; some are seen, some removed."""
    selector = make(40, client_sizes=np.geomspace(1, 50, 40), clients_per_round=3)
    play(selector, lambda clients: 1.0 + clients % 7, range(1, learned + 1))
    selector.remove_clients([0, 5, 39])
    n, p = 200_000, selector.probabilities
    draws = selector._stream(np.random.default_rng(1))(n)
    found = np.bincount(draws, minlength=40) / n
    assert (np.abs(found - p) <= 5 * np.sqrt(p * (1 - p) / n)).all()


def test_the_last_unseen_of_a_class_is_found():
    selector = make(3000, clients_per_round=3)
    others = np.delete(np.arange(3000), 1234)
    selector.update(1, drawn(others), feedback(np.ones(2999)))
    n = 200_000
    found = np.count_nonzero(selector._stream(np.random.default_rng(1))(n) == 1234)
    p = selector.probabilities[1234]
    assert abs(found / n - p) < 5 * math.sqrt(p / n)


@pytest.mark.parametrize("lazy_from", [0, 10_000])
@pytest.mark.parametrize("absent", [[], [3, 17, 38]])
def test_k_draws_are_one_from_each_kth_of_the_mass(monkeypatch, lazy_from, absent):
    """The mean of N_m is K p_m within 5 errors; where no client is absent, N_m itself is less than 2 away.

    Independent draws stand in for the absent, so that there is no such bound then.
    """
    monkeypatch.setattr(ForecastSelector, "lazy_from", lazy_from)
    selector = make(40, client_sizes=np.geomspace(1, 50, 40), clients_per_round=10, design="own")
    for round in range(1, 5):
        everybody = np.arange(40)
        selector.update(round, drawn(everybody), feedback(1.0 + everybody % 7))
    expected = 10 * selector.probabilities
    expected[absent] = 0
    expected *= 10 / expected.sum()
    counts = np.zeros((800, 40))
    for round in range(800):
        selection = selector.select(round, unavailable=absent)
        counts[round, selection.clients] = selection.counts
        np.testing.assert_allclose(selection.importance, selection.counts / expected[selection.clients])
        assert selection.counts.sum() == 10
    error = np.sqrt(expected / 800)
    assert (np.abs(counts.mean(axis=0) - expected) <= 5 * error).all()
    if not absent:
        # The uniform share of p, where a client is drawn anew, adds at most one draw.
        assert (np.abs(counts - expected) < 2 + (lazy_from == 0)).all()
    independent = expected * (1 - expected / 10)
    assert counts.var(axis=0).sum() < (0.95 if absent and not lazy_from else 0.8) * independent.sum()


def test_no_client_weighs_more_than_twenty_times_its_uniform_weight():
    """Whatever was sent: p >= .05/M, so that W <= 20 M/K a draw."""
    rng = np.random.default_rng(5)
    selector = make(30, client_sizes=rng.lognormal(0, 2, 30), clients_per_round=3)
    for round in range(1, 301):
        play(selector, lambda clients: rng.lognormal(0, 6, clients.size), [round])
        assert selector.probabilities.min() >= 0.05 / 30 * (1 - 1e-12)


def test_right_forecasts_leave_little_doubt():
    """.9/(3 + n)² after n draws of seen clients, in all rounds below .26 after the first of these draws."""
    selector, doubts, seen, n = make(20), [], set(), 0
    for round in range(1, 101):
        doubt = shares(selector.state_dict(), np.ones(20))[1]
        assert doubt <= 0.9 / (3 + n) ** 2
        if n:
            doubts.append(doubt)
        selection = selector.select(round)
        selector.update(round, selection, feedback(1.0 + selection.clients))
        n += int(selection.counts[[client in seen for client in selection.clients]].sum())
        seen |= set(selection.clients.tolist())
    assert n > 100
    assert sum(doubts) < 0.26


def test_a_jump_raises_p_of_all_that_are_forecast_low():
    """A norm is 30 times its forecast; until then all forecasts were right."""
    norms = np.geomspace(1, 100, 20)
    selector = make(20, clients_per_round=4)
    selector.update(1, drawn(range(20)), feedback(norms))
    for round in range(2, 5):
        selector.update(round, drawn([0, 5, 10, 15]), feedback(norms[[0, 5, 10, 15]]))
    calm = selector.probabilities
    selector.update(5, drawn([1, 6, 11, 16]), feedback(norms[[1, 6, 11, 16]] * [1, 1, 30, 1]))
    assert 20 * calm[2] < 0.15
    assert 20 * selector.probabilities[2] > 0.5
    # Right forecasts let the doubt fade.
    for round in range(6, 80):
        selector.update(round, drawn([1, 6, 12, 17]), feedback(norms[[1, 6, 12, 17]]))
    assert shares(selector.state_dict(), np.ones(20))[1] < 0.1


def six_jumps(seed, num_clients, num_rounds):
    """Static norms; six times, a random tenth of them is multiplied by 30 or divided by it."""
    rng = np.random.default_rng(seed)
    norms = np.tile(rng.lognormal(0, 1, num_clients), (num_rounds, 1))
    for start in rng.choice(np.arange(1, num_rounds), 6, replace=False):
        jumped = rng.choice(num_clients, num_clients // 10, replace=False)
        norms[start:, jumped] *= 30.0 if rng.random() < 0.5 else 1 / 30
    return Stream(np.ones(num_clients), norms)


def alike(seed, num_clients, num_rounds):
    noise = np.random.default_rng(seed).lognormal(0, 1.5, (num_rounds, num_clients))
    return Stream(np.ones(num_clients), noise)


@pytest.mark.parametrize(
    ("stream", "num_clients", "num_rounds", "mean", "worst"),
    [(six_jumps, 200, 60, 1.1, 1.5), (six_jumps, 100, 100, 1.1, 1.5), (alike, 100, 100, 1.03, 1.15)],
)
def test_is_hardly_worse_than_uniform_sampling(stream, num_clients, num_rounds, mean, worst):
    """K = 10, six seeds that were not used for tuning; regret divided by that of uniform sampling."""
    ratios = []
    for seed in range(201, 207):
        made = stream(seed, num_clients, num_rounds)
        ours = ForecastSelector(num_clients, clients_per_round=10, seed=seed, design="own")
        uniform = UniformSelector(num_clients, clients_per_round=10, seed=seed)
        ratios.append(regret_on_stream(ours, made, 10) / regret_on_stream(uniform, made, 10))
    assert np.mean(ratios) < mean
    assert max(ratios) < worst


def test_scores_are_recomputed_in_turn(monkeypatch):
    """1000 clients with 5 each round: 100 rows a round, so all scores are of the last 10 rounds' weights."""
    selector = make(1000, clients_per_round=5)
    selector.update(1, drawn(range(1000)), feedback(np.ones(1000)))
    assert int(selector.state_dict()["cursor"]) == 100
    monkeypatch.setattr(ForecastSelector, "_scores", lambda self, rows, *_: np.full(rows.size, 7.0))
    for round in range(2, 12):
        selector.update(round, drawn([3]), feedback([1.0]))
        done = np.count_nonzero(selector.state_dict()["scores"][:1000] == 7)
        # Client 3 is recomputed whenever it is drawn; the turn of the first hundred comes last.
        assert done == (100 * (round - 1) + 1 if round < 11 else 1000)


def test_known_norms_are_learned_before_the_first_round():
    norms = np.array([1.0, -1.0, 9.0, 0.0])
    informed, asked = make(4, update_norms=norms), make(4)
    asked.update(0, drawn([0, 2, 3]), feedback([1.0, 9.0, 0.0]))
    np.testing.assert_array_equal(informed.probabilities, asked.probabilities)
    assert informed.probabilities.argmax() == 2
    informed.add_clients([1.0, 1.0], update_norms=[20.0, -1.0])
    assert informed.probabilities.argmax() == 4
    assert int(informed.state_dict()["num_seen"]) == 4


def test_new_sizes_rescale_what_is_known():
    selector = make(6)
    play(selector, lambda clients: 1.0 + clients, range(1, 60))
    before = selector.state_dict()
    selector.set_sizes([2], [10.0])
    after = selector.state_dict()
    row = before["slots"][2]
    np.testing.assert_allclose(after["means"][row], 10 * before["means"][row], rtol=1e-14)
    np.testing.assert_allclose(after["log_means"][row], before["log_means"][row] + math.log(10), rtol=1e-12)
    assert selector.probabilities.argmax() == 2


def test_only_zeros_are_survived_and_unlearned():
    selector = make(5)
    play(selector, lambda clients: np.zeros(clients.size), range(1, 30))
    assert float(selector.state_dict()["unit"]) == 0
    play(selector, lambda clients: 1.0 + 9 * (clients == 3), range(30, 130))
    assert selector.probabilities.argmax() == 3


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda state: state.update(sums=np.zeros((7, 5))), "state.'sums'. has 7 classes: must be 1601"),
        (lambda state: state.update(evidence=np.zeros(2)), "state.'evidence'. has shape"),
        (lambda state: state.update(num_seen=np.array(99)), "state.'num_seen'. is 99"),
    ],
)
def test_a_state_of_another_form_is_refused(spoil, text):
    selector = make(4)
    state = selector.state_dict()
    spoil(state)
    with pytest.raises(ValueError, match=text):
        selector.load_state_dict(state)


def regret(kind, name, seed=101):
    """Regret over 250 rounds, M = 40, K = 5, on a seed that was not used for tuning."""
    stream = make_stream(name, seed, 40, 250)
    selector = kind(40, client_sizes=stream.sizes, clients_per_round=5, seed=seed)
    return regret_on_stream(selector, stream, 5)


@pytest.mark.parametrize(
    ("name", "share", "other"),
    [
        ("static", 0.2, UniformSelector),
        ("80 % zeros", 0.25, UniformSelector),
        ("everybody x100", 0.2, UniformSelector),
        ("noise 1", 0.9, UniformSelector),
        ("sizes anti-informative", 0.1, MultinomialSelector),
        ("sizes exact, noise 1", 1.35, MultinomialSelector),  # costs little
    ],
)
def test_has_a_small_share_of_the_others_regret(name, share, other):
    assert regret(ForecastSelector, name) < share * regret(other, name)


def test_a_query_before_the_first_round_saves_the_exploration():
    stream = make_stream("static", 101, 40, 100)

    def lost(**known):
        selector = ForecastSelector(40, client_sizes=stream.sizes, clients_per_round=5, seed=101, **known)
        return regret_on_stream(selector, stream, 5)

    assert lost(update_norms=stream.norms[0]) < 0.2 * lost()


SIZES = st.sampled_from([1e-100, 1e-60, 1e-20, 1.0, 1e20, 1e60, 1e100])
NORMS = st.sampled_from([0.0, 5e-324, 1e-100, 1.0, 1e100])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["forecast", "timed-forecast"])
@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    st.lists(SIZES, min_size=3, max_size=3),
    st.lists(st.tuples(SIZES, st.sampled_from([0, 1, 2]), NORMS), min_size=4, max_size=8),
)
def test_sizes_that_change_by_any_factor_leave_probabilities(name, sizes, changes):
    selector = create(name, 3, client_sizes=sizes, clients_per_round=2, num_rounds=9)
    for round, (size, client, norm) in enumerate(changes):
        selection = selector.select(round)
        selector.update(round, selection, feedback(np.full(selection.clients.size, norm)))
        selector.set_sizes([client], [size])
        p = selector.probabilities
        assert p.sum() == pytest.approx(1)
        assert (p > 0).all()


def test_draws_are_balanced_by_default_also_after_a_run_that_remembered_nothing():
    old, new = make(40, clients_per_round=10, design="own"), make(40, clients_per_round=10)
    assert (old.uses_sketches, new.uses_sketches) == (False, True)
    old.update(1, drawn(np.arange(40)), feedback(1.0 + np.arange(40) % 7))
    new.load_state_dict(old.state_dict())
    np.testing.assert_array_equal(new.probabilities, old.probabilities)
    selection = new.select(2)
    assert np.unique(selection.clients).size == 10  # distinct, and not one in each tenth of the mass
    assert (selection.counts == 1).all()
