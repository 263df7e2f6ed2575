import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strategies.checkpoint import VERSION
from strategies.numerics.robust import bulk
from strategies.options import GuardSettings
from strategies.rounds.guard.claimed_sizes import believed_sizes
from strategies.rounds.guard.directions import Agreements
from strategies.rounds.guard.guard import Guard
from strategies.rounds.guard.plausible_limits import Limits

NAN, INF = math.nan, math.inf
STRICT = GuardSettings(level="strict")


def judge(guard, round, norms, losses=None, variances=None, failures=None, clients=None):
    norms = np.asarray(norms, dtype=float)
    missing = np.full(norms.size, NAN)
    return guard.judge(
        round,
        np.arange(norms.size) if clients is None else clients,
        norms,
        missing if losses is None else losses,
        missing if variances is None else variances,
        failures,
    )


def seasoned(m=40, spread=0.1, seed=0, **settings):
    """Return a guard that has judged each client three times: norms around 2, losses around 1."""
    guard, rng = Guard(m, GuardSettings(level="strict", **settings)), np.random.default_rng(seed)
    for round in range(1, 4):
        judge(guard, round, 2 * rng.lognormal(0, spread, m), rng.lognormal(0, spread, m))
    return guard


def sizes_of(claimed, overrides=None):
    return believed_sizes(claimed, overrides, STRICT)


def same(left, right):
    assert left.keys() == right.keys()
    for key, array in left.items():
        assert array.dtype == right[key].dtype
        np.testing.assert_array_equal(array, right[key])


def test_an_update_beyond_the_limit_is_clipped_to_it():
    guard = Guard(40, STRICT)
    judged = judge(guard, 1, [2.0] * 39 + [7.0])
    # The quartiles are equal, so the spread is the assumed one, which counts as 3 of 42 values (of 39 + 3
    # without the lie). Four times that is less than log 2: the limit is twice the median.
    assert judged.scales[:39].tolist() == [1.0] * 39
    assert judged.scales[39] * 7 == pytest.approx(4.0, rel=1e-12)
    assert judged.clipped == {39: "update norm 7 clipped to 4, its limit"}
    assert judged.rejected == {}


@pytest.mark.parametrize("loss", [1.0, 1000.0])
def test_an_update_a_thousand_times_the_others_is_rejected_whatever_its_loss(loss):
    guard = Guard(40, STRICT)
    judged = judge(guard, 1, [2.0] * 39 + [2000.0], [1.0] * 39 + [loss])
    assert judged.rejected == {39: "update norm 2e+03: far beyond the limit of 4"}
    assert judged.clipped == {}


def test_reported_values_are_clipped_or_ignored():
    guard = seasoned()
    losses = [1.0, 900.0, -1.0, INF, NAN, 0.0]
    variances = [1.0, 1.0, 1.0, 1.0, -INF, 1.0]
    judged = judge(guard, 4, [2.0] * 6, losses, variances)
    assert judged.losses[[0, 5]].tolist() == [1.0, 0.0]
    assert 1.5 < judged.losses[1] < 10
    assert np.isnan(judged.losses[2:5]).all()
    assert judged.gradient_variances.tolist()[:4] == [1.0] * 4
    assert np.isnan(judged.gradient_variances[4])
    assert list(judged.clipped) == [1, 2, 3, 4]
    assert judged.clipped[1].startswith("loss 900 clipped to")
    assert judged.clipped[2] == "loss -1 ignored: must be finite and >= 0 (see signed_losses)"
    assert judged.clipped[3] == "loss inf ignored: must be finite and >= 0 (see signed_losses)"
    assert judged.clipped[4] == "gradient variance -inf ignored: must be finite and >= 0"
    assert judged.scales.tolist() == [1.0] * 6


def test_losses_may_be_negative_if_the_operator_allows_it():
    guard = Guard(20, GuardSettings(level="strict", signed_losses=True))
    judged = judge(guard, 1, [1.0] * 20, [-3.0] * 19 + [1e6])
    assert judged.losses[:19].tolist() == [-3.0] * 19
    assert -3 < judged.losses[19] <= 3
    assert list(judged.clipped) == [19]


def test_a_large_loss_is_plausible_beside_a_large_update():
    """A client whose features are on another scale is far from the others without a lie."""
    guard, rng = Guard(50, STRICT), np.random.default_rng(0)
    scale = np.exp(3 * rng.normal(size=50))
    for round in range(1, 20):
        norms = scale * rng.lognormal(0, 0.1, 50)
        judged = judge(guard, round, norms, np.maximum(0.005, norms**2 / 100))
        assert judged.clipped == {}
    assert guard.quarantined(20).size == 0


