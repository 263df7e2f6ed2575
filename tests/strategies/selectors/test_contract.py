"""The contract of every selector; a new name in the registry is tested here without a further line."""

import re
from typing import NamedTuple

import numpy as np
import pytest

from strategies.designs import DESIGNS
from strategies.numerics.sampling import Draw
from strategies.selectors import Feedback, Selection, Selector, available, create, selector_type
from strategies.selectors.probability import ProbabilitySelector
from strategies.selectors.settings import Setting

from ...support.selections import (
    SETTINGS,
    SIZES,
    Asked,
    K,
    M,
    assert_same_selections,
    assert_same_state,
    feedback,
    learned,
    norm_of,
    per_client,
    play,
    sketch_of,
)

ROUNDS = 1_500
NO_DESIGN = Setting("", 0, 0, (), "")


class Case(NamedTuple):
    name: str
    settings: dict[str, object]
    lazy: bool = False  # in the form of many clients

    @property
    def kind(self):
        return selector_type(self.name)

    @property
    def draws(self):
        """Whether it draws K times from a distribution."""
        return issubclass(self.kind, ProbabilitySelector) and self.kind.fixed_size and self.name != "full"

    @property
    def exact(self):
        """Whether it makes exactly K draws."""
        return self.draws and self.settings.get("design") != "poisson"


FAST = {*((("md", design)) for design in DESIGNS), ("forecast", "balanced"), ("fed-is", "spread")}
"""Other selectors have "balanced" and "poisson" in the slow lane: all share the code that calls a design."""


def with_designs():
    for name in available():
        for design in selector_type(name).allowed_settings().get("design", NO_DESIGN).choices:
            fast = (name, design) in FAST
            if fast or design in ("balanced", "poisson"):
                marks = () if fast else pytest.mark.slow
                yield pytest.param(Case(name, {"design": design}), id=f"{name}-{design}", marks=marks)


def cases():
    """Every selector, drawing with and without replacement and by designs; the OSMD family lazy, too."""
    yield from with_designs()
    for name in available():
        yield pytest.param(Case(name, {}), id=name)
        if "replacement" in selector_type(name).allowed_settings() and name != "full":
            yield pytest.param(Case(name, {"replacement": False}), id=f"{name}-without")
    yield pytest.param(Case("flics", {"design": "numbers"}), id="flics-numbers")
    yield pytest.param(Case("md", {"design": "systematic"}, lazy=True), id="md-lazy-systematic")
    for settings, label, marks in (
        ({}, "", ()),
        ({"initial": "sizes"}, "-by-size", ()),
        ({"replacement": False}, "-without", pytest.mark.slow),
    ):
        yield pytest.param(
            Case("adaptive-osmd", settings, lazy=True), id=f"adaptive-osmd-lazy{label}", marks=marks
        )


CASES = list(cases())
drawing = pytest.mark.parametrize("make", [each for each in CASES if each.values[0].draws], indirect=True)
unbiased = pytest.mark.parametrize(
    "make",
    [
        *(each for each in CASES if each.values[0].kind.unbiased == "round"),
        *(
            pytest.param(Case(name, {"design": "systematic"}), id=f"{name}-systematic")
            for name in ("fed-is", "cluster-is")
        ),
    ],
    indirect=True,
)


@pytest.fixture(params=CASES)
def make(request, monkeypatch):
    name, settings, lazy = request.param
    if lazy:
        monkeypatch.setattr(selector_type(name), "lazy_from", 1)

    def make(num_clients=M, client_sizes=SIZES, clients_per_round=K, num_rounds=40, seed=5, **more):
        selector = create(
            name,
            num_clients,
            client_sizes=client_sizes,
            clients_per_round=clients_per_round,
            num_rounds=num_rounds,
            seed=seed,
            **(SETTINGS.get(name, {}) | per_client(name, num_clients) | settings | more),
        )
        return Asked(selector) if selector.polls_for or per_client(name, 1) else selector

    make.draws, make.exact = request.param.draws, request.param.exact
    return make


