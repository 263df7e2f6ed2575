import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import partitions
from tasks.partitions import (
    balanced,
    dirichlet,
    dirichlet_balanced,
    label_groups,
    label_shards,
    label_split,
    natural,
    power_law,
    share_out,
    skewed,
    skewed_sizes,
)

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))  # 1,000 samples, ten classes


def shares(labels, parts):
    """Return (M, C) each client's shares of the classes."""
    counts = np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])
    return counts / counts.sum(axis=1, keepdims=True)


# Partitions that use all samples, with settings that suit 5 to 40 clients and ten classes.
COVERING = (
    *("skewed", "balanced", "power-law", "power-law:1.5", "dirichlet:0.1", "dirichlet:5"),
    *("dirichlet-balanced:0.2", "shards", "shards:1", "label-split:12", "groups:5", "natural"),
)


@given(st.sampled_from(COVERING), st.integers(14, 40), st.integers(0, 2**32), st.integers(0, 300))
def test_every_sample_goes_to_one_client_and_no_client_is_empty(partition, num_clients, seed, extra):
    random = np.random.default_rng(seed)
    labels = random.permutation(
        np.concatenate([np.repeat(np.arange(10), 40), random.integers(10, size=extra)])
    )
    users = random.permutation(np.arange(len(labels)) % 50)
    parts = share_out(partition, labels, num_clients, seed, users).clients
    assert len(parts) == num_clients
    assert all(part.dtype == np.int64 for part in parts)
    assert min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    again = share_out(partition, labels, num_clients, seed, users).clients
    assert all(map(np.array_equal, parts, again))
    other = share_out(partition, labels, num_clients, seed + 1, users).clients
    assert not all(map(np.array_equal, parts, other))


def test_sizes_are_skewed_as_in_section_g():
    assert skewed_sizes(10, 1437).tolist() == [10] * 6 + [49, 49, 295, 984]
    sizes = skewed_sizes(500, 325 * 1 + 100 * 5 + 50 * 30 + 25 * 100)  # the paper's own
    assert sizes.tolist() == [1] * 325 + [5] * 100 + [30] * 50 + [100] * 25


def test_the_papers_own_sizes_leave_samples_unused():
    labels = np.repeat(np.arange(10), 600)  # in order, as files often are
    parts = skewed(labels, 500, 3, unit=1)
    assert [len(part) for part in parts] == [1] * 325 + [5] * 100 + [30] * 50 + [100] * 25
    held = np.concatenate(parts)
    assert len(set(held.tolist())) == 4825
    assert np.bincount(labels[held]).min() > 400  # drawn from all of them, not from the first classes
    assert [len(part) for part in skewed(labels, 20, 0, unit=4)] == [4] * 13 + [20] * 4 + [120] * 2 + [400]


def test_balanced_sizes_differ_by_one_at_most():
    assert sorted(map(len, balanced(LABELS, 7, 0))) == [142] + [143] * 6
    fixed = balanced(LABELS, 7, 0, size=30)
    assert [len(part) for part in fixed] == [30] * 7
    assert len(set(np.concatenate(fixed).tolist())) == 210


def test_a_power_law_is_a_straight_line_of_logarithms():
    sizes = np.array([len(part) for part in power_law(np.zeros(200_000, np.int64), 50, 0, 0.8)])
    slope = np.polyfit(np.log(np.arange(50, 0, -1)), np.log(sizes), 1)[0]
    assert slope == pytest.approx(-0.8, abs=0.01)


def test_dirichlet_cuts_each_class_in_proportions_of_its_concentration():
    """Shares of a class have mean 1/M and variance (1/M)(1 - 1/M)/(M α + 1): sizes are skewed, too."""
    labels = np.repeat(np.arange(300), 2000)  # 300 classes, for 300 draws
    num_clients, alpha = 8, 0.3
    parts = dirichlet(labels, num_clients, 1, alpha)
    of_class = np.array([np.bincount(labels[part], minlength=300) for part in parts]) / 2000
    variance = (1 / 8) * (7 / 8) / (num_clients * alpha + 1)
    assert of_class.mean(axis=1) == pytest.approx(np.full(8, 1 / 8), abs=4 * (variance / 300) ** 0.5)
    assert of_class.var() == pytest.approx(variance, rel=0.1)


