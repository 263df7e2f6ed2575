"""FedVARP and SCAFFOLD on problems with a known solution: they are unbiased and reduce variance or drift."""

import re

import numpy as np
import pytest

from strategies.options import Faults
from strategies.rounds.control_variates import KINDS, FedVARP, Scaffold, create_variates
from strategies.rounds.logic import RoundLogic
from strategies.rounds.replies import Reply
from strategies.selectors import create

from ...support.selections import feedback

SIZES = np.array([1.0, 9.0, 2.0, 4.0, 3.0, 5.0])
M, K, D = SIZES.size, 2, 4
SHARES = SIZES / SIZES.sum()


def remember(variates, updates, steps=1.0, learning_rate=1.0):
    pairs = [(client, {"w": np.asarray(update)}) for client, update in updates.items()]
    variates.remember(iter(pairs), np.full(len(pairs), steps), learning_rate)


def step(variates, selection, updates):
    """Return sum_m λ_m y_m + sum_m c_m (u_m - y_m)."""
    mean = variates.mean()
    total = np.zeros(D) if mean is None else mean["w"].copy()
    for client, weight in zip(selection.clients, selection.weights, strict=True):
        baseline = variates.baseline(int(client))
        total += weight * (updates[client] - (0.0 if baseline is None else baseline["w"]))
    return total


def is_mean(estimates, truth):
    """Return whether the mean of estimates (N, D) is the truth; false by chance once in 40,000 per entry."""
    error = np.abs(estimates.mean(axis=0) - truth)
    return bool((error < 4.5 * estimates.std(axis=0) / np.sqrt(len(estimates))).all())


def selector(name, **settings):
    return create(name, M, client_sizes=SIZES, clients_per_round=K, num_rounds=50, seed=1, **settings)


# --- FedVARP ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["prac-delta", "md"])
def test_fedvarp_mean_is_the_mean_of_the_last_updates_of_all_clients(name):
    """DELTA's appendix H.3, over rounds in which one reply is missing."""
    rng, last = np.random.default_rng(5), np.zeros((M, D))
    rounds = RoundLogic(selector(name), Faults(guard=False), variates=create_variates("fedvarp-mean"))
    model = {"w": np.zeros(D)}
    for number in range(1, 12):
        chosen = rounds.choose(rounds.open(number))
        clients = chosen.selection.clients.tolist()
        updates = {client: rng.normal(1, 2, D) for client in clients}
        replies = [Reply({"w": model["w"] + updates[client]}) for client in clients]
        if number % 3 == 0 and len(clients) > 1:
            replies[0] = Reply(failure="no reply")
            del updates[clients[0]]
        for client, update in updates.items():
            last[client] = update
        outcome = rounds.finish(chosen, model, replies)
        np.testing.assert_allclose(outcome.arrays["w"] - model["w"], SHARES @ last, rtol=1e-9, atol=1e-9)
        model = outcome.arrays


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("uniform", {}),
        ("uniform", {"replacement": False}),
        ("md", {}),
        ("lipschitz-is", {"lipschitz": np.arange(1.0, 7)}),
    ],
)
def test_the_step_is_unbiased_whatever_is_remembered(name, settings):
    rng = np.random.default_rng(0)
    memory, updates = rng.normal(3, 5, (4, D)), rng.normal(1, 2, (M, D))
    chosen, variates = selector(name, **settings), FedVARP()
    remember(variates, dict(enumerate(memory)))  # two never replied
    variates.begin(SHARES)
    steps = np.array([step(variates, chosen.select(number), updates) for number in range(2_000)])
    assert is_mean(steps, SHARES @ updates)
    assert not is_mean(steps, SHARES @ updates + 0.2 * steps.std(axis=0))  # that would be detected


def test_the_variance_falls_to_0_as_updates_stop_changing():
    rng = np.random.default_rng(2)
    last, change = rng.normal(0, 1, (M, D)), rng.normal(0, 1, (M, D))
    chosen, variates = selector("uniform"), FedVARP()
    errors, plain = [], []
    for number in range(1, 301):
        updates = last + change * 0.9**number
        variates.begin(SHARES)
        selection = chosen.select(number)
        truth = SHARES @ updates
        errors.append(np.linalg.norm(step(variates, selection, updates) - truth))
        remember(variates, {int(client): updates[client] for client in selection.clients})
        plain.append(np.linalg.norm(selection.weights @ updates[selection.clients] - truth))
    assert variates.num_seen == M
    assert max(errors[-20:]) < 1e-10
    assert np.mean(plain[-20:]) > 0.5  # without FedVARP the sampling noise stays


