"""Which claims of clients are believed at each level of the guard, and what is said about the others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.grid import InProcessGrid
from strategies.options import Buffered, Checkpoints, Faults, GuardSettings, Overrides
from strategies.rounds.guard.claimed_sizes import (
    FAR,
    ClaimLog,
    believed_numbers,
    believed_sizes,
    judged_sizes,
)
from strategies.selectors import create

from ....support import federations

SANE, STRICT = GuardSettings(), GuardSettings(level="strict")
REPORTED = [  # of the file t_sizes.py: honest federations whose first client holds more than the others
    *([100 * ratio] + [100] * 5 for ratio in (2, 3, 4, 5, 10, 10_000)),
    [500, 90, 110, 95, 105, 100],
    [2000, 90, 110, 95, 105, 100],
    [5000, 800, 1200, 300, 2500, 400],
    [20000, 800, 1200, 300, 2500, 400],
    [500] + [100] * 9,
    [300] + [100] * 9,
    [1000] * 3 + [100] * 7,
    [60000, 600, 600, 600],
    [984] + [10] * 5 + [50, 100, 100, 143],
    [1] * 130 + [22] * 20 + [74] * 10,
    [10_000, 1],
]


@st.composite
def honest_sizes(draw):
    """Draw the data sizes of an honest federation of 1 to 300 clients."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    m = draw(st.integers(1, 300))
    kind = draw(st.sampled_from(["equal", "one large", "lognormal", "power law", "two"]))
    scale = draw(st.integers(1, 1000))
    if kind == "equal":
        return [scale] * m
    if kind == "one large":
        sizes = [scale] * m
        sizes[int(rng.integers(m))] *= draw(st.integers(2, 10_000))
        return sizes
    if kind == "two":
        return [scale, scale * draw(st.integers(1, 10_000))]
    if kind == "lognormal":
        spread = draw(st.floats(0, 2))
        return [max(1, round(scale * x)) for x in rng.lognormal(0, spread, m).tolist()]
    shape = draw(st.floats(1, 3))
    return [max(1, round(scale * m**shape / rank**shape)) for rank in range(1, min(m, 100) + 1)]


def client(size, delta=1.0):
    """Return a client that reports its data size only with its replies; a callable gets the round."""

    def handle(message):
        if message.metadata.message_type != "train":
            raise RuntimeError("no handler")
        claim = size(int(message.content["config"]["server-round"])) if callable(size) else size
        w = federations.weights(message) + np.float32(delta)
        return federations.reply(message, w, num_examples=float(claim), train_loss=1.0)

    return handle


def play(sizes, rounds, k, selector="full", **options):
    """Return the records, the strategy and the model; the update of client 0 is 1, of the others 0."""
    grid = InProcessGrid(latency=lambda message: 0.1)
    for index, size in enumerate(sizes):
        grid.add_node(handler=client(size, float(index == 0)), name=f"site-{index:03}")
    options = {"clients_per_round": k, "min_available_clients": len(sizes), "polling": None, **options}
    w, records, strategy, _ = federations.play(grid, selector, rounds, federations.model(*[0] * 4), **options)
    return records, strategy, w


def said(caplog):
    return [record.getMessage() for record in caplog.records if " claims the " in record.getMessage()]


@given(honest_sizes())
def test_honest_sizes_are_believed_exactly(sizes):
    found = judged_sizes(sizes, None, SANE)
    assert found.used.tolist() == sizes
    assert found.remarks == {}
    assert believed_numbers(sizes, None, SANE).tolist() == sizes


@settings(max_examples=20, deadline=None)
@given(honest_sizes())
def test_shares_of_a_run_are_those_of_the_data(sizes):
    """In every round of `full`, and also in the first, when sizes come only with the replies."""
    records, _, _ = play(sizes, 2, len(sizes))
    for record in records:
        shares = np.array(sizes, np.float64)[record.selection.clients] / sum(map(float, sizes))
        assert record.weights.tolist() == shares.tolist()
        assert not record.clipped


