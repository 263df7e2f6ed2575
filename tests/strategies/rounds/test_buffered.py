"""Buffered rounds on arrays: credits, weights, and the long-run shares of clients with different speeds."""

import heapq
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.options import Buffered, Faults
from strategies.rounds.buffered.buffer import TRIES, Buffer
from strategies.rounds.logic import RoundLogic
from strategies.rounds.replies import Reply
from strategies.rounds.stages import Opened
from strategies.rounds.trained_clients import Rebased
from strategies.selectors import Selection, create

NOBODY = np.empty(0, dtype=np.int64)


class Run(NamedTuple):
    """What a simulated run applied."""

    weights: np.ndarray  # (M,) the sum of the weights of each client's updates
    arrivals: np.ndarray  # (M,) how many updates of each client were used
    rounds: int
    buffer: Buffer
    staleness: np.ndarray  # (M,) the mean staleness of each client's updates


def simulated(
    seconds,
    mode,
    rounds,
    *,
    selector="md",
    sizes=None,
    seed=0,
    failing=0.0,
    **settings,
):
    """Play buffered rounds of clients that take ``seconds`` (M,) each, without noise.

    Each training fails with the probability ``failing``.
    """
    m, rng = seconds.size, np.random.default_rng(seed)
    if selector == "lipschitz-is":
        settings["lipschitz"] = np.ones(m)
    sizes = np.ones(m) if sizes is None else sizes
    made = create(
        selector, m, client_sizes=sizes, clients_per_round=4, num_rounds=rounds, seed=seed, **settings
    )
    logic = RoundLogic(made, Faults(guard=False, silence=False), mode=mode)
    buffer = logic.buffer
    weights, arrivals, stale = np.zeros(m), np.zeros(m), np.zeros(m)
    flying = []
    now, asked = 0.0, 0
    for number in range(1, rounds + 1):
        opened = logic.open(number)
        buffer.begin(number)
        failed = set()
        while not buffer.is_full:
            for client in logic.fill(opened):
                asked += 1
                heapq.heappush(flying, (now + seconds[client], asked, client))
            if not buffer.num_training:
                break
            now, _, client = heapq.heappop(flying)
            usable = not buffer.is_too_stale(client) and rng.random() >= failing
            buffer.end(client, usable=usable)
            if not usable:
                failed.add(client)
        selection, staleness = buffer.take()
        used = (staleness <= mode.max_staleness) & ~np.isin(selection.clients, list(failed))
        each = made.finalize(selection, used) * buffer.factors(staleness)
        weights[selection.clients] += each
        arrivals[selection.clients] += used
        stale[selection.clients] += staleness
    return Run(weights, arrivals, rounds, buffer, stale / np.maximum(arrivals, 1))


# A clients's speed and its update belong together: the slow quarter has updates of 1, all others of 0.
M = 20
SECONDS = np.where(np.arange(M) % 4 == 0, 10.0, 1.0)
UPDATES = (SECONDS > 5).astype(float)
FAIR = Buffered(concurrency=8, size=4, staleness_power=0, max_staleness=10**6)


@pytest.mark.parametrize(
    ("selector", "settings"),
    [("md", {}), ("uniform", {}), ("uniform", {"replacement": False}), ("forecast", {})],
)
def test_long_run_shares_are_the_targets_although_speeds_differ_tenfold(selector, settings):
    """The bound: the credits of n draws have a standard deviation of at most σ sqrt(n), where σ² is the
    variance of one draw. Five of them, and the draws of the updates in flight, are allowed."""
    sizes = np.linspace(1, 3, M)
    shares = sizes / sizes.sum()
    run = simulated(SECONDS, FAIR, 1200, selector=selector, sizes=sizes, **settings)
    truth = float(shares @ UPDATES)
    p = np.full(M, 1 / M) if selector == "uniform" else shares
    sigma = np.sqrt(((shares * UPDATES) ** 2 / p).sum() - truth**2)
    pending = 10 * FAIR.concurrency  # credits in flight: a slow training sees about ten fast ones
    bound = 5 * sigma / np.sqrt(run.buffer.num_draws) + pending / run.buffer.num_draws
    assert bound < 0.05
    measured = float(run.weights @ UPDATES) / run.rounds
    assert abs(measured - truth) < bound
    assert abs(run.weights.sum() / run.rounds - 1) < bound  # steps are neither longer nor shorter than rounds


def test_full_participation_has_the_same_shares():
    run = simulated(SECONDS, FAIR, 500, selector="full")
    assert run.weights / run.weights.sum() == pytest.approx(np.full(M, 1 / M), rel=0.02)