def test_limits_follow_a_common_decay_and_a_new_learning_rate():
    guard, rng = Guard(60, STRICT), np.random.default_rng(1)
    for round in range(1, 300):
        level = 1000 * 0.97**round * (50 if round > 150 else 1)
        clients = rng.choice(60, 10, replace=False)
        norms = level * rng.lognormal(0, 0.2, 10)
        norms[0] *= 100 if round % 30 == 29 else 1
        judged = judge(guard, round, norms, clients=clients)
        if not 150 < round < 155:  # the limit follows the jump within three rounds
            assert judged.clipped == {}
            assert list(judged.rejected) == ([0] if round % 30 == 29 else [])
    assert not guard.state_dict()["pauses"].any()


@pytest.mark.parametrize("m", [20, 100, 500])
def test_claimed_sizes_are_clipped_where_clients_are_alike_but_not_where_they_are_skewed(m):
    alike = np.full(m, 600.0)
    alike[::10] *= 1000
    # An absurd claim counts as none, a large one as the limit.
    np.testing.assert_array_equal(sizes_of(alike), np.full(m, 600.0))
    alike[::10] = 1500
    assert 1190 < sizes_of(alike).max() <= 600 * 2.2
    assert sizes_of(alike)[1] == 600
    skewed = np.repeat([1.0, 5.0, 30.0, 100.0], (np.array([0.65, 0.2, 0.1, 0.05]) * m).astype(int))
    np.testing.assert_array_equal(sizes_of(skewed), skewed)
    # The price: a client of size 1 that claims 200 is believed ...
    skewed[0] = 200
    assert sizes_of(skewed)[0] == 200
    # ... unless the operator declares its size.
    overrides = np.full(skewed.size, NAN)
    overrides[0] = 1
    assert sizes_of(skewed, overrides)[0] == 1


def test_unknown_sizes_are_the_mean_of_the_known_ones():
    for guard in (GuardSettings(), GuardSettings(level="strict"), None):
        sizes = believed_sizes([10.0, NAN, 30.0, -4.0, INF], [NAN, NAN, 20.0, NAN, NAN], guard)
        assert sizes.tolist() == [10, 15, 20, 15, 15]
        assert believed_sizes([NAN] * 5, guard=guard).tolist() == [1.0] * 5
    with pytest.raises(ValueError, match=r"overrides holds 0\.0"):
        believed_sizes([1.0] * 5, [0.0] * 5)
    with pytest.raises(ValueError, match=r"overrides has shape \(4,\)"):
        believed_sizes([1.0] * 5, [1.0] * 4)


def test_quarantines_grow_with_offences_and_shrink_with_good_replies():
    guard = Guard(4, GuardSettings(level="strict", quarantine=10, longest_quarantine=35))
    bad = {0: "array 'w' holds NaN"}

    def answer(round, failures=None):
        return judge(guard, round, [NAN if failures else 1.0, 1, 1, 1], failures=failures)

    assert answer(1, bad).rejected == bad
    answer(2)
    answer(3, bad)
    assert guard.quarantined(4).size == 0  # two of three
    answer(4, bad)
    assert guard.quarantined(5).tolist() == [0]
    assert guard.quarantined(14).tolist() == [0]
    assert guard.quarantined(15).size == 0
    answer(15, bad)  # tried again: one offence is enough, for twice as long
    assert guard.quarantined(35).tolist() == [0]
    assert guard.quarantined(36).size == 0
    answer(36, bad)
    assert guard.quarantined(71).tolist() == [0]  # at most 35
    assert guard.quarantined(72).size == 0
    for round in range(72, 79):
        answer(round)
    for round in range(79, 82):
        answer(round, bad)
    assert guard.quarantined(91).tolist() == [0]  # forgiven: 10 rounds again
    assert guard.quarantined(92).size == 0
    assert not guard.state_dict()["quarantined_until"][1:].any()


def test_silence_is_no_offence():
    guard = Guard(4, STRICT)
    for round in range(1, 50):
        judged = judge(guard, round, [NAN, 1, 1, 1])
        assert not judged.rejected
        assert not judged.clipped
        assert judged.scales[0] == 1
    assert guard.quarantined(50).size == 0


