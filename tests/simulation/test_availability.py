"""Who is here in which round: per client, per group, and as recorded."""

import re

import numpy as np
import pytest

from simulation.availability import available, counts, create
from simulation.availability.counts import PROCESSES, clients_here
from simulation.availability.traces import Recording, read_trace, replay, sessions

MEANS = np.array([1.0, 8.0, 30.0, 60.0])
GROUPS = np.repeat([0, 1, 2, 3], [10, 100, 200, 300])
ROWS = [(0, 0.0, 2.0), (1, 0.5, 1.0), (1, 1.0, 3.5), (2, -4.0, 1.0), (2, 2.0, 99.0), (0, 1.0, 1.5)]


def setups():
    """All processes, of clients and of groups."""
    rows = sessions(np.repeat([0, 1], 15), np.array([0.2, 0.6]), 40, np.random.default_rng(0))
    for name in available():
        yield name, 60, {"recording": Recording(rows)} if name == "trace" else {}
    for name in ("uniform", "poisson", "cyclic", "markov", "diurnal", "once"):
        yield name, GROUPS.size, {"groups": GROUPS, "means": MEANS}


ALL = pytest.mark.parametrize(
    ("name", "size", "settings"), list(setups()), ids=lambda each: each if isinstance(each, str) else ""
)


def table(process, rounds):
    """(rounds, M) who is here from round 1 on."""
    here = np.zeros((rounds, process.num_clients), dtype=bool)
    for number in range(rounds):
        clients = process.here(number + 1)
        here[number, slice(None) if clients is None else clients] = True
    return here


# The interface.


@ALL
def test_who_is_here_is_a_function_of_seed_and_round(name, size, settings):
    """Whatever was asked before: a resumed run begins anywhere."""
    one = table(create(name, size, seed=3, **settings), 40)
    again = create(name, size, seed=3, **settings)
    for number in (40, 7, 8, 9, 1, 39, 40, 7):
        here = again.here(number)
        if here is None:
            assert name == "always"
        else:
            np.testing.assert_array_equal(here, np.flatnonzero(one[number - 1]))
            assert here.dtype == np.int64
    other = table(create(name, size, seed=4, **settings), 40)
    assert name == "always" or (one != other).any()


@ALL
def test_a_round_that_there_is_not_is_refused(name, size, settings):
    with pytest.raises(ValueError, match="round = 0: must be >= 1"):
        create(name, size, **settings).here(0)


@pytest.mark.parametrize("name", ["uniform", "poisson", "markov"])
def test_clients_that_come_along_change_nothing_for_the_others(name):
    few, many = (table(create(name, size, seed=1, rates=0.3), 20) for size in (50, 80))
    np.testing.assert_array_equal(few, many[:, :50])