def test_weights_of_the_idle_clients_only_are_biased_to_fast_clients():
    """FedBuff's weights fail the same test by far."""
    run = simulated(SECONDS, Buffered(**{**vars(FAIR), "count_busy": False}), 600)
    truth = float(UPDATES.mean())
    assert truth == 0.25
    assert float(run.weights @ UPDATES) / run.rounds < 0.75 * truth


def test_the_staleness_factor_takes_weight_from_slow_clients_and_the_mean_staleness_says_how_much():
    run = simulated(SECONDS, Buffered(**{**vars(FAIR), "staleness_power": 0.5}), 600)
    slow, fast = UPDATES == 1, UPDATES == 0
    assert run.staleness[slow].min() > 5 * run.staleness[fast].max()
    share = run.weights[slow].sum() / run.weights.sum()
    assert share < 0.2  # instead of 0.25
    assert run.weights.sum() / run.rounds < 1


def test_a_bound_of_staleness_rejects_slow_clients():
    mode = Buffered(concurrency=8, size=4, staleness_power=0, max_staleness=3)
    run = simulated(SECONDS, mode, 300)
    assert run.weights[UPDATES == 1].sum() < 0.05 * run.weights.sum()


def test_slow_clients_send_fewer_updates_with_larger_weights():
    run = simulated(SECONDS, FAIR, 600)
    each = run.weights / run.arrivals
    slow, fast = UPDATES == 1, UPDATES == 0
    assert run.arrivals[slow].mean() < 0.6 * run.arrivals[fast].mean()
    assert each[slow].mean() > 1.5 * each[fast].mean()


def test_failures_that_hit_all_clients_equally_bias_the_aggregate_by_a_few_percent():
    """As the docstring of `Buffer` says. The standard errors of the sum and of the shares are below .02."""
    runs = [simulated(SECONDS, FAIR, 200, seed=seed, failing=0.25) for seed in range(3)]
    mean = np.mean([run.weights / run.rounds for run in runs], axis=0)
    slow = SECONDS > 5
    assert 0.94 < mean.sum() < 1.01
    assert abs(mean[slow].sum() / slow.mean() - 1) < 0.1
    assert abs(mean[~slow].sum() / (~slow).mean() - 1) < 0.1


# --- by hand ------------------------------------------------------------------------------------------------


def opened(number=1, among=10, **more):
    return Opened(number, None, None, None, None, among, NOBODY, NOBODY, **more)


def drawing(*draws):
    """Return selections that are written down; the weight of each client is 1/n of the budget n."""
    rest = list(draws)

    def choose(now):
        clients = rest.pop(0)
        assert now.budget is not None
        ones = np.ones(len(clients))
        return Selection(
            np.array(clients, dtype=np.int64),
            np.ones(len(clients), dtype=np.int64),
            ones / 10,
            10 * ones / now.budget,
            ones / now.budget,
        )

    return choose


def tenth(clients):
    """Each client has a tenth of the data."""
    return np.full(clients.size, 0.1)


def test_draws_also_count_for_busy_clients():
    buffer = Buffer(Buffered(concurrency=2), 2)
    buffer.begin(1)
    assert buffer.fill(opened(), drawing([3, 5]), tenth) == [3, 5]
    buffer.end(5, usable=True)
    # One place is free. Client 3 trains and client 5 waits for the end of the round: each gets 0.1, and the
    # drawn client stands for the remaining 0.8.
    assert buffer.fill(opened(), drawing([7]), tenth) == [7]
    buffer.end(3, usable=True)
    assert buffer.is_full
    selection, staleness = buffer.take()
    assert selection.clients.tolist() == [5, 3]
    assert selection.counts.tolist() == [1, 1]
    # Two draws with 1/2 each, and 0.1 of the third. 3 draws, 3 asked: an update stands for one draw.
    assert selection.weights == pytest.approx([(2 * 0.5 + 0.1) / 2] * 2)
    assert selection.importance == pytest.approx([(2 * 5 + 1) / 2] * 2)
    assert staleness.tolist() == [0, 0]
    buffer.begin(2)
    assert buffer.fill(opened(2), drawing([5]), tenth) == [5]
    assert buffer.staleness(7) == 1
    assert buffer.staleness(5) == 0
    buffer.end(7, usable=True)
    assert buffer.take()[0].weights == pytest.approx([(0.8 + 0.1) / (4 / 4)])


def test_without_counting_the_busy_the_drawn_stand_for_the_idle_only():
    buffer = Buffer(Buffered(concurrency=2), 2, credits_busy=False)
    buffer.begin(1)
    buffer.fill(opened(), drawing([3, 5]), tenth)
    buffer.end(5, usable=True)
    buffer.fill(opened(), drawing([7]), tenth)
    buffer.end(7, usable=True)
    assert buffer.take()[0].weights.tolist() == [0.5, 0.5]