def test_repeated_liars_are_quarantined():
    for column, lie in (("norms", 20.0), ("losses", 1000.0)):
        guard = seasoned()
        for round in range(4, 8):
            said = {"norms": np.full(40, 2.0), "losses": np.ones(40)}
            said[column][7] *= lie
            judge(guard, round, **said)
        assert guard.quarantined(8).tolist() == [7]


def test_a_slightly_clipped_value_is_no_offence():
    guard = seasoned()
    for round in range(4, 40):
        judged = judge(guard, round, [2.0] * 39 + [7.0])
    assert list(judged.clipped) == [39]
    assert guard.quarantined(40).size == 0


def test_polls_are_judged_with_the_last_update_norms():
    guard = seasoned()
    reports = {"loss": np.ones(40), "group": np.arange(40.0)}
    reports["loss"][[3, 5, 6]] = [1e4, -1.0, NAN]
    said, clipped = guard.judge_reports(4, np.arange(40), reports)
    assert list(clipped) == [3, 5]
    assert clipped[5] == ("polled loss -1 ignored: must be finite and >= 0 (see signed_losses)")
    assert 1 < said["loss"][3] < 10
    assert np.isnan(said["loss"][[5, 6]]).all()
    np.testing.assert_array_equal(said["group"], reports["group"])
    assert reports["loss"][3] == 1e4
    for round in (5, 6):
        guard.judge_reports(round, np.arange(40), reports)
    assert guard.quarantined(7).tolist() == [3, 5]
    # Without a known update norm a large loss is clipped, but is no offence.
    fresh = Guard(40, STRICT)
    for round in range(1, 9):
        said, _ = fresh.judge_reports(round, np.arange(40), {"loss": reports["loss"]})
    assert said["loss"][3] < 10
    assert fresh.quarantined(9).tolist() == [5]


def towards(rng, m, aim, width=256, strength=1.0):
    """Return sketches (m, width) of updates that share a direction, with noise of their own."""
    return rng.normal(size=(m, width)) + strength * aim


def judge_directions(guard, round, sketches, clients=None):
    norms = np.linalg.norm(sketches, axis=1)
    missing = np.full(norms.size, NAN)
    clients = np.arange(norms.size) if clients is None else clients
    return guard.judge(round, clients, norms, missing, missing, None, sketches)


@pytest.mark.parametrize("factor", [1.0, 2.0, 3.0])
def test_updates_against_those_of_the_others_are_rejected_and_their_clients_quarantined(factor):
    guard, rng = Guard(20, STRICT), np.random.default_rng(0)
    aim, liars = rng.normal(size=256), [3, 9, 16]
    for round in range(1, 40):
        clients = np.setdiff1d(rng.choice(20, 6, replace=False), guard.quarantined(round))
        sketches = towards(rng, clients.size, aim)
        lying = np.isin(clients, liars)
        sketches[lying] *= -factor
        judged = judge_directions(guard, round, sketches, clients)
        assert judged.rejected.keys() <= set(np.flatnonzero(lying))
        assert all("points against the other clients" in line for line in judged.rejected.values())
        if round > 5:  # most clients have sent an update
            assert list(judged.rejected) == np.flatnonzero(lying).tolist()
    assert np.isin(liars, np.flatnonzero(guard.state_dict()["quarantined_until"])).all()
    assert not guard.state_dict()["quarantined_until"][np.setdiff1d(np.arange(20), liars)].any()


@pytest.mark.parametrize(("width", "groups"), [(256, 10), (256, 2), (10, 10)])
def test_honest_clients_with_data_of_their_own_may_point_elsewhere(width, groups):
    """Each group has its own aim; with two groups of one aim each, half of the clients oppose the others."""
    guard, rng = Guard(40, STRICT), np.random.default_rng(1)
    aims = rng.normal(size=(groups, width))
    if groups == 2:
        aims[1] = -aims[0]
    rejected = drawn = 0
    for round in range(1, 60):
        clients = rng.choice(40, 5, replace=False)
        judged = judge_directions(guard, round, towards(rng, 5, aims[clients % groups], width), clients)
        rejected += len(judged.rejected)
        drawn += 5
    assert rejected <= 0.005 * drawn
    assert not guard.state_dict()["quarantined_until"].any()