@pytest.mark.parametrize(
    ("name", "size", "settings", "text"),
    [
        ("weekly", 3, {}, "name = 'weekly': must be one of always, uniform"),
        ("poisson", 0, {}, "num_clients = 0: must be >= 1"),
        ("poisson", 2, {"rates": 1.5}, "rates = 1.5: must be in [0, 1]"),
        ("poisson", 2, {"rates": [0.5, np.nan]}, "rates = [0.5 nan]: must be in [0, 1]"),
        ("markov", 3, {"rates": [0.5, 0.5]}, "rates = [0.5 0.5]: must be in [0, 1], one number or one"),
        ("cyclic", 2, {"night_rates": -1}, "night_rates = -1.0: must be"),
        ("markov", 2, {"memory": 1.0}, "memory = 1.0: must be in [0, 1)"),
        ("diurnal", 2, {"day": 1}, "day = 1: must be >= 2"),
        ("diurnal", 2, {"zones": [0, 24]}, "zones = [ 0 24]: must be 2 whole numbers from 0 to 23"),
        ("once", 2, {"rates": 0.0}, "rates = 0.0: must be one number in (0, 1]"),
        ("once", 2, {"rates": [0.5, 0.5]}, "rates = [0.5, 0.5]: must be one number in (0, 1]"),
        ("poisson", 2, {"memory": 0.5}, "memory: is no setting of 'poisson', which takes rates"),
        ("always", 2, {"rates": 0.5}, "rates: is no setting of 'always', which takes none"),
        (
            "poisson",
            2,
            {"groups": [0, 0], "means": [1.0], "memory": 0.5},
            "memory: is no setting of 'poisson', which takes stay, returning",
        ),
        ("poisson", 2, {"means": [1.0]}, "groups = None: must be given with means"),
        ("poisson", 2, {"groups": [0, 0]}, "groups: must come with means"),
        ("poisson", 2, {"groups": [0], "means": [1.0]}, "groups of shape (1,): must be (2,)"),
        ("poisson", 2, {"groups": [0.0, 0.5], "means": [1.0]}, "must be a whole number a client"),
        ("poisson", 2, {"groups": [0, 1], "means": [1.0]}, "groups from 0 to 1: must be from 0 to 0"),
        ("poisson", 2, {"groups": [0, 0], "means": [-1.0]}, "means = [-1.]: must be"),
        ("markov", 2, {"groups": [0, 0], "means": [1.0], "stay": 0.3}, "stay = 0.3: must be in [0.5, 1)"),
        ("trace", 2, {"groups": [0, 0], "means": [1.0]}, "name = 'trace': takes no groups"),
        ("trace", 2, {"recording": Recording([])}, "nobody is ever here"),
        ("trace", 2, {"recording": Recording(ROWS), "assign": "same"}, "3 recorded clients for 2"),
        ("trace", 3, {"recording": Recording(ROWS), "assign": "key"}, "'key' needs a key"),
        ("trace", 3, {"recording": Recording(ROWS), "key": [1, 2, 3]}, "'key' needs a key"),
        ("trace", 3, {"recording": Recording(ROWS), "assign": "key", "key": [1, 2]}, "key of shape (2,)"),
        ("trace", 2, {"recording": Recording(ROWS), "assign": "key", "key": [1, 2]}, "parts = 3: must be"),
        ("trace", 2, {"recording": Recording(ROWS), "assign": "sorted"}, "assign = 'sorted': must be"),
    ],
)
def test_a_wrong_setting_is_told(name, size, settings, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        create(name, size, **settings)


# Each client by itself.


@pytest.mark.parametrize("name", ["uniform", "poisson", "markov", "diurnal"])
def test_each_client_is_here_as_often_as_its_rate_says(name):
    rates = np.repeat([0.0, 0.05, 0.2, 0.5], 100)
    shares = table(create(name, 400, seed=2, rates=rates), 24 * 50).reshape(-1, 4, 100).mean(axis=(0, 2))
    assert shares[0] == 0
    np.testing.assert_allclose(shares[1:], [0.05, 0.2, 0.5], rtol=0.06)
    assert table(create(name if name != "diurnal" else "poisson", 5, rates=1.0), 3).mean() > 0.5


def test_how_many_are_here_in_a_round_is_poisson_or_uniform():
    poisson = table(create("poisson", 2000, rates=0.05), 2000).sum(axis=1)
    assert poisson.mean() == pytest.approx(100, rel=0.02)
    assert poisson.var() == pytest.approx(95, rel=0.15)  # 2000 · .05 · .95
    uniform = table(create("uniform", 2000, rates=0.05), 2000).sum(axis=1)
    assert uniform.mean() == pytest.approx(100, rel=0.03)
    # The factor's variance is 1/12; on top of it each client's own coin.
    assert uniform.var() == pytest.approx(100**2 / 12 + 95, rel=0.1)


def test_by_day_and_by_night_others_are_here():
    both = table(create("cyclic", 100, rates=0.9), 400)
    day, night = both[::2].mean(axis=0), both[1::2].mean(axis=0)
    np.testing.assert_allclose(day, np.repeat([0.9, 0.0], 50), atol=0.1)
    np.testing.assert_allclose(night, np.repeat([0.0, 0.9], 50), atol=0.1)
    given = table(create("cyclic", 2, rates=[1.0, 0.0], night_rates=1.0), 4)
    assert given.astype(int).tolist() == [[1, 0], [1, 1], [1, 0], [1, 1]]


def test_a_day_goes_round_with_the_zones():
    zones = np.repeat([0, 6, 12, 18], 200)
    here = table(create("diurnal", 800, rates=0.4, zones=zones), 24 * 20)
    by_hour = here.reshape(20, 24, 4, 200).mean(axis=(0, 3))
    assert by_hour.argmax(axis=0) == pytest.approx([6, 0, 18, 12], abs=1)
    np.testing.assert_allclose(by_hour[:, 0], 0.4 * (1 + np.sin(np.pi * np.arange(24) / 12)), atol=0.03)


def test_a_chain_is_sticky_and_stationary_from_the_first_round():
    rates = np.repeat([0.2, 0.6], 5000)
    here = table(create("markov", 10_000, seed=5, rates=rates, memory=0.7), 30)
    by_round = here.reshape(30, 2, 5000).mean(axis=2)
    np.testing.assert_allclose(by_round, np.tile([0.2, 0.6], (30, 1)), atol=5 * 0.5 / 5000**0.5)
    for lag in (1, 3):
        for rate, part in zip((0.2, 0.6), (here[:, :5000], here[:, 5000:]), strict=True):
            together = (part[lag:] & part[:-lag]).mean()
            assert together == pytest.approx(rate**2 + 0.7**lag * rate * (1 - rate), abs=0.005)
    alone = table(create("markov", 2000, rates=0.3, memory=0.0), 50)
    assert (alone[1:] & alone[:-1]).mean() == pytest.approx(0.09, abs=0.01)


def test_once_is_once():
    here = table(create("once", 103, rates=0.1), 15)
    assert here.sum(axis=0).tolist() == [1] * 103
    assert here.sum(axis=1).tolist() == [10] * 10 + [3] + [0] * 4
    assert not np.array_equal(np.flatnonzero(here[0]), np.arange(10))


# Per group.


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("uniform", [1, 8, 30, 60]),
        ("poisson", MEANS),
        ("cyclic", (MEANS + MEANS[::-1]) / 2),
        ("markov", MEANS / 2),
        ("diurnal", MEANS),
    ],
)
def test_the_groups_of_a_process_are_those_of_its_table(name, expected):
    groups = np.repeat([0, 1, 2, 3], 200)
    process = create(name, groups.size, groups=groups, means=MEANS, seed=6)
    drawn = np.array([process.counts(number) for number in range(1, 1 + 24 * 100)])
    np.testing.assert_allclose(drawn.mean(axis=0), expected, rtol=0.15)
    for number in (1, 2, 24):
        assert np.bincount(groups[process.here(number)], minlength=4).tolist() == drawn[number - 1].tolist()
    if name == "markov":
        awake = drawn[:, 2:] > 0
        assert (awake[1:] != awake[:-1]).mean() == pytest.approx(0.1, abs=0.02)