@given(st.integers(0, 1000), st.sampled_from([1e-6, 0.01, 0.5]), st.integers(0, 12))
def test_no_client_has_less_than_the_smallest_size(seed, alpha, min_size):
    parts = dirichlet(LABELS, 80, seed, alpha, min_size=min_size)
    assert min(map(len, parts)) >= min_size
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))


def test_large_clients_give_no_more_than_is_missing():
    without, with_least = (dirichlet(LABELS, 80, 5, 0.05, min_size=least) for least in (0, 3))
    missing = sum(max(0, 3 - len(part)) for part in without)
    given_away = sum(len(set(a.tolist()) - set(b.tolist())) for a, b in zip(without, with_least, strict=True))
    assert missing > 0
    assert given_away == missing
    for before, after in zip(without, with_least, strict=True):
        if len(before) < 3:
            assert set(before.tolist()) <= set(after.tolist())


def test_hsus_dirichlet_has_equal_sizes_and_its_concentration():
    """A client's class proportions q ~ Dir(α p): variance of a share p(1 - p)/(α + 1)."""
    labels = np.repeat(np.arange(4), 50_000)
    for alpha in (0.5, 4.0):
        parts = dirichlet_balanced(labels, 1000, 3, alpha)
        assert {len(part) for part in parts} == {200}
        held = shares(labels, parts)
        assert held.mean(axis=0) == pytest.approx(np.full(4, 0.25))
        # 200 draws add a multinomial's variance; classes that run out at the end change it a little.
        expected = 0.25 * 0.75 / (alpha + 1)
        assert held.var() == pytest.approx(expected + (0.25 * 0.75 - expected) / 200, rel=0.1)