@pytest.mark.parametrize("sizes", REPORTED, ids=lambda sizes: f"{sizes[0]} of {sum(sizes)}")
def test_a_large_honest_client_has_its_share_in_every_round(sizes, caplog):
    records, strategy, _ = play(sizes, 4, len(sizes))
    assert [record.weights[0] for record in records] == [sizes[0] / sum(sizes)] * 4
    assert [record.clipped for record in records] == [{}] * 4
    assert strategy.selector.client_sizes.tolist() == sizes
    assert said(caplog) == []


@given(st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=9))
def test_a_claim_is_ignored_beyond_the_median_of_the_others(claims):
    found = judged_sizes(claims, None, SANE)
    for index, claim in enumerate(claims):
        others = claims[:index] + claims[index + 1 :]
        ignored = bool(others) and claim > FAR * np.median(others)
        assert found.is_own[index] == (not ignored)
        assert found.used[index] == (found.mean if ignored else claim)


def test_impossible_and_absurd_claims_count_as_no_claim_and_declarations_always_count():
    claims = [100.0, 1e9, -5.0, np.inf, 1e101, np.nan, 300.0]
    found = judged_sizes(claims, None, SANE)
    assert found.used.tolist() == [100, 200, 200, 200, 200, 200, 300]
    assert list(found.remarks) == [1, 2, 3, 4]
    assert found.remarks[1] == "data size 1e+09 ignored: 200, the mean of the others, is used"
    for guard in (SANE, STRICT):
        declared = judged_sizes(claims, [np.nan, 1e9, *[np.nan] * 5], guard)
        assert declared.used[1] == 1e9
        assert 1 not in declared.remarks
    # A declared size is one of the others' sizes: with it, the claim of client 1 is one of two large ones.
    assert believed_sizes([1e9, 1e9, 1.0], [1e9, np.nan, np.nan], SANE).tolist() == [1e9, 1e9, 1.0]
    assert np.isnan(believed_numbers([1e9, 0.0, 1.0, 2.0], None, SANE)).tolist() == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("level", "claim", "why"), [("strict", 260, "clipped to"), ("sane", 1e9, "ignored:")]
)
def test_a_claim_that_is_not_used_stands_in_the_record_and_is_warned_of_once(level, claim, why, caplog):
    sizes = [claim, 100, 110, 90, 95, 105, 100, 100]
    records, strategy, _ = play(sizes, 4, 8, faults=Faults(guard=level))
    assert strategy.data_sizes.claimed[0] == claim
    assert strategy.data_sizes.used[0] < claim
    for record in records:
        assert list(record.clipped) == [0]
        assert record.clipped[0].startswith(f"data size {claim:g} {why}")
        assert record.weights[0] < claim / sum(sizes)
    (line,) = said(caplog)
    assert line.startswith(f"site-000 claims the data size {claim:.15g}, and ")
    assert f'Overrides(sizes={{"site-000": {claim:.15g}}}), client-sizes' in line
    caplog.clear()
    declared = Overrides(sizes={"site-000": claim})
    records, _, _ = play(sizes, 2, 8, faults=Faults(guard=level), overrides=declared)
    assert [record.weights[0] for record in records] == [claim / sum(sizes)] * 2
    assert said(caplog) == []
    assert not records[-1].clipped


def test_a_client_that_changes_its_claim_does_not_flood_the_log(caplog):
    def swings(number):
        return 1e9 if number % 2 else 1e11

    records, _, _ = play([swings, 100, 110, 90, 95, 105, lambda number: 1e10 + number], 12, 7)
    assert all(list(record.clipped) == [0, 6] for record in records)
    lines = said(caplog)
    assert len([line for line in lines if line.startswith("site-000")]) == ClaimLog.MOST
    assert len([line for line in lines if line.startswith("site-006")]) == 1  # no material change


def test_many_false_claims_at_once_are_few_lines():
    claims = np.full(100, 100.0)
    claims[:30] = 1e10
    lines = ClaimLog().of_sizes(judged_sizes(claims, None, SANE), str)
    assert len(lines) == ClaimLog.AT_ONCE + 1
    assert lines[-1] == "20 more clients claim a data size that is not used as claimed"