def test_which_groups_are_awake_says_nothing_of_who_is_here_of_the_others():
    """They are drawn apart: from one stream, a group that wakes would choose another's clients."""
    process = create("markov", 12, groups=np.repeat([0, 1], 6), means=[3.0, 3.0], seed=5, stay=0.5)
    here = table(process, 8000)
    for other in (0, 1):
        mine = here[:, 6 * other : 6 * other + 6]
        there = here[:, 6 * (1 - other) : 6 * (1 - other) + 6].any(axis=1)
        chances = [mine[mine.any(axis=1) & (there == awake)].mean(axis=0) for awake in (True, False)]
        np.testing.assert_allclose(*chances, atol=0.06)  # some 2,000 rounds each: five standard errors


def test_a_group_has_no_more_than_its_clients_and_chance_draws_them():
    process = create("uniform", 6, groups=[0, 1, 0, 1, 1, 2], means=[1.0, 2.0, 50.0], seed=1)
    here = table(process, 3000)
    assert set(here[:, [0, 2]].sum(axis=1)) == {1}
    assert here[:, 5].all()
    np.testing.assert_allclose(here[:, [0, 2]].mean(axis=0), 1 / 2, atol=0.05)
    np.testing.assert_allclose(here[:, [1, 3, 4]].mean(axis=0), 2 / 3, atol=0.05)


def test_transient_clients_of_groups_never_return():
    process = create("once", GROUPS.size, groups=GROUPS, means=MEANS, seed=2)
    here = table(process, 80)
    assert here.sum(axis=0).max() == 1
    for number in range(3):
        counts_here = np.bincount(GROUPS[here[number]], minlength=4)
        assert counts_here.tolist() == process.counts(number + 1).tolist()
    assert not here[-1].any()
    assert here.any(axis=0).all()


