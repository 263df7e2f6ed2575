"""Availability processes: of independent clients, of groups, and recorded traces."""

import re

import numpy as np
import pytest

from simulation.availability import available, create
from simulation.availability.groups import Members
from simulation.availability.trace_file import Recording, read_trace

MEANS = np.array([1.0, 8.0, 30.0, 60.0])
GROUPS = np.repeat([0, 1, 2, 3], [10, 100, 200, 300])
ROWS = [(0, 0.0, 2.0), (1, 0.5, 1.0), (1, 1.0, 3.5), (2, -4.0, 1.0), (2, 2.0, 99.0), (0, 1.0, 1.5)]


def setups():
    """All processes, of clients and of groups."""
    rng = np.random.default_rng(0)
    start = rng.uniform(0, 40, 300)
    rows = np.column_stack([rng.integers(30, size=300), start, start + rng.exponential(1.0, 300)])
    for name in available():
        yield name, 60, {"recording": Recording(rows)} if name == "trace" else {}
    for name in ("uniform", "poisson", "cyclic", "markov", "diurnal", "once"):
        yield name, GROUPS.size, {"groups": GROUPS, "means": MEANS}


ALL = pytest.mark.parametrize(
    ("name", "size", "settings"), list(setups()), ids=lambda each: each if isinstance(each, str) else ""
)


def table(process, rounds):
    """Return (rounds, M) whether each client is available, from round 1 on."""
    present = np.zeros((rounds, process.num_clients), dtype=bool)
    for number in range(rounds):
        clients = process.available(number + 1)
        present[number, slice(None) if clients is None else clients] = True
    return present


def replay(rows, num_clients, num_rounds, round_length=1.0):
    """Return (T, M) whether each client is available at the beginning of each round of a trace."""
    recording = Recording(
        rows, bin_length=round_length, whole_bins=False, origin=0.0, num_clients=num_clients
    )
    return np.array([recording.available(round) for round in range(num_rounds)])


# The interface.


@ALL
def test_availability_is_a_function_of_seed_and_round(name, size, settings):
    """A resumed run begins at any round."""
    one = table(create(name, size, seed=3, **settings), 40)
    again = create(name, size, seed=3, **settings)
    for number in (40, 7, 8, 9, 1, 39, 40, 7):
        present = again.available(number)
        if present is None:
            assert name == "always"
        else:
            np.testing.assert_array_equal(present, np.flatnonzero(one[number - 1]))
            assert present.dtype == np.int64
    other = table(create(name, size, seed=4, **settings), 40)
    assert name == "always" or (one != other).any()


@ALL
def test_round_0_is_refused(name, size, settings):
    with pytest.raises(ValueError, match="round = 0: must be >= 1"):
        create(name, size, **settings).available(0)