def test_costs_are_judged_as_sizes_are():
    claims, nothing = np.array([1e9, 1.0, 2.0, 3.0, 0.0]), np.full(5, np.nan)
    used = believed_numbers(claims, None, SANE)
    assert np.isnan(used[0])
    (line,) = ClaimLog().of_numbers("costs", claims, used, nothing, "abcde".__getitem__)
    assert line.startswith("a claims the cost 1000000000, and the claim is ignored.")
    assert 'Overrides(settings={"costs": {"a": 1000000000}}), client-settings' in line


@pytest.mark.parametrize("selector", ["uniform", "md", "adaptive-osmd", "forecast"])
def test_the_first_round_weights_its_clients_as_fedavg_does(selector):
    """Sizes come with the replies. The weights of K different clients are their shares among the K."""
    sizes = np.array([5000, 800, 1200, 300, 2500, 400, 10, 70])
    own = {"replacement": False} if selector in ("uniform", "md", "forecast") else {}
    (record,), _, _ = play(sizes.tolist(), 1, 4, selector, selector_settings=own)
    held = sizes[record.selection.clients]
    if (record.selection.counts == 1).all() and np.ptp(record.selection.importance) == 0:
        np.testing.assert_allclose(record.weights, held / held.sum(), rtol=1e-12)
    drawn = held * record.selection.importance
    np.testing.assert_allclose(record.weights, drawn / (held.mean() * 8), rtol=1e-12)


@pytest.mark.parametrize("selector", ["uniform", "md", "adaptive-osmd", "vrb"])
def test_weights_with_new_sizes_are_unbiased_for_the_new_shares(selector):
    """The draws are those of the old sizes; the sizes of all clients change before the round ends."""
    old, new = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([9.0, 1.0, 4.0, 2.0, 4.0])
    total, rounds = np.zeros(5), 4000
    made = create(selector, 5, client_sizes=old, clients_per_round=2, num_rounds=10, seed=1)
    for number in range(rounds):
        made.set_sizes(np.arange(5), old)
        selection = made.select(number)
        made.set_sizes(np.arange(5), new)
        np.add.at(total, selection.clients, made.reweighted(selection))
    np.testing.assert_allclose(total / rounds, new / new.sum(), atol=0.03)


def test_averaging_by_sizes_uses_the_sizes_in_the_replies():
    sizes = [100, 300, 600, 50]
    (record,), _, _ = play(sizes, 1, 2, "rpow-d", selector_settings={"averaging": "sizes"})
    held = np.array(sizes)[record.selection.clients]
    np.testing.assert_allclose(record.weights, held / held.sum())


def test_the_weights_of_buffered_rounds_follow_the_sizes():
    """Each of four equally fast clients trains in each round."""
    sizes = [700, 100, 100, 100]
    records, _, _ = play(
        sizes,
        3,
        4,
        "uniform",
        mode=Buffered(concurrency=4, staleness_power=0.0),
        faults=Faults(silence=False),
    )
    for record in records:
        assert record.weights[record.selection.clients == 0].sum() == pytest.approx(0.7, rel=1e-9)


@pytest.mark.parametrize(("selector", "level"), [("uniform", "sane"), ("md", "strict")])
def test_a_resumed_run_has_the_same_weights(tmp_path, selector, level):
    sizes = [500, lambda number: 100 + 20 * number, 110, 90, 95, 1e9, 105, 100]
    faults = Faults(guard=level)
    whole, _, model = play(sizes, 6, 3, selector, faults=faults)
    first, _, _ = play(sizes, 3, 3, selector, faults=faults, num_rounds=6, checkpoints=Checkpoints(tmp_path))
    rest, _, resumed = play(
        sizes, 6, 3, selector, faults=faults, num_rounds=6, checkpoints=Checkpoints(tmp_path, resume=True)
    )
    for record, same in zip([*first, *rest], whole, strict=True):
        assert record.selection.clients.tolist() == same.selection.clients.tolist()
        assert record.weights.tolist() == same.weights.tolist()
        assert record.clipped == same.clipped
    assert (model == resumed).all()