@pytest.mark.parametrize("name", PROCESSES)
def test_a_table_is_a_function_of_its_generator(name):
    one, again = (PROCESSES[name](MEANS, 100, np.random.default_rng(1)) for _ in range(2))
    np.testing.assert_array_equal(one, again)
    assert one.shape == (100, 4)
    assert (one >= 0).all()
    assert one.dtype.kind == "i"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("uniform", [1, 8, 30, 60]),
        ("Poisson", MEANS),
        ("cyclic", (MEANS + MEANS[::-1]) / 2),
        ("Markov", MEANS / 2),
        ("diurnal", MEANS),
    ],
)
def test_how_many_are_here_on_average(name, expected):
    """Within 15 %: groups that sleep for rounds on end vary most."""
    drawn = PROCESSES[name](MEANS, 24 * 500, np.random.default_rng(2))
    np.testing.assert_allclose(drawn.mean(axis=0), expected, rtol=0.15)


def test_the_shapes_of_the_tables():
    rng = np.random.default_rng(3)
    uniform = counts.uniform(MEANS, 2000, rng)
    assert uniform.min(axis=0).tolist() == [1, 4, 15, 30]
    assert uniform.max(axis=0).tolist() == [1, 12, 45, 90]
    seldom = counts.uniform(np.array([0.0, 0.3, 0.6, 0.7]), 4000, rng)
    assert seldom.max(axis=0).tolist() == [0, 1, 1, 1]
    np.testing.assert_allclose(seldom.mean(axis=0), [0, 0.3, 0.6, 1], atol=0.04)  # 1 is from .35 to 1.05
    awake = counts.markov(np.full(3, 50.0), 4000, rng) > 0
    assert abs((awake[1:] != awake[:-1]).mean() - 0.1) < 0.02
    day = counts.diurnal(np.full(4, 100.0), 24 * 50, rng).reshape(50, 24, 4).mean(axis=0)
    assert day.argmax(axis=0) == pytest.approx([6, 0, 18, 12], abs=2)


def test_clients_here_are_drawn_group_by_group():
    groups = np.array([0, 1, 0, 1, 1, 2])
    seen = np.zeros(6)
    for seed in range(2000):
        here = clients_here(np.array([1, 2, 9, 4]), groups, np.random.default_rng(seed))
        assert np.bincount(groups[here]).tolist() == [1, 2, 1]
        assert (np.diff(here) > 0).all()
        seen[here] += 1 / 2000
    np.testing.assert_allclose(seen, [1 / 2, 2 / 3, 1 / 2, 2 / 3, 2 / 3, 1], atol=5 * 0.5 / 2000**0.5)


def test_of_each_group_those_with_the_smallest_numbers_are_here():
    """What the FLICS experiments were run with, group by group in one sort."""
    rng = np.random.default_rng(4)
    groups, wanted = rng.integers(5, size=400), np.array([0, 3, 40, 500, 1])
    order = np.lexsort((np.random.default_rng(9).random(400), groups))
    place = np.concatenate([np.arange(size) for size in np.bincount(groups)])
    expected = np.sort(order[place < wanted[groups[order]]])
    np.testing.assert_array_equal(clients_here(wanted, groups, np.random.default_rng(9)), expected)


# Recorded.


