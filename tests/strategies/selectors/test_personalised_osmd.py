"""Personalised OSMD: two samplers that learn from their own parts, and rounds that scale parts."""

from dataclasses import replace

import numpy as np
import pytest

from strategies.clients.reports import Report
from strategies.options import Faults
from strategies.rounds.logic import RoundLogic
from strategies.rounds.replies import Reply
from strategies.selectors import Feedback, Selection, create
from strategies.selectors.osmd.personalised_osmd import part_norms

from ...support.selections import feedback

M, K = 8, 6
SIZES = np.arange(1.0, M + 1)


def new(name="personalised-osmd", k=K, **settings):
    return create(
        name, M, client_sizes=SIZES, clients_per_round=k, num_rounds=40, **{"rates": "v1", **settings}
    )


def told(parts, norms):
    """The feedback of clients that report the norms (S, 2) of their orthogonal parts."""
    total = np.sqrt(((parts * norms) ** 2).sum(axis=1))
    return replace(feedback(total), part_norms=norms)


@pytest.mark.parametrize(("share", "second"), [(0.0, 1), (0.3, 2), (0.5, 3), (1.0, 5)])
def test_each_sampler_is_an_adaptive_osmd_of_its_own_part(share, second):
    """In lockstep with two plain selectors, given the W and norms of their own part."""
    both = new(personal_share=share, learning_rate_multiplier=100.0)
    plain = [new("adaptive-osmd", k, learning_rate_multiplier=100.0) for k in (K - second, second)]
    world = np.stack([SIZES[::-1], SIZES**2], axis=1)  # the parts matter to different clients
    for round in range(1, 40):
        selection = both.select(round)
        assert selection.counts.sum() == K
        assert (selection.parts.max(axis=1) == 1).all()
        norms = world[selection.clients]
        both.update(round, selection, told(selection.parts, norms))
        for part, each in enumerate(plain):
            at = selection.parts[:, part] > 0
            w = (selection.importance * selection.parts[:, part])[at]
            mine = Selection(selection.clients[at], selection.counts[at], selection.probabilities[at], w, w)
            each.update(round, mine, feedback(norms[at, part]))
    for name, each in zip(("model", "personal"), plain, strict=True):
        p = np.exp(both.state_dict()[f"{name}/log_theta"]) @ both.state_dict()[f"{name}/experts"]
        np.testing.assert_allclose(p, each.probabilities, rtol=1e-9)
    if share == 0.5:
        assert np.argmax(plain[0].probabilities) != np.argmax(plain[1].probabilities)


def test_the_samplers_draw_independently():
    selector = new(k=4)
    same = [((selection.parts > 0).all(axis=1)).sum() for selection in map(selector.select, range(300))]
    assert 0.1 < np.mean(same) < 1.0  # 2 of 8 and 2 of 8: about .44 in common; the same draws: 1.9


def test_norms_of_parts():
    parts = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.5], [1.0, 0.5], [1.0, 1.0], [0.25, 1.0]])
    reported = np.array([[9.0, 9.0], [9.0, 9.0], [3.0, 8.0], [3.0, 80.0], [np.nan, 1.0], [4.0, 2.0]])
    total = np.array([2.0, 3.0, 5.0, 5.0, 1.0, np.nan])
    got = part_norms(parts, replace(feedback(total), part_norms=reported))
    expected = [[2.0, np.nan], [np.nan, 3.0], [3.0, 8.0], [np.nan] * 2, [np.nan] * 2, [np.nan] * 2]
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(part_norms(parts, feedback(total))[2:], np.full((4, 2), np.nan))


@pytest.mark.parametrize("part_norms", [[1.0], [[1.0, 2.0], [1.0, 2.0]], [[-1.0, 2.0]]])
def test_bad_norms_of_parts_are_refused(part_norms):
    one = np.array([1.0])
    with pytest.raises(ValueError, match="part_norms"):
        Feedback(one, one, one, one, one > 0, part_norms=part_norms)


def reply(scales, first, second, **more):
    """What a client sends: its scaled sum, and a report."""
    u = scales[0] * first + scales[1] * second
    norms = {"model_norm": float(np.linalg.norm(first)), "personal_norm": float(np.linalg.norm(second))}
    return Reply({"w": u.astype(np.float32)}, Report(num_parts=2, **(norms | more)))


def test_a_round_sums_the_scaled_parts_and_learns_their_norms():
    selector = new(learning_rate_multiplier=100.0)
    logic = RoundLogic(selector, Faults(guard=False))
    rng = np.random.default_rng(4)
    parts = rng.normal(size=(2, M, 3)) * np.stack([SIZES[::-1], SIZES**2])[:, :, None]
    arrays, before = {"w": np.zeros(3, np.float32)}, selector.probabilities
    chosen = logic.choose(logic.open(1))
    selection = chosen.selection
    sent = [
        reply(scales, parts[0, m], parts[1, m])
        for m, scales in zip(selection.clients, selection.parts, strict=True)
    ]
    outcome = logic.finish(chosen, arrays, sent)
    w = selection.weights[:, None] * selection.parts
    expected = sum(w[:, j] @ parts[j, selection.clients] for j in range(2))
    np.testing.assert_allclose(outcome.arrays["w"], expected, rtol=1e-4, atol=1e-4)
    assert (selector.probabilities != before).any()


def test_a_client_that_does_not_scale_parts_is_not_used():
    logic = RoundLogic(new(), Faults(guard=True))
    chosen = logic.choose(logic.open(1))
    ones = {"w": np.ones(2, np.float32)}
    outcome = logic.finish(
        chosen, {"w": np.zeros(2, np.float32)}, [Reply(ones)] * len(chosen.selection.clients)
    )
    assert outcome.arrays is None
    assert set(outcome.record.failures.values()) == {"the client's app does not scale the parts of an update"}