def test_more_draws_than_places_wait_for_a_place():
    buffer = Buffer(Buffered(concurrency=2), 2)
    buffer.begin(1)
    assert buffer.fill(opened(), drawing([0, 1, 2, 3]), tenth) == [0, 1]
    buffer.end(1, usable=False)
    assert buffer.fill(opened(), drawing(), tenth) == [2]
    assert not buffer.is_full


def test_nobody_is_drawn_if_nobody_is_idle_and_empty_selections_end():
    buffer = Buffer(Buffered(concurrency=3), 2)
    buffer.begin(1)
    assert buffer.fill(opened(among=2), drawing([0, 1]), tenth) == [0, 1]
    assert buffer.fill(opened(among=2), drawing(), tenth) == []
    assert buffer.fill(opened(among=3), drawing(*[[]] * TRIES), tenth) == []
    assert buffer.num_draws == 3 + TRIES


def test_the_selector_sees_the_idle_clients():
    buffer = Buffer(Buffered(concurrency=3), 2)
    buffer.begin(1)
    seen = []

    def choose(now):
        seen.append(now)
        return drawing([4])(now) if len(seen) == 1 else drawing([2, 6])(now)

    asked = buffer.fill(Opened(1, None, None, np.array([2, 4, 6]), None, 3, NOBODY, NOBODY), choose, tenth)
    assert asked == [4, 2, 6]
    assert [each.draw for each in seen] == [0, 1]
    assert [each.budget for each in seen] == [3, 2]
    assert [each.available.tolist() for each in seen] == [[2, 4, 6], [2, 6]]
    assert seen[1].num_available == 2
    buffer.end(2, usable=True)
    away = Opened(1, None, None, None, np.array([4, 9]), 8, NOBODY, NOBODY)
    buffer.fill(away, lambda now: seen.append(now) or drawing([7])(now), tenth)
    assert seen[2].unavailable.tolist() == [2, 4, 6, 9]
    assert seen[2].num_available == 6


def test_an_overdue_client_frees_its_place_and_its_update_still_counts():
    buffer = Buffer(Buffered(concurrency=1), 1)
    buffer.begin(1)
    assert buffer.fill(opened(), drawing([3]), tenth) == [3]
    buffer.free_place(3)
    assert buffer.fill(opened(), drawing([4]), tenth) == [4]
    assert buffer.in_flight == {3: 1, 4: 1}
    buffer.end(3, usable=True)
    assert buffer.take()[0].weights == pytest.approx([1.1])


def test_rebased_models_hold_the_update_and_keep_the_types():
    base = {"w": np.array([1, 2], np.float32), "n": np.array([3, 200], np.uint8), "b": np.array([True])}
    now = {"w": np.array([5, 5], np.float32), "n": np.array([4, 201], np.uint8), "b": np.array([False])}
    sent = {"w": np.array([1.5, 1], np.float64), "n": np.array([5, 201], np.uint8), "b": np.array([True])}
    model = Rebased(sent, base, now)
    assert list(model) == ["w", "n", "b"]
    assert model["w"].tolist() == [5.5, 4]
    assert model["n"].tolist() == [6, 202]
    assert model["b"].tolist() == [0]
    assert model["w"].dtype == np.float32


@given(
    st.lists(st.floats(0.1, 100), min_size=2, max_size=8),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
)
def test_every_draw_counts_once(seconds, concurrency, size, seed):
    """The credits of the used updates and of those in flight are all draws, whatever the speeds are."""
    clients = len(seconds)
    mode = Buffered(concurrency=max(concurrency, size), size=size, staleness_power=0, max_staleness=10**6)
    taken = 0.0
    made = create("md", clients, clients_per_round=1, seed=seed)
    logic = RoundLogic(made, Faults(guard=False, silence=False), mode=mode)
    buffer, flying, now = logic.buffer, [], 0.0
    for number in range(1, 6):
        buffer.begin(number)
        while not buffer.is_full:
            for client in logic.fill(logic.open(number)):
                heapq.heappush(flying, (now + seconds[client], client))
            assert buffer.num_training <= mode.concurrency
            if not buffer.num_training:
                break
            now, client = heapq.heappop(flying)
            buffer.end(client, usable=True)
        scale = len(buffer._ended) * buffer.num_draws / buffer.num_asked
        selection, _ = buffer.take()
        assert selection.clients.size >= min(size, clients)
        taken += float(selection.weights.sum()) * scale
    left = sum(each.weight for each in buffer._drawn.values())
    assert taken + left == pytest.approx(buffer.num_draws)  # all clients are equal, so each draw gives 1