def test_a_recorded_trace_is_replayed():
    here = replay(ROWS, 4, 4)
    assert here.T.astype(int).tolist() == [[1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]]
    np.testing.assert_array_equal(
        replay([(c, 3600 * s, 3600 * e) for c, s, e in ROWS], 4, 4, round_length=3600), here
    )
    assert not replay([], 2, 3).any()
    for row, text in (
        ((0, 2.0, 1.0), "row (0, 2.0, 1.0)"),
        ((-1, 1.0, 2.0), "row (-1, 1.0, 2.0)"),
        ((0, np.nan, 2.0), "row (0, nan, 2.0)"),
        ((7, 1.0, 2.0), "a row names client 7: there are 4"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            replay([row], 4, 4)


def test_in_an_hours_bin_is_who_was_here_in_any_part_of_it():
    hour = 3600.0
    rows = [(0, 10.2, 10.3), (1, 9.5, 11.0), (1, 10.5, 12.1), (0, 13.0, 13.0), (2, 12.9, 14.0)]
    recording = Recording([(c, s * hour, e * hour) for c, s, e in rows], bin_length=hour)
    # 9 to 13 o'clock, from the hour in which the first row begins; a row of no length is no presence.
    assert recording.num_bins == 5
    here = np.array([recording.here(number) for number in range(5)]).T.astype(int)
    assert here.tolist() == [[0, 1, 0, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 1, 1]]
    np.testing.assert_allclose(recording.shares(), [1 / 5, 4 / 5, 2 / 5])
    at_the_hour = Recording([(c, s * hour, e * hour) for c, s, e in rows], bin_length=hour, whole_bins=False)
    assert [at_the_hour.here(number)[1] for number in range(5)] == [False, True, True, True, False]
    with pytest.raises(ValueError, match="bin_length = 0: must be > 0"):
        Recording(rows, bin_length=0)


def test_overlapping_rows_are_merged_as_if_looked_up_one_by_one():
    rng = np.random.default_rng(5)
    start = rng.uniform(0, 30, 300)
    rows = np.column_stack([rng.integers(12, size=300), start, start + rng.exponential(1.0, 300)])
    recording = Recording(rows, num_clients=14)
    for number in range(recording.num_bins):
        inside = (rows[:, 1] < number + 1) & (rows[:, 2] > number)
        expected = np.isin(np.arange(14), rows[inside, 0])
        np.testing.assert_array_equal(recording.here(number), expected)
    looked_up = np.mean([recording.here(number) for number in range(recording.num_bins)], axis=0)
    np.testing.assert_allclose(recording.shares(), looked_up)


def test_a_trace_goes_round_and_each_client_follows_one_recorded():
    recording = Recording(ROWS, whole_bins=False, origin=0.0)
    same = create("trace", 3, recording=recording, assign="same")
    recorded = np.array([recording.here(number) for number in range(99)])
    np.testing.assert_array_equal(table(same, 198), np.concatenate([recorded, recorded]))
    many = create("trace", 31, recording=recording, seed=1)
    assert sorted(np.bincount(many.source)) == [10, 10, 11]
    np.testing.assert_array_equal(table(many, 99), recorded[:, many.source])
    few = create("trace", 2, recording=recording, seed=1)
    assert len(set(few.source.tolist())) == 2


def test_a_trace_goes_with_the_data_where_it_is_told_to():
    rng = np.random.default_rng(6)
    lengths = rng.uniform(0, 50, 300)
    recording = Recording(np.column_stack([np.arange(300), np.zeros(300), lengths]))
    key = rng.random(90)
    shares = recording.shares()
    thirds = np.array_split(np.argsort(shares, kind="stable"), 3)
    process = create("trace", 90, recording=recording, assign="key", key=key, seed=2)
    for recorded, clients in zip(thirds, np.array_split(np.argsort(key), 3), strict=True):
        assert set(process.source[clients].tolist()) <= set(recorded.tolist())
        within = np.corrcoef(key[clients], shares[process.source[clients]])[0, 1]
        assert abs(within) < 0.5  # by chance: 0.18 is one standard deviation
    fine = create("trace", 90, recording=recording, assign="key", key=key, parts=90)
    assert (np.diff(shares[fine.source[np.argsort(key)]]) >= 0).all()
    random = create("trace", 90, recording=recording, seed=2)
    assert abs(np.corrcoef(key, shares[random.source])[0, 1]) < 0.4


def test_a_trace_is_read_from_a_file(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text('start,client,app,end\n0.5,10,"a, b",2\n1,9,c,3.5\n\n4,10,d,5\n')
    assert read_trace(file).tolist() == [[1, 0.5, 2], [0, 1, 3.5], [1, 4, 5]]
    file.write_text("client,start,end\r\nzoe,0,1\r\n anna,2,3\r\n")
    assert read_trace(file).tolist() == [[1, 0, 1], [0, 2, 3]]
    file.write_text("client,start,end\n")
    assert read_trace(file).shape == (0, 3)
    for text, told in (
        ("", "columns are []: must have client, start, end"),
        ("client,begin,end\na,1,2\n", "columns are ['client', 'begin', 'end']"),
        ("client,start,end\na,1,2\nb,noon,3\n", "line 3: ['b', 'noon', '3']"),
        ("client,start,end\na,1\n", "line 2: ['a', '1']"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=re.escape(told)):
            read_trace(file)


def test_made_up_sessions_give_each_group_its_share():
    groups = np.repeat([0, 1], 200)
    rows = sessions(groups, np.array([0.1, 0.5]), 24 * 20, np.random.default_rng(4))
    assert rows == sorted(rows)
    last = {}
    for client, start, end in rows:
        assert last.get(client, -np.inf) <= start < end
        last[client] = end
    shares = replay(rows, 400, 24 * 20).reshape(-1, 2, 200).mean(axis=(0, 2))
    np.testing.assert_allclose(shares, [0.1, 0.5], atol=0.05)