def test_declares_what_it_is(make):
    selector = make()
    assert isinstance(getattr(selector, "selector", selector), Selector)
    assert selector.name in available()
    assert selector.unbiased in {"round", "long-run", "none"}
    assert selector.polls_for <= {"loss", "update_norm", "gradient_variance", "diversity", "group"}
    assert (selector.candidates(1) is None) == (not selector.polls_for)
    assert selector.num_clients == M
    np.testing.assert_array_equal(selector.client_sizes, SIZES)
    assert selector.feedback_used <= {"diversity", "gradient_variance"}
    assert selector.equal_weight_draws in {"always", "with replacement", "never"}
    assert selector.diversity_mean in {"weighted", "plain"}
    assert set(selector.poll_settings) <= {"batch-size", "num-groups", "epsilon"}
    assert (selector.poll_settings == {}) == (selector.name not in {"cpow-d", "flics-private"})
    reports = {kind: [0.0] for kind in selector.polls_for}
    assert (selector.invitation(1, [0], reports) is not None) == selector.clients_decide
    for name, allowed in selector.allowed_settings().items():
        assert allowed.doc
        assert allowed.check(name, getattr(selector.settings, name)) == getattr(selector.settings, name)


def test_target_shares_are_of_the_available_clients_unless_the_target_is_over_time(make):
    selector = make()
    selector.remove_clients([1])
    shares = selector.target_shares(available=[0, 4, 7])
    assert abs(shares.sum() - 1) < 1e-12
    np.testing.assert_array_equal(shares, selector.target_shares(unavailable=[2, 3, 5, 6]))
    if selector.name in ("flics", "naive-group"):
        np.testing.assert_array_equal(shares, selector.probabilities)
    else:
        np.testing.assert_allclose(shares, np.array([1, 0, 0, 0, 30, 0, 0, 5]) / 36, rtol=1e-14)
        for presence in ({"available": [0, 4, 7]}, {"unavailable": [2, 3, 5, 6]}):
            np.testing.assert_allclose(
                selector.shares_of([7, 3, 0], **presence), shares[[7, 3, 0]], rtol=1e-14
            )
        np.testing.assert_allclose(selector.shares_of([4]), selector.target_shares()[[4]], rtol=1e-14)