# --- SCAFFOLD --------------------------------------------------------------------------------------------


class Quadratics:
    """f_m(w) = (w - a_m)' H_m (w - a_m) / 2, unlike in a_m and H_m; the target is sum_m λ_m f_m."""

    steps, learning_rate = 10, 0.08

    def __init__(self, seed=4):
        rng = np.random.default_rng(seed)
        self.centres = rng.normal(0, 3, (M, D))
        self.curvatures = rng.uniform(0.3, 3.0, (M, D))
        self.optimum = (SHARES @ (self.curvatures * self.centres)) / (SHARES @ self.curvatures)

    def train(self, client, w, control):
        """Run a client's local steps, with the control added to each gradient."""
        v = w.copy()
        for _ in range(self.steps):
            gradient = self.curvatures[client] * (v - self.centres[client])
            v -= self.learning_rate * (gradient + (0.0 if control is None else control["w"]))
        return v

    def federated(self, variates, chosen, rounds):
        w = np.zeros(D)
        for number in range(1, rounds + 1):
            if variates is not None:
                variates.begin(SHARES)
            selection = chosen.select(number)
            moves = {
                int(m): self.train(int(m), w, None if variates is None else variates.outgoing(int(m))) - w
                for m in selection.clients
            }
            delta = sum(
                weight * moves[int(m)] for m, weight in zip(selection.clients, selection.weights, strict=True)
            )
            if variates is not None:
                remember(variates, moves, self.steps, self.learning_rate)
            chosen.update(number, selection, feedback([np.linalg.norm(move) for move in moves.values()]))
            w = w + delta
        return w


@pytest.mark.parametrize("name", ["full", "md", "uniform", "adaptive-osmd"])
def test_scaffold_reaches_the_optimum_where_fedavg_stalls(name):
    problem = Quadratics()
    settings = {"learning_rate_multiplier": 100.0} if name == "adaptive-osmd" else {}
    reached = problem.federated(Scaffold(), selector(name, **settings), 600)
    assert np.abs(reached - problem.optimum).max() < 1e-9
    # Even with all clients in every round, and without any noise.
    drifted = problem.federated(None, selector("full"), 600)
    assert np.abs(drifted - problem.optimum).max() > 0.05


def test_the_server_computes_the_controls_that_clients_would_store():
    """Algorithm 1 of the paper as printed, option II: clients store c_m and send its change."""
    problem, chosen, variates = Quadratics(), selector("uniform", replacement=False), Scaffold()
    own = np.zeros((M, D))
    w = np.ones(D)
    for number in range(1, 30):
        variates.begin(np.full(M, 1 / M))
        common = own.mean(axis=0)
        selection = chosen.select(number)
        moves = {}
        for m in selection.clients:
            outgoing = variates.outgoing(int(m))
            if outgoing is not None:
                assert outgoing["w"] == pytest.approx(common - own[m], abs=1e-12)
            v = problem.train(int(m), w, {"w": common - own[m]})
            own[m] += -common + (w - v) / (problem.steps * problem.learning_rate)
            moves[int(m)] = v - w
        remember(variates, moves, problem.steps, problem.learning_rate)
        w = w + sum(moves.values()) / K
    state = variates.state_dict()
    assert sorted(state["clients"]) == list(range(M))
    assert state["memory/w"] == pytest.approx(own[state["clients"]], abs=1e-12)


def test_a_client_without_a_control_is_sent_the_mean_alone():
    variates = Scaffold()
    variates.begin(SHARES)
    assert variates.outgoing(0) is None
    remember(variates, {1: [-4.0]}, steps=2, learning_rate=0.5)
    variates.begin([0.5, 0.25, 0.25])
    for client, expected in ((0, 1.0), (1, -3.0), (2, 1.0)):
        outgoing = variates.outgoing(client)
        assert outgoing["w"].tolist() == [expected]
    assert variates.baseline(1) is None
    assert variates.mean() is None


@pytest.mark.parametrize("steps", [np.nan, 0.0, np.inf])
def test_a_client_with_unknown_steps_keeps_its_control(steps):
    variates = Scaffold()
    remember(variates, {1: [-4.0]})
    variates.begin([0.5, 0.5])
    remember(variates, {0: [1.0], 1: [100.0]}, steps=steps)
    assert variates.num_seen == 1
    assert variates.state_dict()["memory/w"].tolist() == [[4.0]]