def test_the_state_is_restored_exactly_and_a_wrong_one_is_refused():
    run = simulated(SECONDS, FAIR, 7)
    state = run.buffer.state_dict()
    other = Buffer(FAIR, 4)
    other.load_state_dict(state)
    for name, array in other.state_dict().items():
        np.testing.assert_array_equal(array, state[name])
    assert other.in_flight == run.buffer.in_flight
    for name, wrong in (
        ("clients", np.zeros_like(state["clients"])),
        ("states", np.full_like(state["states"], 3)),
        ("counts", np.zeros_like(state["counts"])),
        ("credits", -state["credits"]),
        ("credits", state["credits"][:, :2]),
        ("totals", np.zeros(3)),
        ("counts_from", state["counts_from"][1:]),
    ):
        with pytest.raises(ValueError, match=r"^state\['"):
            other.load_state_dict({**state, name: wrong})
    with pytest.raises(ValueError, match="state has keys"):
        other.load_state_dict({})
    assert other.in_flight == run.buffer.in_flight


def test_a_step_has_the_staleness_factors_and_makes_up_for_failures():
    made = create("uniform", 4, clients_per_round=2, replacement=False)
    logic = RoundLogic(
        made, Faults(guard=False, silence=False), mode=Buffered(concurrency=3, size=2, staleness_power=0.5)
    )
    buffer = logic.buffer
    arrays = {"w": np.zeros(2, np.float32)}
    buffer.begin(1)
    slow, *others = logic.fill(logic.open(1))
    for client in others:
        buffer.end(client, usable=True)
    replies = [Reply({"w": np.ones(2, np.float32)}) for _ in others]
    outcome = logic.finish(logic.gather(logic.open(1)), arrays, replies)
    assert outcome.arrays["w"].tolist() == [1, 1]
    assert outcome.record.staleness.tolist() == [0, 0]
    assert outcome.record.in_flight == (slow,)
    buffer.begin(4)
    failing, *_ = logic.fill(logic.open(4))
    buffer.end(failing, usable=False)
    buffer.end(slow, usable=True)
    chosen = logic.gather(logic.open(4), num_stale=1)
    answers = [Reply(failure="an error"), Reply({"w": np.ones(2, np.float32)})]
    outcome = logic.finish(chosen, arrays, answers)
    assert outcome.record.staleness.tolist() == [0, 3]
    assert outcome.record.num_stale == 1
    assert outcome.record.weights[0] == 0
    drawn = chosen.selection.weights[1] * 2  # S/S' = 2
    assert outcome.record.weights[1] == pytest.approx(drawn / 2)  # (1 + 3)^-0.5
    assert outcome.record.failures == {failing: "an error"}


def test_the_first_round_of_a_run_ends_after_as_many_arrivals_as_there_are_places():
    buffer = Buffer(Buffered(concurrency=3), 1)
    for number, clients, needed in ((1, [0, 1, 2], 3), (2, [3, 4, 5], 1)):
        buffer.begin(number)
        assert buffer.fill(opened(number), drawing(clients), tenth) == clients
        for client in clients[:needed]:
            assert not buffer.is_full
            buffer.end(client, usable=True)
        assert buffer.is_full
        assert buffer.take()[0].clients.tolist() == clients[:needed]


def test_a_client_that_replies_at_once_ends_few_rounds_and_each_of_its_updates_is_used():
    """Of 20 clients, 3 reply at once. With K = 3 they would end nearly all rounds alone."""
    seconds = np.where(np.arange(M) < 3, 1e-3, 1.0 + np.arange(M) / M)
    rounds = 100
    run = simulated(seconds, Buffered(concurrency=10, size=3), rounds)
    others = run.arrivals[3:].sum()
    # In n rounds a client counts at most 1 + n * 2 K / M times, and once more in the first round.
    assert others >= 3 * rounds - 3 * (2 + rounds * 2 * 3 / M)
    assert run.arrivals[:3].min() > 1.5 * run.arrivals[3:].mean()  # none of them is lost


def test_without_counting_busy_clients_any_arrivals_end_a_round_as_in_fedbuff():
    buffer = Buffer(Buffered(concurrency=3, count_busy=False), 1)
    for number in range(1, 6):
        buffer.begin(number)
        buffer.fill(opened(number), drawing([0, 1, 2]), tenth)
        buffer.end(0, usable=True)  # the same client in each round
        assert buffer.is_full
        assert buffer.take()[0].clients.tolist() == [0]