def test_a_third_of_the_clients_may_oppose_the_others():
    guard, rng = Guard(40, STRICT), np.random.default_rng(0)
    aim, minority = rng.normal(size=256), np.arange(40) < 14
    rejected = 0
    for round in range(1, 60):
        clients = rng.choice(40, 5, replace=False)
        sketches = towards(rng, 5, aim) - 2 * aim * minority[clients, None]
        rejected += len(judge_directions(guard, round, sketches, clients).rejected)
    assert rejected <= 0.05 * 5 * 60
    assert not guard.state_dict()["quarantined_until"].any()


def test_liars_that_are_known_first_do_not_hide_behind_the_spread_that_they_cause():
    """Agreements such as those under `pow-d`: three of the first eleven clients known lie."""
    honest = np.array([-0.21, -0.15, -0.01, 0.01, 0.29, 0.47, 0.54, 0.55])
    lying = np.array([-0.75, -0.77, -0.72])
    no = np.zeros(3, dtype=bool)
    least = Limits(STRICT).agreement(Agreements(lying, honest, no, np.ones(3)), no, 256)
    assert (lying < least).all()
    assert (honest.min() > least).all()


def test_in_buffered_rounds_an_agreement_over_several_replies_is_judged_more_strictly():
    """Agreements such as those of a run in which liars reply at once: -4/sqrt(256) is -0.25."""
    honest = np.array([0.3, 0.36, 0.42, 0.44, 0.5, 0.52, 0.54, 0.56, 0.58, 0.6, 0.61, 0.66, 0.7, 0.76])
    lying, no, once = np.array([-0.2, -0.2]), np.zeros(2, dtype=bool), np.array([True, False])
    least = Limits(STRICT).agreement(Agreements(lying, honest, once, np.array([1, 0.5])), no, 256)
    assert (lying < least).tolist() == [False, True]
    assert least[1] == pytest.approx(-0.125)


def test_a_client_that_has_offended_is_judged_more_strictly():
    """Clients 0 and 1 send updates of one direction; only 0 is rejected, after two replies of garbage."""
    guard, rng = Guard(20, STRICT), np.random.default_rng(4)
    aim, strengths = rng.normal(size=256), np.linspace(-0.2, 1.0, 20)
    strengths[:2] = -0.37
    rejected = []
    for round in range(1, 14):
        sketches = rng.normal(size=(20, 256)) + strengths[:, None] * aim
        garbage = {0: "garbage"} if round in (9, 10) else {}
        missing, norms = np.full(20, NAN), np.ones(20)
        judged = guard.judge(round, np.arange(20), norms, missing, missing, garbage, sketches)
        rejected.append(sorted(judged.rejected))
    assert rejected == [[]] * 8 + [[0]] * 5


def test_a_client_rests_until_its_draws_are_within_twice_its_share():
    guard, drawn = Guard(10, STRICT), 0
    for round in range(1, 41):
        resting = guard.resting(round)
        assert set(resting) <= {3}
        if 3 not in resting:
            guard.count_draws(round, np.array([3, 5]), np.array([0.1, 0.5]))  # 5 may be drawn in each round
            drawn += 1
        if round == 20:
            resumed = Guard(10, STRICT)
            resumed.load_state_dict(guard.state_dict())
            guard = resumed
    assert drawn == 9  # 1 + 2 * 0.1 * 40
    guard.add_clients(2)
    assert guard.resting(41).tolist() == [3]
    assert guard.resting(60).size == 0


def test_a_descent_that_turns_round_is_no_offence():
    guard, rng = Guard(20, STRICT), np.random.default_rng(2)
    aim = rng.normal(size=256)
    for round in range(1, 20):
        judged = judge_directions(
            guard, round, towards(rng, 5, -aim if round > 10 else aim), rng.choice(20, 5, False)
        )
        assert not judged.rejected


def test_an_update_without_direction_is_not_judged():
    guard, rng = Guard(20, STRICT), np.random.default_rng(3)
    aim = rng.normal(size=256)
    for round in range(1, 8):
        sketches = towards(rng, 20, aim)
        sketches[:3] = [[0.0], [NAN], [INF]]
        sketches[3] = 1e200
        missing = np.full(20, NAN)
        assert not guard.judge(round, np.arange(20), np.ones(20), missing, missing, None, sketches).rejected
    assert np.isfinite(guard.state_dict()["directions/directions"]).all()