@pytest.mark.parametrize("name", ["uniform", "poisson", "markov"])
def test_a_client_does_not_depend_on_the_number_of_clients(name):
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
        ("poisson", 2, {"memory": 0.5}, "memory: is not a setting of 'poisson'; valid are rates"),
        ("always", 2, {"rates": 0.5}, "rates: is not a setting of 'always'; valid are none"),
        (
            "poisson",
            2,
            {"groups": [0, 0], "means": [1.0], "memory": 0.5},
            "memory: is not a setting of 'poisson'; valid are stay, returning",
        ),
        ("poisson", 2, {"means": [1.0]}, "groups = None: must be given with means"),
        ("poisson", 2, {"groups": [0, 0]}, "groups: must be given with means"),
        ("poisson", 2, {"groups": [0], "means": [1.0]}, "groups of shape (1,): must be (2,)"),
        ("poisson", 2, {"groups": [0.0, 0.5], "means": [1.0]}, "must be one whole number per client"),
        ("poisson", 2, {"groups": [0, 1], "means": [1.0]}, "groups from 0 to 1: must be from 0 to 0"),
        ("poisson", 2, {"groups": [0, 0], "means": [-1.0]}, "means = [-1.]: must be"),
        ("markov", 2, {"groups": [0, 0], "means": [1.0], "stay": 0.3}, "stay = 0.3: must be in [0.5, 1)"),
        ("trace", 2, {"groups": [0, 0], "means": [1.0]}, "name = 'trace': takes no groups"),
        ("trace", 2, {"recording": Recording([])}, "recording has no bin"),
        (
            "trace",
            2,
            {"recording": Recording(ROWS), "assign": "same"},
            "recording has 3 clients: must have 2, one for",
        ),
        ("trace", 3, {"recording": Recording(ROWS), "assign": "key"}, "must be 'random' or 'same'"),
        ("trace", 3, {"recording": Recording(ROWS), "key": [1, 2, 3]}, "must be 'key' if a key is given"),
        ("trace", 3, {"recording": Recording(ROWS), "assign": "key", "key": [1, 2]}, "key has shape (2,)"),
        (
            "trace",
            2,
            {"recording": Recording(ROWS), "assign": "key", "key": [1, 2]},
            "parts = 3: must be from 1 to 2",
        ),
        ("trace", 2, {"recording": Recording(ROWS), "assign": "sorted"}, "assign = 'sorted': must be"),
    ],
)
def test_an_invalid_setting_is_refused(name, size, settings, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        create(name, size, **settings)


# Independent clients.


@pytest.mark.parametrize("name", ["uniform", "poisson", "markov", "diurnal"])
def test_each_client_is_available_at_its_rate(name):
    rates = np.repeat([0.0, 0.05, 0.2, 0.5], 100)
    shares = table(create(name, 400, seed=2, rates=rates), 24 * 50).reshape(-1, 4, 100).mean(axis=(0, 2))
    assert shares[0] == 0
    np.testing.assert_allclose(shares[1:], [0.05, 0.2, 0.5], rtol=0.06)
    assert table(create(name if name != "diurnal" else "poisson", 5, rates=1.0), 3).mean() > 0.5


def test_the_number_of_available_clients_is_poisson_or_uniform():
    poisson = table(create("poisson", 2000, rates=0.05), 2000).sum(axis=1)
    assert poisson.mean() == pytest.approx(100, rel=0.02)
    assert poisson.var() == pytest.approx(95, rel=0.15)  # 2000 · .05 · .95
    uniform = table(create("uniform", 2000, rates=0.05), 2000).sum(axis=1)
    assert uniform.mean() == pytest.approx(100, rel=0.03)
    # The factor has the variance 1/12; the draws of the clients add theirs.
    assert uniform.var() == pytest.approx(100**2 / 12 + 95, rel=0.1)


def test_different_clients_are_available_by_day_and_by_night():
    both = table(create("cyclic", 100, rates=0.9), 400)
    day, night = both[::2].mean(axis=0), both[1::2].mean(axis=0)
    np.testing.assert_allclose(day, np.repeat([0.9, 0.0], 50), atol=0.1)
    np.testing.assert_allclose(night, np.repeat([0.0, 0.9], 50), atol=0.1)
    given = table(create("cyclic", 2, rates=[1.0, 0.0], night_rates=1.0), 4)
    assert given.astype(int).tolist() == [[1, 0], [1, 1], [1, 0], [1, 1]]


def test_the_peak_of_a_day_depends_on_the_time_zone():
    zones = np.repeat([0, 6, 12, 18], 200)
    present = table(create("diurnal", 800, rates=0.4, zones=zones), 24 * 20)
    by_hour = present.reshape(20, 24, 4, 200).mean(axis=(0, 3))
    assert by_hour.argmax(axis=0) == pytest.approx([6, 0, 18, 12], abs=1)
    np.testing.assert_allclose(by_hour[:, 0], 0.4 * (1 + np.sin(np.pi * np.arange(24) / 12)), atol=0.03)


def test_a_chain_has_its_correlation_and_is_stationary_from_round_1():
    rates = np.repeat([0.2, 0.6], 5000)
    present = table(create("markov", 10_000, seed=5, rates=rates, memory=0.7), 30)
    by_round = present.reshape(30, 2, 5000).mean(axis=2)
    np.testing.assert_allclose(by_round, np.tile([0.2, 0.6], (30, 1)), atol=5 * 0.5 / 5000**0.5)
    for lag in (1, 3):
        for rate, part in zip((0.2, 0.6), (present[:, :5000], present[:, 5000:]), strict=True):
            together = (part[lag:] & part[:-lag]).mean()
            assert together == pytest.approx(rate**2 + 0.7**lag * rate * (1 - rate), abs=0.005)
    alone = table(create("markov", 2000, rates=0.3, memory=0.0), 50)
    assert (alone[1:] & alone[:-1]).mean() == pytest.approx(0.09, abs=0.01)


def test_once_each_client_is_available_in_one_round():
    present = table(create("once", 103, rates=0.1), 15)
    assert present.sum(axis=0).tolist() == [1] * 103
    assert present.sum(axis=1).tolist() == [10] * 10 + [3] + [0] * 4
    assert not np.array_equal(np.flatnonzero(present[0]), np.arange(10))


# Groups.


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
def test_the_mean_counts_of_groups_and_the_clients_drawn(name, expected):
    groups = np.repeat([0, 1, 2, 3], 200)
    process = create(name, groups.size, groups=groups, means=MEANS, seed=6)
    drawn = np.array([process.counts(number) for number in range(1, 1 + 24 * 100)])
    np.testing.assert_allclose(drawn.mean(axis=0), expected, rtol=0.15)
    for number in (1, 2, 24):
        assert (
            np.bincount(groups[process.available(number)], minlength=4).tolist() == drawn[number - 1].tolist()
        )
    if name == "markov":
        awake = drawn[:, 2:] > 0
        assert (awake[1:] != awake[:-1]).mean() == pytest.approx(0.1, abs=0.02)


def test_the_state_of_one_group_does_not_bias_the_draw_from_another():
    """Groups' states and clients are drawn from separate random streams."""
    process = create("markov", 12, groups=np.repeat([0, 1], 6), means=[3.0, 3.0], seed=5, stay=0.5)
    present = table(process, 8000)
    for other in (0, 1):
        mine = present[:, 6 * other : 6 * other + 6]
        there = present[:, 6 * (1 - other) : 6 * (1 - other) + 6].any(axis=1)
        chances = [mine[mine.any(axis=1) & (there == awake)].mean(axis=0) for awake in (True, False)]
        np.testing.assert_allclose(*chances, atol=0.06)  # some 2,000 rounds each: five standard errors


def test_a_count_is_limited_to_the_group_and_its_clients_are_equally_likely():
    process = create("uniform", 6, groups=[0, 1, 0, 1, 1, 2], means=[1.0, 2.0, 50.0], seed=1)
    present = table(process, 3000)
    assert set(present[:, [0, 2]].sum(axis=1)) == {1}
    assert present[:, 5].all()
    np.testing.assert_allclose(present[:, [0, 2]].mean(axis=0), 1 / 2, atol=0.05)
    np.testing.assert_allclose(present[:, [1, 3, 4]].mean(axis=0), 2 / 3, atol=0.05)


def test_clients_of_groups_that_never_return():
    process = create("once", GROUPS.size, groups=GROUPS, means=MEANS, seed=2)
    present = table(process, 80)
    assert present.sum(axis=0).max() == 1
    for number in range(3):
        clients_per_group = np.bincount(GROUPS[present[number]], minlength=4)
        assert clients_per_group.tolist() == process.counts(number + 1).tolist()
    assert not present[-1].any()
    assert present.any(axis=0).all()


def test_the_members_with_the_smallest_random_numbers_are_drawn():
    """As in one sort by group and random number."""
    rng = np.random.default_rng(4)
    groups, wanted = rng.integers(5, size=400), np.array([0, 3, 40, 500, 1])
    order = np.lexsort((np.random.default_rng(9).random(400), groups))
    place = np.concatenate([np.arange(size) for size in np.bincount(groups)])
    expected = np.sort(order[place < wanted[groups[order]]])
    np.testing.assert_array_equal(Members(groups, 5).draw(wanted, np.random.default_rng(9)), expected)


# Recorded traces.


def test_a_recorded_trace_is_replayed():
    present = replay(ROWS, 4, 4)
    assert present.T.astype(int).tolist() == [[1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]]
    np.testing.assert_array_equal(
        replay([(c, 3600 * s, 3600 * e) for c, s, e in ROWS], 4, 4, round_length=3600), present
    )
    assert not replay([], 2, 3).any()
    for row, text in (
        ((0, 2.0, 1.0), "row (0, 2.0, 1.0)"),
        ((-1, 1.0, 2.0), "row (-1, 1.0, 2.0)"),
        ((0, np.nan, 2.0), "row (0, nan, 2.0)"),
        ((7, 1.0, 2.0), "a row has client 7: must be below 4"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            replay([row], 4, 4)


def test_a_client_is_in_a_whole_bin_if_it_is_available_in_any_part():
    hour = 3600.0
    rows = [(0, 10.2, 10.3), (1, 9.5, 11.0), (1, 10.5, 12.1), (0, 13.0, 13.0), (2, 12.9, 14.0)]
    recording = Recording([(c, s * hour, e * hour) for c, s, e in rows], bin_length=hour)
    # 9 to 13 o'clock, from the hour in which the first row begins; a row of length 0 counts for nothing.
    assert recording.num_bins == 5
    present = np.array([recording.available(number) for number in range(5)]).T.astype(int)
    assert present.tolist() == [[0, 1, 0, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 1, 1]]
    np.testing.assert_allclose(recording.shares(), [1 / 5, 4 / 5, 2 / 5])
    at_the_hour = Recording([(c, s * hour, e * hour) for c, s, e in rows], bin_length=hour, whole_bins=False)
    assert [at_the_hour.available(number)[1] for number in range(5)] == [False, True, True, True, False]
    with pytest.raises(ValueError, match="bin_length = 0: must be > 0"):
        Recording(rows, bin_length=0)


def test_overlapping_rows_are_merged():
    rng = np.random.default_rng(5)
    start = rng.uniform(0, 30, 300)
    rows = np.column_stack([rng.integers(12, size=300), start, start + rng.exponential(1.0, 300)])
    recording = Recording(rows, num_clients=14)
    for number in range(recording.num_bins):
        inside = (rows[:, 1] < number + 1) & (rows[:, 2] > number)
        expected = np.isin(np.arange(14), rows[inside, 0])
        np.testing.assert_array_equal(recording.available(number), expected)
    looked_up = np.mean([recording.available(number) for number in range(recording.num_bins)], axis=0)
    np.testing.assert_allclose(recording.shares(), looked_up)


def test_a_trace_repeats_and_each_client_follows_a_recorded_client():
    recording = Recording(ROWS, whole_bins=False, origin=0.0)
    same = create("trace", 3, recording=recording, assign="same")
    recorded = np.array([recording.available(number) for number in range(99)])
    np.testing.assert_array_equal(table(same, 198), np.concatenate([recorded, recorded]))
    many = create("trace", 31, recording=recording, seed=1)
    assert sorted(np.bincount(many.source)) == [10, 10, 11]
    np.testing.assert_array_equal(table(many, 99), recorded[:, many.source])
    few = create("trace", 2, recording=recording, seed=1)
    assert len(set(few.source.tolist())) == 2


def test_assignment_by_key_correlates_availability_with_the_key():
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


@pytest.mark.parametrize(("groups", "parts"), [(10, [3, 4, 3]), (9, [3, 3, 3]), (4, [1, 2, 1])])
def test_clients_with_the_same_key_follow_recorded_clients_of_one_part(groups, parts):
    recording = Recording(np.column_stack([np.arange(30), np.zeros(30), np.arange(1, 31)]))
    thirds = np.array_split(np.argsort(recording.shares(), kind="stable"), 3)
    key = np.random.default_rng(1).permutation(np.repeat(np.arange(groups), 12))
    source = create("trace", key.size, recording=recording, assign="key", key=key).source
    part_of = [
        [third for third in range(3) if set(source[key == group].tolist()) <= set(thirds[third].tolist())]
        for group in range(groups)
    ]
    assert part_of == [[third] for third, count in enumerate(parts) for _ in range(count)]


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