def test_shards_are_mcmahans():
    labels = np.repeat(np.arange(10), 6000)
    parts = label_shards(np.random.default_rng(4).permutation(labels), 100, 0, 2)
    assert {len(part) for part in parts} == {600}  # two of 200 shards of 300
    parts = label_shards(labels, 100, 0, 2)
    assert all(len(np.unique(labels[part])) <= 2 for part in parts)
    assert {tuple(np.unique(part // 300)) for part in parts} != {(2 * m, 2 * m + 1) for m in range(100)}


def test_deltas_split_gives_nine_clients_nine_tenths():
    parts = label_split(LABELS, 109, 6)
    sizes = np.array([len(part) for part in parts])
    assert sizes.tolist() == [100] * 9 + [1] * 100
    assert all(len(np.unique(LABELS[part])) == 1 for part in parts)
    assert len({LABELS[part][0] for part in parts[:9]}) == 9
    assert len({LABELS[part][0] for part in parts[9:]}) == 1
    more = label_split(LABELS, 100, 6, owners=18)
    assert [len(part) for part in more[:18]] == [50] * 18


def test_flics_groups_hold_their_class_and_the_next():
    parts, groups = label_groups(LABELS, 200, 7, 10)
    assert groups is not None
    assert np.bincount(groups).tolist() == [20] * 10
    assert groups.tolist() != sorted(groups.tolist())
    for k in range(10):
        members = [part for part, group in zip(parts, groups, strict=True) if group == k]
        assert set(LABELS[np.concatenate(members)].tolist()) == {k, (k + 1) % 10}
    # Each class is shared equally: 100 samples over the 40 clients of two groups.
    assert {np.count_nonzero(LABELS[part] == k) for part in parts for k in np.unique(LABELS[part])} <= {2, 3}
    _, few = label_groups(LABELS, 12, 7, 3)
    assert few is not None
    assert sorted(set(few.tolist())) == [0, 1, 2]


def test_a_user_stays_in_one_piece():
    users = np.array(["ann", "bob", "cy", "dan", "eve", "fay"])[
        np.random.default_rng(1).integers(6, size=400)
    ]
    alone = natural(users, 6, 0)
    assert all(len(set(users[part])) == 1 for part in alone)
    pairs = natural(users, 3, 0)
    assert [len(set(users[part])) for part in pairs] == [2, 2, 2]
    assert sum(map(len, pairs)) == 400
    with pytest.raises(ValueError, match=r"num-clients = 7: must be between 1 and 6 \(the number of users\)"):
        natural(users, 7, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iid", "must be one of skewed[:N], balanced[:N], power-law[:X], dirichlet:X, "),
        ("", "must be one of skewed[:N]"),
        ("dirichlet", "must be dirichlet:X with a number > 0"),
        ("dirichlet:", "must be dirichlet:X with a number > 0"),
        ("dirichlet:0", "must be dirichlet:X with a number > 0"),
        ("dirichlet:-0.3", "must be dirichlet:X with a number > 0"),
        ("dirichlet:nan", "must be dirichlet:X with a number > 0"),
        ("dirichlet:inf", "must be dirichlet:X with a number > 0"),
        ("dirichlet:0.3:2", "must be dirichlet:X with a number > 0"),
        ("shards:1.5", "must be shards[:N] with a whole number > 0"),
        ("balanced:0", "must be balanced[:N] with a whole number > 0"),
        ("natural:3", "must be natural"),
    ],
)
def test_a_wrong_partition_is_refused(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(f'partition = {text!r}: {message}')}"):
        share_out(text, LABELS, 10, 0)


@pytest.mark.parametrize(
    ("partition", "num_clients", "message"),
    [
        ("skewed", 0, r"num-clients = 0: must be between 1 and 1000 \(the number of samples\)"),
        ("skewed", 1001, r"num-clients = 1001: must be between 1 and 1000"),
        ("skewed:9", 500, r"partition = 'skewed:9': needs 43425 samples, there are 1000"),
        ("balanced", 1001, r"num-clients = 1001: must be between 1 and 1000"),
        ("balanced:101", 10, r"partition = 'balanced:101': needs 1010 samples, there are 1000"),
        ("power-law", 1001, r"num-clients = 1001: must be between 1 and 1000"),
        ("dirichlet:1", 1001, r"num-clients = 1001: must be between 1 and 1000 \(1 sample\(s\) each\)"),
        ("dirichlet-balanced:1", 1001, r"num-clients = 1001: must be between 1 and 1000"),
        ("shards:3", 334, r"num-clients = 334: must be between 1 and 333 \(3 shard\(s\) each\)"),
        ("label-split", 9, r"partition = 'label-split:9': needs between 9 and 8 owners among 9 clients"),
        ("label-split:4", 20, r"partition = 'label-split:4': needs between 9 and 19 owners"),
        ("label-split", 110, r"num-clients = 110: must be smaller: clients would hold no sample"),
        ("groups:11", 50, r"partition = 'groups:11': must be between 1 and 10 groups"),
        ("groups:10", 9, r"partition = 'groups:10': must be between 1 and 9 groups"),
        ("groups:10", 2000, r"num-clients = 2000: must be smaller: clients would hold no sample"),
        ("natural", 5, r"partition = 'natural': the data do not name the user of each sample"),
    ],
)
def test_an_impossible_partition_is_refused(partition, num_clients, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        share_out(partition, LABELS, num_clients, 0)


def test_any_partitioner_of_flower_datasets_can_be_used():
    theirs = pytest.importorskip("flwr_datasets.partitioner")
    users = np.arange(1000) % 8
    parts = partitions.from_flower(theirs.NaturalIdPartitioner("user"), LABELS, users)
    assert [set(users[part].tolist()) for part in parts] == [{m} for m in range(8)]
    parts = partitions.from_flower(theirs.DirichletPartitioner(10, "label", alpha=0.5, seed=3), LABELS)
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