def test_with_few_values_nothing_is_far_beyond_the_limit():
    """Among honest clients that differ by orders of magnitude, a few values say little of the others."""
    guard = Guard(100, STRICT)
    judged = judge(guard, 1, [1e-5, 2e-5, 2e-5, 3e-5, 100.0], np.ones(5))
    assert not judged.rejected
    assert list(judged.clipped) == [4]
    judged = judge(guard, 2, [2e-5] * 11 + [100.0], np.ones(12), clients=np.arange(10, 22))
    assert list(judged.rejected) == [11]


def test_state_goes_on_bit_for_bit():
    rng = np.random.default_rng(3)
    guard = seasoned(spread=1.0)
    other = Guard(3, STRICT)
    other.load_state_dict(guard.state_dict())
    for each in (guard, other):
        each.add_clients(2)
    for round in range(4, 30):
        clients = rng.choice(42, 6, replace=False)
        norms = rng.lognormal(0, 3, 6)
        sketches = rng.normal(size=(6, 20)) + 1
        left, right = (
            g.judge(round, clients, norms, norms, norms, {1: "x"}, sketches) for g in (guard, other)
        )
        np.testing.assert_array_equal(left.scales, right.scales)
        np.testing.assert_array_equal(guard.quarantined(round), other.quarantined(round))
    same(guard.state_dict(), other.state_dict())
    before = guard.state_dict()
    for spoil in (
        {"offences": before["offences"][1:]},
        {"pauses": before["pauses"].astype(float)},
        {"more": np.zeros(1)},
        {"recent/more": np.zeros(1)},
        {"recent/values": before["recent/values"][:, 1:]},
        {"directions/agreements": before["directions/agreements"][1:]},
    ):
        with pytest.raises(ValueError, match="state"):
            guard.load_state_dict(before | spoil)
    same(guard.state_dict(), before)


ANY = st.floats(allow_nan=True, allow_infinity=True)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.booleans())
def test_any_floats_are_judged(data, signed):
    guard = Guard(9, GuardSettings(level="strict", signed_losses=signed))
    for round in range(1, 5):
        size = data.draw(st.integers(0, 9))
        norms, losses, variances = (data.draw(hnp.arrays(float, size, elements=ANY)) for _ in range(3))
        judged = judge(guard, round, norms, losses, variances)
        assert ((judged.scales > 0) & (judged.scales <= 1)).all()
        kept = np.setdiff1d(np.arange(size), list(judged.rejected))
        assert not np.isinf(judged.losses).any()
        assert not (judged.gradient_variances < 0).any()
        assert (np.isfinite(norms[kept]) | np.isnan(norms[kept])).all()
        told = np.isfinite(judged.losses)
        assert (judged.losses[told] <= np.where((losses < 0) & (not signed), 0, losses)[told]).all()
        said, _ = guard.judge_reports(round, np.arange(size), {"loss": losses, "diversity": variances})
        assert not np.isinf(said["loss"]).any()
        sizes = sizes_of(data.draw(hnp.arrays(float, 9, elements=ANY)))
        assert ((sizes > 0) & np.isfinite(sizes)).all()


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-300, 1e300), st.integers(1, 30), st.integers(1, 12))
def test_values_of_clients_that_are_alike_are_never_clipped(value, size, rounds):
    guard = Guard(30, STRICT)
    for round in range(1, rounds + 1):
        judged = judge(guard, round, np.full(size, value), np.full(size, value), np.full(size, value))
        assert judged.scales.tolist() == [1.0] * size
        assert judged.clipped == judged.rejected == {}
        assert (judged.losses == value).all()
    assert (sizes_of(np.full(30, 7.0)) == 7.0).all()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_the_order_of_replies_changes_nothing(seed, size):
    rng = np.random.default_rng(seed)
    left, right = (Guard(40, GuardSettings(level="strict", window=32)) for _ in range(2))
    for round in range(1, 6):
        clients = rng.choice(40, size, replace=False)
        norms, losses = rng.lognormal(0, 3, (2, size))
        sketches = rng.normal(size=(size, 8))
        order = rng.permutation(size)
        missing = np.full(size, NAN)
        one = left.judge(round, clients, norms, losses, missing, None, sketches)
        two = right.judge(round, clients[order], norms[order], losses[order], missing, None, sketches[order])
        np.testing.assert_array_equal(one.scales[order], two.scales)
        np.testing.assert_array_equal(one.losses[order], two.losses)
        assert {order[i]: text for i, text in two.clipped.items()} == dict(one.clipped)
        same(left.state_dict(), right.state_dict())