def test_properties_cannot_be_written_through(make):
    selector = make()
    for array in (selector.client_sizes, selector.probabilities, selector.select(1).weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7
    with pytest.raises(AttributeError):
        selector.settings.replacement = False
    selector.state_dict()["client_sizes"][0] = 7
    np.testing.assert_array_equal(selector.client_sizes, SIZES)


def test_probabilities_sum_to_1_over_the_registered_clients(make):
    selector = learned(make)
    assert abs(selector.probabilities.sum() - 1) < 1e-12
    least = 0 if selector.name == "oort" else 1e-300  # oort leaves out explored clients with low utilities
    assert (selector.probabilities >= least).all()
    selector.remove_clients([1, 4])
    assert abs(selector.probabilities.sum() - 1) < 1e-12
    assert (selector.probabilities[[1, 4]] == 0).all()
    assert (np.delete(selector.probabilities, [1, 4]) >= least).all()


@pytest.mark.parametrize("who", [{}, {"available": [6, 0, 4, 7, 2]}])
def test_a_selection_is_k_draws_of_distinct_available_clients(make, who):
    selector = learned(make)
    here = [0, 2, 4, 6, 7] if who else range(M)
    for round in range(50):
        selection = selector.select(round, **who)
        assert np.isin(selection.clients, here).all()
        assert np.unique(selection.clients).size == selection.clients.size
        if make.exact:
            assert selection.counts.sum() == K
        assert ((selection.probabilities > 0) & (selection.probabilities <= 1)).all()
        assert np.isfinite(selection.weights).all()
        assert (selection.weights >= 0).all()


def test_available_and_unavailable_say_the_same(make):
    selector = learned(make)
    left = [selector.select(round, available=[7, 6, 4, 2, 0]) for round in range(20)]
    assert_same_selections(left, [selector.select(round, unavailable=[3, 1, 5]) for round in range(20)])


@drawing
@pytest.mark.parametrize("k", [K, 8])
def test_all_clients_are_taken_once_if_at_most_k_are_available(make, k):
    selector = learned(make, clients_per_round=k)
    selection = selector.select(3, available=[5, 1, 4])
    assert sorted(selection.clients) == [1, 4, 5]
    assert (selection.counts == 1).all()
    assert (selection.importance == 1).all()
    assert (selection.probabilities == 1).all()
    np.testing.assert_allclose(selection.weights, SIZES[selection.clients] / 40, rtol=1e-14)


def test_the_selection_is_empty_if_no_client_is_available(make):
    selector = learned(make)
    for selection in (
        selector.select(3, available=[]),
        selector.select(3, unavailable=range(M)),
        selector.select(3, budget=0.9),
    ):
        assert selection.clients.size == selection.weights.size == 0
        assert selector.finalize(selection, np.zeros(0, dtype=bool)).size == 0
        before = selector.state_dict()
        selector.update(3, selection, feedback([]))
        assert_same_state(before, selector.state_dict())


@drawing
@pytest.mark.parametrize(("budget", "drawn"), [(2.9, 2), (5, 5), (100, 8)])
def test_the_budget_is_this_rounds_k(make, budget, drawn):
    selector = learned(make)
    if make.exact or drawn == M:
        assert selector.select(3, budget=budget).counts.sum() == drawn


@unbiased
@pytest.mark.parametrize(("who", "response"), [({}, 1.0), ({"available": [0, 2, 4, 6, 7]}, 0.6)])
def test_the_estimate_is_unbiased(make, who, response):
    """The mean over ROUNDS is within 5 standard errors: a false alarm about once in a million.

    Under non-response the claim holds given that somebody responded, so silent rounds are drawn again.
    """
    selector = learned(make)
    rng = np.random.default_rng(9)
    updates = rng.normal(loc=[0, 1, 5], size=(M, 3))
    here = who.get("available", range(M))
    truth = np.average(updates[here], axis=0, weights=SIZES[here])
    num_parts = max(1, len(selector.part_names))  # of an update; each is unbiased
    estimates = np.empty((ROUNDS, num_parts * 3))
    truth = np.tile(truth, num_parts)
    for round in range(ROUNDS):
        selection = selector.select(round, **who)
        responded = rng.random(selection.clients.size) < response
        while responded.size and not responded.any():
            responded = rng.random(selection.clients.size) < response
        weights = selector.finalize(selection, responded)
        scaled = weights[:, None] if selection.parts is None else weights[:, None] * selection.parts
        estimates[round] = (scaled.T @ updates[selection.clients]).ravel()
    error = estimates.std(axis=0) / np.sqrt(ROUNDS)
    rounding = 1e-12 * np.abs(truth)
    assert (np.abs(estimates.mean(axis=0) - truth) <= 5 * error + rounding).all()


@drawing
def test_finalize_scales_the_weights_of_clients_that_responded(make):
    selector = learned(make)
    selection = selector.select(3, available=[0, 4, 7])
    np.testing.assert_array_equal(selector.finalize(selection, [True] * 3), selection.weights)
    expected = selection.weights * [1.5, 0, 1.5]
    np.testing.assert_array_equal(selector.finalize(selection, [True, False, True]), expected)
    np.testing.assert_array_equal(selector.finalize(selection, [False] * 3), np.zeros(3))


@drawing
def test_relabelling_clients_permutes_and_changes_nothing_else(make):
    order = np.random.default_rng(3).permutation(M)  # client i of the one is client new[i] of the other
    new = np.argsort(order)
    selector = make()
    permuted = {key: values[order] for key, values in per_client(selector.name, M).items()}
    other = make(client_sizes=SIZES[order], **permuted)
    for round in range(1, 11):
        chosen = selector.select(round)
        permuted = Selection(
            new[chosen.clients], chosen.counts, chosen.probabilities, chosen.importance, chosen.weights
        )
        told = feedback(norm_of(chosen.clients, round), sketches=sketch_of(chosen.clients, round))
        selector.update(round, chosen, told)
        other.update(round, permuted, told)
        np.testing.assert_allclose(other.probabilities[new], selector.probabilities, rtol=1e-12)
    selector.remove_clients([2])
    other.remove_clients(new[[2]])
    np.testing.assert_allclose(other.probabilities[new], selector.probabilities, rtol=1e-12)


LEARN_NORMS = ["osmd", "adaptive-osmd", "adaptive-doubling-osmd", "mabs", "vrb", "avare", "forecast"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [(name, {"replacement": replacement}) for name in LEARN_NORMS for replacement in (True, False)]
    + [("k-vib", {})],
)
def test_units_of_norms_and_sizes_change_nothing(name, settings):
    settings |= SETTINGS.get(name, {}) | {"clients_per_round": 2, "num_rounds": 100, "seed": 3}
    plain, norms_1000, sizes_7 = (
        create(name, M, client_sizes=scale * SIZES, **settings) for scale in (1, 1, 7)
    )
    for round in range(1, 51):
        chosen = plain.select(round)
        for each, unit in ((plain, 1), (norms_1000, 1000), (sizes_7, 1)):
            each.update(round, chosen, feedback(unit * norm_of(chosen.clients, round)))
            np.testing.assert_allclose(each.probabilities, plain.probabilities, rtol=1e-10)
    assert plain.probabilities.max() > 1.1 * plain.probabilities.min()


def test_the_same_seed_and_round_give_the_same_selection(make):
    selector = learned(make)
    selections = [selector.select(round) for round in range(30)]
    assert_same_selections(selections, [selector.select(round) for round in range(30)])
    if not make.draws:
        return
    assert len({tuple(selection.clients) for selection in selections}) > 5
    if not make().polls_for:  # a poll's candidates are those of the round
        draws = [selector.select(3, draw=draw) for draw in range(30)]
        assert_same_selections(draws, [selector.select(3, draw=draw) for draw in range(30)])
        assert_same_selections(draws[:1], [selector.select(3)])
        assert len({tuple(selection.clients) for selection in draws}) > 5
    other = learned(make, seed=6)
    assert [tuple(s.clients) for s in selections] != [tuple(other.select(r).clients) for r in range(30)]


def test_a_resumed_run_is_the_same_run(make):
    selector = learned(make)
    selector.add_clients([2.0, 6.0])
    selector.remove_clients([0, 8])
    selector.set_sizes([3, 9], [8.0, 1.5])
    play(selector, range(11, 15))

    resumed = make()  # created with fewer clients than the state has
    resumed.load_state_dict(selector.state_dict())
    assert resumed.num_clients == M + 2
    assert_same_state(selector.state_dict(), resumed.state_dict())
    assert_same_selections(play(selector, range(15, 25)), play(resumed, range(15, 25)))
    for each in (selector, resumed):
        each.add_clients([3.0])
        each.remove_clients([5])
    assert_same_selections(play(selector, range(25, 30)), play(resumed, range(25, 30)))
    assert_same_state(selector.state_dict(), resumed.state_dict())


def test_a_loaded_state_is_a_copy(make):
    selector, other = learned(make), make()
    state = selector.state_dict()
    other.load_state_dict(state)
    for array in state.values():
        array.fill(0)
    assert_same_state(selector.state_dict(), other.state_dict())


def test_clients_join(make):
    selector = learned(make)
    selector.add_clients([10.0, 20.0])
    assert selector.num_clients == M + 2
    np.testing.assert_array_equal(selector.client_sizes, [*SIZES, 10.0, 20.0])
    assert abs(selector.probabilities.sum() - 1) < 1e-12
    seen = np.concatenate([selection.clients for selection in play(selector, range(11, 111))])
    assert {M, M + 1} <= set(seen)
    selector.add_clients([])
    assert selector.num_clients == M + 2


def test_clients_leave_for_good(make):
    selector = learned(make)
    selector.remove_clients([4, 1])
    selector.add_clients([7.0])
    assert selector.num_clients == M + 1
    assert selector.client_sizes[4] == 30.0
    seen = np.concatenate([selection.clients for selection in play(selector, range(11, 211))])
    everyone = {0, 2, 3, 5, 6, 7, 8}
    assert set(seen) == everyone if make.draws else set(seen) <= everyone  # others may pass one over
    selector.select(3, unavailable=[4, 0])  # naming a removed client as unavailable is harmless


@drawing
def test_weights_follow_the_sizes_of_available_clients(make):
    selector = make(clients_per_round=M)
    selector.remove_clients([4])
    selector.set_sizes([1], [19.0])
    weights = selector.select(1, unavailable=[0]).weights
    np.testing.assert_allclose(weights, np.array([19, 2, 4, 1, 3, 5]) / 34, rtol=1e-14)


def test_all_clients_gone_and_one_comes_back(make):
    selector = learned(make)
    selector.remove_clients(range(M))
    assert not selector.probabilities.any()
    assert selector.select(11).clients.size == 0
    assert selector.select(11, available=[]).clients.size == 0
    other = make()
    other.load_state_dict(selector.state_dict())
    for each in (selector, other):
        each.add_clients([3.0])
        np.testing.assert_allclose(each.probabilities, [0.0] * M + [1.0], rtol=1e-15)
        assert play(each, [12])[0].clients.tolist() == [M]


def test_one_client(make):
    selector = make(num_clients=1, client_sizes=[3.0], clients_per_round=1)
    for selection in play(selector, range(1, 6)):
        assert selection.clients.tolist() == [0]
        assert selection.weights.tolist() == [1.0]
    np.testing.assert_allclose(selector.probabilities, [1.0], rtol=1e-15)
    selector.add_clients([1.0, 1.0, 1.0])
    play(selector, range(6, 30))
    assert abs(selector.probabilities.sum() - 1) < 1e-12


def test_nothing_explored_yet(make):
    selector = make(client_sizes=None)
    np.testing.assert_array_equal(selector.client_sizes, np.ones(M))
    assert (selector.probabilities > 0).all()
    if make.exact:
        assert selector.select(1).counts.sum() == K


@drawing
@pytest.mark.parametrize("first", [True, False])
def test_any_norm_leaves_a_distribution(make, first):
    for norms in (
        [0.0] * 4,
        [np.nan] * 4,
        [np.inf] * 4,
        [0.0, np.nan, np.inf, -np.inf],
        [1e-320, 0.0, 1e308, 5.0],
        [1e308] * 4,
    ):
        selector = make(clients_per_round=4) if first else learned(make, clients_per_round=4)
        for round in range(20, 30):
            selection = selector.select(round)
            selector.update(round, selection, feedback(np.resize(norms, selection.clients.size)))
            assert abs(selector.probabilities.sum() - 1) < 1e-12
            assert (selector.probabilities > 0).all()
        play(selector, range(30, 35))
        assert abs(selector.probabilities.sum() - 1) < 1e-12


@drawing
@pytest.mark.parametrize("norms", [[np.nan] * 3, [np.inf] * 3])
def test_unusable_norms_teach_nothing(make, norms):
    selector = learned(make)
    selection = selector.select(11, available=[0, 3, 5])
    before = selector.state_dict()
    selector.update(11, selection, feedback(norms))
    selector.update(11, selection, feedback([4.0, 5.0, 6.0], responded=[False] * 3))
    assert_same_state(before, selector.state_dict())


@drawing
def test_a_missing_norm_counts_like_no_answer(make):
    left, right = learned(make), learned(make)
    selection = left.select(11, available=[0, 3, 5])
    left.update(11, selection, feedback([4.0, np.nan, 6.0]))
    right.update(11, selection, feedback([4.0, 9.0, 6.0], responded=[True, False, True]))
    assert_same_state(left.state_dict(), right.state_dict())


@drawing
def test_feedback_of_a_client_removed_meanwhile_is_left_out(make):
    left, right = learned(make), learned(make)
    selection = left.select(11, available=[0, 3, 5])
    for each in (left, right):
        each.remove_clients([3])
    left.update(11, selection, feedback([4.0, 9.0, 6.0]))
    right.update(11, selection, feedback([4.0, np.nan, 6.0]))
    assert_same_state(left.state_dict(), right.state_dict())
    assert left.probabilities[3] == 0


CREATE_ERRORS = [
    ({"num_clients": 0}, ValueError, "num_clients = 0: must be >= 1"),
    ({"num_clients": 2.5}, TypeError, "num_clients = 2.5"),
    ({"client_sizes": [1.0] * 7}, ValueError, r"client_sizes has shape \(7,\): must be \(8,\)"),
    ({"client_sizes": [[1.0] * 8]}, ValueError, "client_sizes has shape"),
    ({"client_sizes": [1.0] * 7 + [0.0]}, ValueError, r"client_sizes holds 0\.0"),
    ({"client_sizes": [1.0] * 7 + [-2.0]}, ValueError, r"client_sizes holds -2\.0"),
    ({"client_sizes": [1.0] * 7 + [np.nan]}, ValueError, "client_sizes holds nan"),
    ({"client_sizes": [1.0] * 7 + [np.inf]}, ValueError, "client_sizes holds inf"),
    ({"client_sizes": ["a"] * 8}, TypeError, "client_sizes"),
    ({"clients_per_round": 12}, ValueError, r"clients_per_round = 12: must be between 1 and 8 \(the number"),
    ({"clients_per_round": 0}, ValueError, "clients_per_round = 0"),
    ({"clients_per_round": True}, TypeError, "clients_per_round = True"),
    ({"num_rounds": 0}, ValueError, "num_rounds = 0"),
    ({"num_rounds": 10.0}, TypeError, r"num_rounds = 10\.0"),
    ({"seed": -1}, ValueError, "seed = -1"),
    ({"no_such": 3}, ValueError, "no_such = 3: {name} has no such setting; its settings are: {settings}$"),
    ({"replacement": 1}, TypeError, "replacement = 1: must be True or False"),
]


def test_creation_names_the_bad_argument(make):
    selector = make()
    allowed = selector.allowed_settings()
    settings = ", ".join([*allowed, *selector.per_client]) or "none"
    for arguments, kind, text in CREATE_ERRORS:
        if "replacement" in allowed or "replacement" not in arguments:
            expected = text.replace("{name}", selector.name).replace("{settings}", settings)
            with pytest.raises(kind, match=expected):
                make(**arguments)


def choose(round=3, **arguments):
    return lambda selector, selection: selector.select(round, **arguments)


CALL_ERRORS = {
    "round": (choose(round=-1), "round = -1"),
    "round type": (choose(round=1.5), r"round = 1\.5"),
    "both": (choose(available=[1], unavailable=[2]), "available = .*must be at most one"),
    "available range": (choose(available=[1, 8]), "available holds 8: must be between 0 and 7"),
    "available negative": (choose(available=[-1]), "available holds -1"),
    "available twice": (choose(available=[1, 2, 1]), "available holds 1 more than once"),
    "available removed": (choose(available=[0, 2]), "available holds 2: that client was removed"),
    "available mask": (choose(available=[True] * 8), "available has dtype bool"),
    "available floats": (choose(available=[1.0]), "available has dtype float64"),
    "available shape": (choose(available=[[1]]), r"available has shape \(1, 1\)"),
    "unavailable range": (choose(unavailable=[8]), "unavailable holds 8"),
    "budget": (choose(budget=-1), "budget = -1"),
    "budget nan": (choose(budget=np.nan), "budget = nan"),
    "budget inf": (choose(budget=np.inf), "budget = inf"),
    "budget type": (choose(budget="3"), "budget = '3'"),
    "responded": (lambda s, chosen: s.finalize(chosen, [True]), r"responded has shape \(1,\)"),
    "responded type": (lambda s, chosen: s.finalize(chosen, [1, 0, 1]), "responded has dtype int64"),
    "update round": (lambda s, chosen: s.update(-4, chosen, feedback([1, 1, 1])), "round = -4"),
    "update length": (
        lambda s, chosen: s.update(3, chosen, feedback([1, 1])),
        r"feedback.responded has shape \(2,\)",
    ),
    "norm sign": (lambda s, chosen: s.update(3, chosen, feedback([1, -2, 1])), r"update_norms holds -2\.0"),
    "other sizes": (
        lambda s, chosen: s.update(
            3, Selection([9, 1, 3], [1] * 3, [0.1] * 3, [1] * 3, [1] * 3), feedback([1, 1, 1])
        ),
        "selection.clients holds 9",
    ),
    "join size": (lambda s, chosen: s.add_clients([1.0, 0.0]), r"client_sizes holds 0\.0"),
    "join setting": (lambda s, chosen: s.add_clients([1.0], groups=[1]), "groups"),
    "sizes length": (lambda s, chosen: s.set_sizes([1, 3], [1.0]), r"client_sizes has shape \(1,\)"),
    "sizes sign": (lambda s, chosen: s.set_sizes([1], [-1.0]), r"client_sizes holds -1\.0"),
    "sizes range": (lambda s, chosen: s.set_sizes([8], [1.0]), "clients holds 8"),
    "leave range": (lambda s, chosen: s.remove_clients([1, 8]), "clients holds 8"),
    "leave again": (lambda s, chosen: s.remove_clients([1, 2]), "clients holds 2: that client was removed"),
    "leave twice": (lambda s, chosen: s.remove_clients([1, 1]), "clients holds 1 more than once"),
}


def test_a_bad_call_names_the_argument_and_changes_nothing(make):
    selector = learned(make)
    selector.remove_clients([2])
    selection = selector.select(3, available=[1, 3, 5])
    before = selector.state_dict()
    for call, text in CALL_ERRORS.values():
        if make.draws or not ("responded" in text or "groups" in text):  # else another number, or has groups
            with pytest.raises((TypeError, ValueError), match=text):
                call(selector, selection)
    assert_same_state(before, selector.state_dict())


BAD_STATES = {
    "missing key": (lambda state: state.pop("registered"), "state has keys"),
    "extra key": (lambda state: state.update(more=np.zeros(2)), "state has keys"),
    "other name": (
        lambda state: state.update(selector=np.frombuffer(b"other", np.uint8)),
        "b'other': must be",
    ),
    "short array": (
        lambda state: state.update(registered=state["registered"][1:]),
        r"state\['registered'\] has shape \(7,\)",
    ),
    "dtype": (lambda state: state.update(registered=np.ones(M)), r"state\['registered'\] has dtype float64"),
    "dimensions": (
        lambda state: state.update(registered=state["registered"][None]),
        r"state\['registered'\] has shape \(1, 8\)",
    ),
    "sizes": (lambda state: state.update(client_sizes=-SIZES), r"state\['client_sizes'\] holds"),
}


def test_a_bad_state_is_refused_and_changes_nothing(make):
    selector, good = make(), learned(make).state_dict()
    before = selector.state_dict()
    for spoil, text in BAD_STATES.values():
        state = dict(good)
        spoil(state)
        with pytest.raises(ValueError, match=text):
            selector.load_state_dict(state)
    assert_same_state(before, selector.state_dict())


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        ValueError, match=re.escape(f"selector = 'best': must be one of {', '.join(available())}")
    ):
        create("best", 4, clients_per_round=1)