# --- both ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_loaded_state_goes_on_bit_for_bit(name, dtype):
    rng = np.random.default_rng(7)
    rounds = [
        {
            int(m): {"w": rng.normal(size=(3, 2)).astype(dtype), "b": np.array(rng.normal(), dtype)}
            for m in chosen
        }
        for chosen in (rng.choice(9, 4, replace=False) for _ in range(8))
    ]
    shares = rng.dirichlet(np.ones(9))

    def play(variates, some):
        seen = []
        for updates in some:
            variates.begin(shares)
            seen.append([variates.mean(), *(variates.outgoing(m) for m in range(9))])
            variates.remember(updates.items(), np.full(4, 3.0), 0.1)
        return seen

    whole, first, second = (create_variates(name) for _ in range(3))
    expected = play(whole, rounds)[4:]
    play(first, rounds[:4])
    second.load_state_dict({key: np.array(array) for key, array in first.state_dict().items()})
    for theirs, ours in zip(expected, play(second, rounds[4:]), strict=True):
        for a, b in zip(theirs, ours, strict=True):
            assert (a is None) == (b is None)
            for key in a or ():
                assert a[key].dtype == dtype
                assert np.array_equal(a[key], b[key])
    left, right = whole.state_dict(), second.state_dict()
    assert left.keys() == right.keys()
    assert all(np.array_equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize("name", KINDS)
def test_an_empty_state_can_be_saved_and_loaded(name):
    variates = create_variates(name)
    variates.load_state_dict(create_variates(name).state_dict())
    assert variates.num_seen == 0


@pytest.mark.parametrize("name", KINDS)
def test_a_state_is_a_copy_and_returned_arrays_are_read_only(name):
    variates = create_variates(name)
    update = np.ones(2)
    remember(variates, {0: update})
    update[:] = 7
    state = variates.state_dict()
    kept = state["memory/w"].copy()
    assert np.abs(kept).tolist() == [[1.0, 1.0]]
    state["memory/w"][:] = 9
    assert np.array_equal(variates.state_dict()["memory/w"], kept)
    baseline = variates.baseline(0)
    if baseline is not None:
        with pytest.raises(ValueError, match="read-only"):
            baseline["w"] += 1


@pytest.mark.parametrize("name", KINDS)
def test_removed_clients_are_forgotten(name):
    variates = create_variates(name)
    remember(variates, {0: [1.0], 3: [2.0], 4: [3.0]})
    variates.forget([3, 99])
    state = variates.state_dict()
    assert state["clients"].tolist() == [0, 4]
    assert np.abs(state["memory/w"]).tolist() == [[1.0], [3.0]]


@pytest.mark.parametrize("name", KINDS)
def test_an_update_that_is_not_finite_is_not_remembered(name):
    variates = create_variates(name)
    remember(variates, {0: [1.0, 2.0], 1: [np.nan, 0.0], 2: [np.inf, 0.0]})
    assert variates.state_dict()["clients"].tolist() == [0]


def memory_of(name="fedvarp", **changes):
    variates = create_variates(name)
    remember(variates, {0: [1.0, 2.0], 3: [2.0, 3.0]})
    return {**variates.state_dict(), **changes}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (memory_of("scaffold"), "state['name'] = 'scaffold': must be 'fedvarp'"),
        ({}, "state['name'] = '': must be 'fedvarp'"),
        (memory_of(clients=np.array([1, 1])), "must be distinct whole numbers"),
        (memory_of(clients=np.array([0.5, 1])), "must be distinct whole numbers"),
        ({**memory_of(), "memory/w": np.ones((3, 2))}, "state['memory/w'] has shape (3, 2): must be (2, …)"),
        ({**memory_of(), "memory/w": np.full((2, 2), np.nan)}, "finite"),
        ({"name": memory_of()["name"], "clients": np.array([1])}, "0 parameters in memory of 1 clients"),
    ],
)
def test_a_wrong_state_is_refused_and_changes_nothing(state, message):
    variates = FedVARP()
    remember(variates, {5: [1.0]})
    with pytest.raises(ValueError, match=re.escape(message)):
        variates.load_state_dict(state)
    assert variates.state_dict()["clients"].tolist() == [5]


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="variates = 'saga': must be one of fedvarp, fedvarp-mean, scaffold"):
        create_variates("saga")