@pytest.mark.parametrize("share", [0.1, 0.2])
@pytest.mark.parametrize("lie", [10.0, 1e3, 1e9])
def test_liars_do_not_move_the_limits_much(share, lie):
    """200 values of spread 0.3: the honest margin is about 4 · 0.3."""
    rng = np.random.default_rng(5)
    margins = []
    for _ in range(20):
        x = 0.3 * rng.normal(size=200)
        x[: int(share * 200)] += math.log(lie)
        usual = bulk(x, deviations=4, least=math.log(2), prior=0.5)
        margins.append(usual.centre + usual.margin)
    assert 1.0 < np.mean(margins) < 1.6


def test_a_round_copies_no_array_over_all_clients():
    """With a million clients no array over all of them is copied, even in a round with offences."""
    import tracemalloc

    guard = Guard(1_000_000, GuardSettings(level="strict", strikes=1, memory=1))
    clients = np.arange(0, 1_000_000, 20_000)
    norms = np.where(clients == 0, np.nan, 1.0)
    sketches = np.ones((clients.size, 256))
    np.median(norms)  # the first call imports modules
    tracemalloc.start()
    for round in range(3):
        guard.judge(round, clients, norms, norms, norms, {0: "garbage"}, sketches)
        guard.judge_reports(round, clients, {"loss": np.where(clients == 0, -1.0, norms)})
        assert guard.quarantined(round + 1).tolist() == [0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 900_000  # bytes; one flag per client is more


@pytest.mark.parametrize("clients_per_round", [1, 5])
def test_losses_that_are_negative_everywhere_quarantine_nobody(clients_per_round):
    """A likelihood's loss may be negative: then the setting `signed_losses` is missing, and nobody lies."""
    guard, rng = Guard(10, STRICT), np.random.default_rng(0)
    for round in range(1, 41):
        clients = rng.choice(10, clients_per_round, replace=False)
        ones, nothing = np.ones(clients.size), np.full(clients.size, NAN)
        judged = guard.judge(round, clients, ones, -5 * ones, nothing)
        assert np.isnan(judged.losses).all()
        assert "signed_losses" in judged.clipped[0]
        guard.judge_reports(round, clients, {"loss": -ones})
        assert not guard.quarantined(round + 1).size


def test_norms_that_all_clients_report_wrongly_quarantine_nobody_but_one_liar_is_quarantined():
    """If all do, the app reports another number under this name. Client 0 is the only liar of the second."""
    everybody, alone = Guard(10, STRICT), Guard(10, STRICT)
    nothing = np.full(10, NAN)
    for round in range(1, 9):
        for guard, liars in ((everybody, range(10)), (alone, range(1))):
            wrong = dict.fromkeys(liars, "update norm 1000 reported")
            guard.judge(round, np.arange(10), np.ones(10), nothing, nothing, contradictions=wrong)
    assert not everybody.quarantined(9).size
    assert alone.quarantined(9).tolist() == [0]


def test_a_loss_that_rounding_made_negative_counts_as_zero():
    guard = Guard(2, STRICT)
    judged = guard.judge(1, [0, 1], [1.0, 1.0], [-1.00009e-12, -1e-5], [NAN, NAN])
    assert judged.losses[0] == 0
    assert np.isnan(judged.losses[1])
    assert list(judged.clipped) == [1]


def test_a_state_from_before_untrue_numbers_were_remembered_is_loaded():
    guard = Guard(3, STRICT)
    state = {name: array for name, array in guard.state_dict().items() if name != "replies/untrue"}
    guard.load_state_dict(state)
    assert (guard.state_dict()["replies/untrue"] == -1).all()


def test_whoever_changes_what_is_in_the_guards_state_raises_the_version_of_checkpoints():
    arrays = {name: (array.dtype.str, array.ndim) for name, array in Guard(3, STRICT).state_dict().items()}
    assert VERSION == 5
    assert arrays == GUARD_STATE


GUARD_STATE = {
    "offences": ("|u1", 2),
    "quarantined_until": ("<i8", 1),
    "pauses": ("<i8", 1),
    "rests_until": ("<f8", 1),
    "recent/clients": ("<i8", 2),
    "recent/values": ("<f8", 2),
    "recent/residuals": ("<f8", 2),
    "recent/norm_margin": ("<f8", 0),
    "directions/clients": ("<i8", 1),
    "directions/directions": ("<f4", 2),
    "directions/agreements": ("<f8", 1),
    "replies/untrue": ("|i1", 2),  # a checkpoint without this array can be loaded
}
"""By name: type and number of dimensions."""