def test_what_select_returns_is_read_only_and_would_pass_the_checks(make):
    selector = learned(make)
    for round, arguments in enumerate(({}, {"available": [1, 3, 6]}, {"unavailable": [0]}, {"budget": 0})):
        selection = selector.select(round, **arguments)
        fields = {name: getattr(selection, name) for name in Selection.__dataclass_fields__}
        again = Selection(**fields)
        for name, array in fields.items():
            if array is None:  # no parts
                assert name == "parts"
                assert not selector.part_names or not selection.clients.size
                continue
            assert not array.flags.writeable
            assert array.dtype == getattr(again, name).dtype


def test_a_draw_spoilt_by_overflow_is_refused():
    draw = Draw(np.array([4]), np.array([1]), np.array([1e-310]), np.array([np.inf]))
    with pytest.raises(ValueError, match="importance holds inf"):
        Selection.of_draw(draw, draw.importance * 0.1)


def test_selection_and_feedback_are_checked_copies():
    clients = np.array([3, 1])
    selection = Selection(clients, [1, 2], [0.2, 0.4], [1.0, 2.0], [0.5, 0.5])
    clients[0] = 9
    assert selection.clients.tolist() == [3, 1]
    for field, bad in (
        ("clients", [1, 1]),
        ("counts", [0, 1]),
        ("counts", [1.0, 1.0]),
        ("probabilities", [0.5, 1.5]),
        ("importance", [np.nan, 1.0]),
        ("weights", [np.inf, 1.0]),
        ("weights", [1.0]),
    ):
        with pytest.raises((TypeError, ValueError), match=field):
            Selection(**(vars(selection) | {field: bad}))
    reported = vars(feedback([1.0, 2.0]))
    for field, bad in (
        ("update_norms", [-1.0, 1.0]),
        ("gradient_variances", [-1.0, 1.0]),
        ("diversities", [1.0]),
        ("losses", [[1.0, 2.0]]),
        ("responded", [1, 0]),
    ):
        with pytest.raises((TypeError, ValueError), match=field):
            Feedback(**(reported | {field: bad}))
    assert np.isneginf(feedback([-np.inf]).update_norms)  # not finite: not reported
