"""Flower's strategies as the server's step: every combination with every selector, against its formula."""

import gc
import re
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as shipped
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
)
from flwr.supercore.privacy_accounting import NeighboringRelation, PrivacyConfig, SamplingMethod

from strategies.flower.exchanges import NodesGrid
from strategies.selectors import create
from strategies.server_steps.compatibility import View, examples, matrix, table, view_of
from strategies.server_steps.replies import Contribution
from strategies.server_steps.step import ServerStep, Step

from ...support.selections import SETTINGS, Asked, feedback, per_client
from ...support.toy_grid import ToyGrid

Model = dict[str, np.ndarray]
M, K = 12, 7
SIZES = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 40, 80])
FIRST_NODE = 100
NAMES = list(examples())


@pytest.fixture(autouse=True)
def without_flowers_garbage_collections(monkeypatch):
    """QFedAvg and Bulyan collect all garbage of the process for each array; tests hold much."""
    monkeypatch.setattr(gc, "collect", lambda *generation: 0)


PRIVATE = {"noise_multiplier": 0.0, "num_sampled_clients": 99}
ARGUMENTS = {
    "FedAvgM": {"server_learning_rate": 0.7, "server_momentum": 0.9},
    **{name: {"eta": 0.3} for name in ("FedAdam", "FedYogi", "FedAdagrad")},
    "FedProx": {"proximal_mu": 0.25},
    "FedTrimmedAvg": {"beta": 0.2},
    "QFedAvg": {"client_learning_rate": 0.1, "q": 0.5},
    "MultiKrum": {"num_nodes_to_select": 2},
}


def make(name):
    """A strategy whose step has a closed form: no noise, and clips that nobody reaches."""
    kind = getattr(shipped, name)
    if not name.startswith("DifferentialPrivacy"):
        return kind(**ARGUMENTS.get(name, {}))
    norm = {"initial_clipping_norm" if "Adaptive" in name else "clipping_norm": 1e6}
    return kind(FedAvg(), **PRIVATE, **norm)


def first_model():
    return {"w": np.array([1.0, -2.0, 0.5], np.float32), "b": np.array(0.25, np.float32)}


def record(arrays):
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def node(message):
    """Train: a move of its own for each client and round."""
    client = message.metadata.dst_node_id - FIRST_NODE
    number = int(message.content.config_records["config"]["server-round"])
    rng = np.random.default_rng([client, number])
    arrays = {
        name: (array.numpy() + rng.normal(client / 10, 0.3, array.numpy().shape)).astype(np.float32)
        for name, array in message.content.array_records["arrays"].items()
    }
    metrics = MetricRecord({"num-examples": 1, "train-loss": float(rng.uniform(0.1, 2))})
    return Message(RecordDict({"arrays": record(arrays), "metrics": metrics}), reply_to=message)


class Federation:
    """Rounds of a step with a selector, in process and with real messages, as the strategy plays them."""

    def __init__(self, step, selector, arrays=None, answer=node):
        self.step, self.selector = step, selector
        self.arrays = first_model() if arrays is None else arrays
        self.grid = ToyGrid({FIRST_NODE + m: answer for m in range(selector.num_clients)})
        self.contributions = []
        self.aggregate = {}
        self.result = None

    def round(self, number, silent=0):
        """Play a round, in which the last chosen clients are silent; False if nobody was chosen."""
        selection = self.selector.select(number)
        nodes = [FIRST_NODE + int(client) for client in selection.clients]
        config = ConfigRecord({"lr": 0.1})
        messages = self.step.configure(number, record(self.arrays), config, NodesGrid(self.grid, nodes))
        assert dict(config) == {"lr": 0.1}
        if not messages:
            return False
        by_node = {message.metadata.dst_node_id: message for message in messages}
        replies = [self.grid.send_and_receive([by_node[each]])[0] for each in nodes]
        responded = np.arange(len(nodes)) < len(nodes) - silent
        weights = self.selector.finalize(selection, responded)
        self.contributions, norms = [], np.full(len(nodes), np.nan)
        losses = norms.copy()
        total = {name: np.zeros(array.shape) for name, array in self.arrays.items()}
        for i, reply in enumerate(replies):
            if not responded[i]:
                continue
            sent = {name: array.numpy() for name, array in reply.content.array_records["arrays"].items()}
            losses[i] = reply.content.metric_records["metrics"]["train-loss"]
            moves = {name: sent[name].astype(float) - array for name, array in self.arrays.items()}
            norms[i] = np.sqrt(sum((move**2).sum() for move in moves.values()))
            for name, move in moves.items():
                total[name] += weights[i] * move
            self.contributions.append(
                Contribution(sent, float(weights[i]), int(selection.counts[i]), losses[i])
            )
        self.aggregate = {
            name: (array + total[name]).astype(array.dtype) for name, array in self.arrays.items()
        }
        given = iter(self.contributions) if self.step.view is not View.AGGREGATE else self.must_not_be_asked()
        self.result = self.step.step(number, self.arrays, self.aggregate, given, messages)
        self.selector.update(
            number,
            selection,
            feedback(norms, responded, losses=losses, gradient_variances=norms, diversities=norms),
        )
        if self.result.arrays is not None:
            self.arrays = self.result.arrays
        return True

    @staticmethod
    def must_not_be_asked():
        raise AssertionError("single replies are read where the aggregate is enough")
        yield


def selector_for(name, **settings):
    selector = create(
        name,
        M,
        client_sizes=SIZES,
        clients_per_round=K,
        num_rounds=10,
        seed=3,
        **SETTINGS.get(name, {}) | per_client(name, M) | settings,
    )
    return (
        Asked(selector)
        if selector.polls_for or name in ("flics", "flics-private", "naive-group")
        else selector
    )


class Formula:
    """What a strategy must make of a round, written down anew in float64."""

    def __init__(self, strategy):
        self.name, self.s = type(strategy).__name__, strategy
        self.m = {}
        self.v = {}

    def __call__(self, number, w, played):
        stacked = {name: np.array([each.arrays[name] for each in played.contributions], float) for name in w}
        counts = np.array([each.count for each in played.contributions])
        losses = np.array([each.loss for each in played.contributions])
        if self.name in ("Krum", "MultiKrum"):
            flat = np.concatenate([part.reshape(len(counts), -1) for part in stacked.values()], axis=1)
            squares = ((flat[:, None] - flat[None]) ** 2).sum(axis=2)
            closest = max(1, len(counts) - 2)
            scores = [np.sort(row)[1 : closest + 1].sum() for row in squares]
            best = np.argsort(scores)[: 1 if self.name == "Krum" else 2]
            return {
                name: np.average(part[best], axis=0, weights=counts[best]) for name, part in stacked.items()
            }
        if self.name == "Bulyan":  # without liars all are taken, and all are among the closest
            return {name: part.mean(axis=0) for name, part in stacked.items()}
        if self.name == "QFedAvg":
            rate, q = 1 / self.s.client_learning_rate, self.s.q
            gradients = {name: rate * (w[name] - part) for name, part in stacked.items()}
            norms = sum((g.reshape(len(counts), -1) ** 2).sum(axis=1) for g in gradients.values())
            h = (counts * (q * losses ** (q - 1) * norms + rate * losses**q)).sum()
            return {
                name: w[name] - np.tensordot(counts * losses**q, g, axes=1) / h
                for name, g in gradients.items()
            }
        return {
            name: self.one(number, name, w[name], played.aggregate[name], stacked[name], counts) for name in w
        }

    def one(self, number, name, w, aggregate, replies, counts):
        s, delta = self.s, aggregate.astype(float) - w
        if self.name == "FedMedian":
            return np.median(np.repeat(replies, counts, axis=0), axis=0)
        if self.name == "FedTrimmedAvg":
            draws = np.sort(np.repeat(replies, counts, axis=0), axis=0)
            cut = int(0.2 * len(draws))
            return draws[cut : len(draws) - cut].mean(axis=0)
        if self.name == "FedAvgM":
            self.m[name] = s.server_momentum * self.m.get(name, 0.0) - delta
            return w - s.server_learning_rate * self.m[name]
        if self.name in ("FedAdam", "FedYogi", "FedAdagrad"):
            old = self.v.get(name, 0.0)
            self.m[name] = s.beta_1 * self.m.get(name, 0.0) + (1 - s.beta_1) * delta
            if self.name == "FedAdam":
                self.v[name] = s.beta_2 * old + (1 - s.beta_2) * delta**2
            elif self.name == "FedYogi":
                self.v[name] = old - (1 - s.beta_2) * delta**2 * np.sign(old - delta**2)
            else:
                self.v[name] = old + delta**2
            eta = s.eta
            if self.name == "FedAdam":
                eta *= np.sqrt(1 - s.beta_2 ** (number + 1)) / (1 - s.beta_1 ** (number + 1))
            return w + eta * self.m[name] / (np.sqrt(self.v[name]) + s.tau)
        return aggregate  # FedAvg, FedProx, and differential privacy without noise and clips


def label(cell):
    return "-".join([cell.server_strategy, cell.selector, *("without" for _ in cell.settings)])


@pytest.mark.parametrize("cell", matrix(), ids=label)
def test_every_combination_steps_by_its_formula_or_is_refused(cell):
    strategy = make(cell.server_strategy)
    if cell.reason:
        with pytest.raises((TypeError, ValueError), match=re.escape(cell.reason)):
            ServerStep(strategy, cell.selector, cell.settings, clients_per_round=K)
        return
    step = ServerStep(strategy, cell.selector, cell.settings, clients_per_round=K)
    played = Federation(step, selector_for(cell.selector, **cell.settings))
    formula = Formula(strategy)
    stepped = 0
    for number in (1, 2, 3):
        before = played.arrays
        if not played.round(number, silent=number // 3):
            continue
        assert played.result.skipped == ""
        for name, expected in formula(number, before, played).items():
            assert played.arrays[name] == pytest.approx(expected, rel=1e-4, abs=1e-5), name
            assert played.arrays[name].dtype == np.float32
        stepped += 1
    assert stepped >= 2  # flics-private may invite nobody


def test_the_table_names_every_strategy_and_selector_and_every_reason():
    cells, text = matrix(), table()
    assert {cell.server_strategy for cell in cells} == set(NAMES)
    for cell in cells:
        assert re.search(rf"\b{cell.server_strategy}\b", text)
        assert f"`{cell.selector}`" in text
        assert cell.reason in text
    header, _, *rows = text.split("\n\n")[0].splitlines()
    assert all(row.count("|") == header.count("|") for row in rows)
    assert len([cell for cell in cells if not cell.reason]) > 200


def test_the_examples_are_all_that_flower_ships():
    kinds = {name for name in shipped.__all__ if name not in ("Result", "Strategy")}
    assert kinds == set(NAMES)


# --- what the views mean ---------------------------------------------------------------------------------


def contribution(move, weight, count=1, loss=1.0, of=None):
    arrays = first_model() if of is None else of
    sent = {name: (array + np.asarray(move)).astype(np.float32) for name, array in arrays.items()}
    return Contribution(sent, weight, count, loss)


def one_step(step, given, arrays=None, number=1):
    """One round in which these contributions come back."""
    arrays = first_model() if arrays is None else arrays
    grid = ToyGrid({FIRST_NODE + i: node for i in range(len(given))})
    messages = step.configure(number, record(arrays), ConfigRecord(), grid)
    aggregate = {
        name: (array + sum(each.weight * (each.arrays[name] - array) for each in given)).astype(array.dtype)
        for name, array in arrays.items()
    }
    return step.step(number, arrays, aggregate, given, messages)


def test_without_trimming_the_trimmed_mean_is_the_unbiased_aggregate_of_md():
    given = [contribution(1.0, 1 / 4), contribution(2.0, 2 / 4, count=2), contribution(-3.0, 1 / 4)]
    robust = one_step(ServerStep(FedTrimmedAvg(beta=0.0), "md"), given)
    mean = one_step(ServerStep(FedAvg(), "md"), given)
    assert robust.arrays["w"] == pytest.approx(mean.arrays["w"], rel=1e-6)
    assert mean.arrays["w"] == pytest.approx(first_model()["w"] + (1 + 4 - 3) / 4)


@pytest.mark.parametrize("name", ["FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan"])
def test_a_robust_strategy_limits_a_malicious_client(name):
    strategy = make(name)
    if name in ("Krum", "MultiKrum", "Bulyan"):
        strategy.num_malicious_nodes = 1
    honest = [contribution(0.1 * i, 1 / 7) for i in range(6)]
    stepped = one_step(ServerStep(strategy, "uniform"), [*honest, contribution(1e6, 1 / 7)])
    assert np.abs(stepped.arrays["w"] - first_model()["w"]).max() < 0.6


def test_a_client_drawn_twice_does_not_support_itself_in_krum():
    """Its copies would be at distance 0, and this liar, drawn five times, would win."""
    given = [contribution(5.0, 5 / 9, count=5), *(contribution(float(i), 1 / 9) for i in range(4))]
    stepped = one_step(ServerStep(Krum(num_malicious_nodes=1), "md"), given)
    assert np.abs(stepped.arrays["w"] - first_model()["w"]).max() < 4


def test_a_round_with_too_few_replies_for_the_strategy_is_skipped():
    step = ServerStep(Krum(num_malicious_nodes=1), "uniform", clients_per_round=5)
    stepped = one_step(step, [contribution(1.0, 1 / 4)] * 4)
    assert stepped == Step(None, "4 replies that Krum can use: needs 5")


@pytest.mark.parametrize(("strategy", "polls_for"), [(Krum(2), 7), (MultiKrum(1), 5), (Bulyan(1), 7)])
def test_too_few_clients_for_the_number_of_malicious_ones_are_refused(strategy, polls_for):
    strategy = type(strategy)(
        num_malicious_nodes=(polls_for - 3) // (4 if isinstance(strategy, Bulyan) else 2)
    )
    ServerStep(strategy, "uniform", clients_per_round=polls_for)
    with pytest.raises(
        ValueError, match=rf"needs {polls_for} replies, but the budget .* may be {polls_for - 1} clients"
    ):
        ServerStep(strategy, "uniform", clients_per_round=polls_for - 1)


def test_qfedavg_leaves_out_clients_without_a_loss():
    step = ServerStep(QFedAvg(client_learning_rate=0.1, q=1.0), "uniform")
    with_loss = [contribution(1.0, 0.5, loss=2.0), contribution(2.0, 0.5, loss=1.0)]
    silent = [contribution(100.0, 0.5, loss=np.nan), contribution(100.0, 0.5, loss=-1.0)]
    alone, together = one_step(step, with_loss), one_step(step, [*with_loss, *silent])
    assert np.array_equal(alone.arrays["w"], together.arrays["w"])
    assert one_step(step, silent) == Step(None, "0 replies that QFedAvg can use: needs 1")


def test_counters_are_rounded_and_keep_their_type():
    arrays = {"w": np.zeros(2, np.float32), "seen": np.array([5, 7])}
    sent = {"w": np.ones(2, np.float32), "seen": np.array([6, 9])}
    for strategy in (FedAvg(), FedMedian(), make("DifferentialPrivacyServerSideFixedClipping")):
        stepped = one_step(ServerStep(strategy, "uniform"), [Contribution(sent, 1.0)], arrays)
        assert stepped.arrays["seen"].dtype == np.int64
        assert stepped.arrays["seen"].tolist() == [6, 9]


def test_the_callers_strategy_stays_as_it_is():
    for name in NAMES[:-2]:
        strategy = make(name)
        before = dict(vars(strategy))
        inner = getattr(strategy, "strategy", strategy)
        inner_before = dict(vars(inner))
        one_step(ServerStep(strategy, "uniform"), [contribution(1.0, 1 / 5)] * 5)
        assert vars(strategy) == before
        assert vars(inner) == inner_before


def test_the_proximal_term_and_the_clipping_norm_reach_the_clients():
    grid = ToyGrid({FIRST_NODE: node})
    for strategy, key, value in (
        (make("FedProx"), "proximal-mu", 0.25),
        (make("DifferentialPrivacyClientSideFixedClipping"), "clipping_norm", 1e6),
    ):
        step = ServerStep(strategy, "uniform")
        message = step.configure(1, record(first_model()), ConfigRecord(), grid)[0]
        assert message.content.config_records["config"][key] == value


def test_one_node_is_enough_and_none_is_no_message():
    for name in NAMES[:-2]:
        step = ServerStep(make(name), "uniform")
        assert len(step.configure(1, record(first_model()), ConfigRecord(), ToyGrid({7: node}))) == 1
        assert step.configure(2, record(first_model()), ConfigRecord(), ToyGrid({})) == []


def test_metrics_of_the_clients_own_are_not_asked_for_in_the_step():
    def accuracy(contents, key):
        return MetricRecord({"accuracy": contents[0].metric_records["metrics"]["accuracy"]})

    step = ServerStep(FedAvg(train_metrics_aggr_fn=accuracy), "uniform")
    assert one_step(step, [contribution(1.0, 1.0)]).arrays is not None
    assert step.train_metrics_aggr_fn is accuracy


# --- one's own strategies --------------------------------------------------------------------------------


class Renamed(FedAdam):
    """Changes nothing about the step."""

    def summary(self):
        pass


class Logging(FedAvg):
    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, replies)


class Overrides(Logging):
    steps_from_average = True

    def __init__(self):
        super().__init__()
        self.rounds = 0

    def aggregate_train(self, server_round, replies):
        self.rounds += 1
        return super().aggregate_train(server_round, replies)

    def state_dict(self):
        return {"rounds": np.array(self.rounds)}

    def load_state_dict(self, state):
        self.rounds = int(state["rounds"])


def test_a_subclass_is_shown_what_its_parent_is():
    given = [contribution(1.0, 0.5), contribution(2.0, 0.7)]
    ours, parents = (one_step(ServerStep(kind(), "osmd"), given) for kind in (Renamed, FedAdam))
    assert np.array_equal(ours.arrays["w"], parents.arrays["w"])


def test_a_subclass_with_its_own_step_must_declare_steps_from_average():
    with pytest.raises(
        TypeError, match=r"Logging\(\): its class overrides aggregate_train.*steps_from_average"
    ):
        ServerStep(Logging(), "uniform")
    step = ServerStep(Overrides(), "osmd")
    assert one_step(step, [contribution(1.0, 0.5)]).arrays is not None
    state = step.state_dict()
    again = ServerStep(Overrides(), "osmd")
    again.load_state_dict(state)
    assert again.strategy.rounds == 1


class OwnMomentum(Overrides):
    """Remembers the sum of the models, by a method `state_dict` of its own."""

    def __init__(self):
        super().__init__()
        self.sum = np.zeros(3, np.float32)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.sum = self.sum + arrays["w"].numpy()
        return ArrayRecord({**arrays, "w": Array(self.sum)}), metrics

    def state_dict(self):
        return {"sum": self.sum}

    def load_state_dict(self, state):
        self.sum = np.array(state["sum"])


def test_a_strategy_with_a_state_of_its_own_forgets_a_step_that_is_not_finite():
    """An infinite momentum would have skipped every further round."""
    step = ServerStep(OwnMomentum(), "uniform")
    huge = {"w": np.full(3, 3e38, np.float32), "b": np.array(0, np.float32)}
    with np.errstate(over="ignore"):
        for _ in range(2):
            stepped = one_step(step, [contribution(0.0, 1.0, of=huge)], huge)
    assert stepped.arrays is None
    assert (step.strategy.sum == np.float32(3e38)).all()


def test_a_strategy_that_does_not_write_to_every_node_is_refused():
    class Half(FedAvg):
        def configure_train(self, *args):
            return list(super().configure_train(*args))[:1]

    with pytest.raises(RuntimeError, match=r"Half\.configure_train wrote to 1 nodes: .* each of the 2 nodes"):
        one_step(ServerStep(Half(), "uniform"), [contribution(1.0, 0.5)] * 2)


@pytest.mark.parametrize("given", [object(), FedAdam, 3])
def test_an_unknown_kind_of_strategy_is_refused(given):
    with pytest.raises(TypeError, match=r"server_strategy = \w+: must be an object of one of FedAvg"):
        view_of(given)


@pytest.mark.parametrize("inner", [FedAdam(), FedAvgM(server_momentum=0.9), FedMedian()])
def test_noise_is_only_right_around_a_plain_mean(inner):
    with pytest.raises(TypeError, match=r"around \w+\(\): must be around FedAvg\(\) or FedProx\(\)"):
        ServerStep(DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, 5), "uniform")


# --- variates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variates", ["fedvarp", "scaffold"])
def test_variates_go_with_steps_from_the_average_only(variates):
    for cell in matrix(variates):
        averages = (
            view_of(make(cell.server_strategy)).name == "AGGREGATE" if "Xgb" not in label(cell) else False
        )
        assert (not cell.reason) == (
            averages and cell.selector not in ("flics-private", "personalised-osmd")
        ), label(cell)
        if cell.reason and averages:
            with pytest.raises(ValueError, match=re.escape(cell.reason)):
                ServerStep(make(cell.server_strategy), cell.selector, variates=variates)


# --- differential privacy --------------------------------------------------------------------------------

WRAPPERS = {
    "server fixed": lambda noise, bound: DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), noise, bound, 99
    ),
    "server adaptive": lambda noise, bound: DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(), noise, 99, bound, clipped_count_stddev=3.0 if noise else None
    ),
    "client fixed": lambda noise, bound: DifferentialPrivacyClientSideFixedClipping(
        FedAvg(), noise, bound, 99
    ),
    "client adaptive": lambda noise, bound: DifferentialPrivacyClientSideAdaptiveClipping(
        FedAvg(), noise, 99, bound, clipped_count_stddev=3.0 if noise else None
    ),
}
# With replacement from unequal sizes: one client was drawn three times of five, one of four failed.
UNEQUAL = [(3 / 5, 3), (1 / 5, 1), (1 / 5, 1)]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("liar", [0, 1])
def test_no_client_moves_the_sum_by_more_than_the_noise_is_made_for(wrapper, liar):
    bound = 2.0
    shares = {True: 1 / len(UNEQUAL), False: UNEQUAL[liar][0]}
    share = shares[wrapper.startswith("server")]

    def result(move):
        step = ServerStep(WRAPPERS[wrapper](0.0, bound), "md")
        moves = [0.3, -0.2, 0.1]
        moves[liar] = move
        given = [contribution(m, *weight) for m, weight in zip(moves, UNEQUAL, strict=True)]
        stepped = one_step(step, given)
        return np.append(stepped.arrays["w"], stepped.arrays["b"])

    moved = np.linalg.norm(result(1e5) - result(0.0))
    assert moved == pytest.approx(bound * share, rel=1e-3)  # attained, not exceeded


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("long", [True, False])
def test_the_noise_is_z_times_c_times_the_largest_share(wrapper, long):
    """Adaptive clipping changes C in the round; the noise is for the C that held in it."""
    noise, bound, n = 1.5, 2.0, 40_000
    arrays = {"w": np.zeros(n, np.float32)}
    step = ServerStep(WRAPPERS[wrapper](noise, bound), "md")
    move = 1.0 if long else 1e-4
    stepped = one_step(step, [contribution(move, *weight, of=arrays) for weight in UNEQUAL], arrays)
    spread = float(stepped.arrays["w"].std())
    z, share = step.strategy.noise_multiplier, 1 / 3 if wrapper.startswith("server") else 3 / 5
    if wrapper.endswith("adaptive"):
        assert step.strategy.clipping_norm != bound
    due = z * max(bound * share, step.strategy.clipping_norm / 3)
    assert spread == pytest.approx(due, rel=0.02)  # six standard errors
    assert spread > 0.98 * z * bound * share


def test_adaptive_clipping_adds_the_noise_of_the_norm_that_was_used():
    """All far below C: in Flower 1.39 the noise is already that of the smaller, next C."""
    arrays = {"w": np.zeros(40_000, np.float32)}
    step = ServerStep(
        DifferentialPrivacyServerSideAdaptiveClipping(
            FedAvg(), 1.0, 99, 2.0, target_clipped_quantile=0.5, clip_norm_lr=5.0, clipped_count_stddev=0.6
        ),
        "uniform",
    )
    given = [contribution(1.0, 1 / 50, of=arrays) for _ in range(50)]  # all are clipped: C shrinks
    stepped = one_step(step, given, arrays)
    assert step.strategy.clipping_norm < 1.0
    z = step.strategy.noise_multiplier
    assert float(stepped.arrays["w"].std()) == pytest.approx(z * 2.0 / 50, rel=0.02)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_client_that_learned_nothing_does_not_break_the_round(wrapper):
    for arrays in (first_model(), {"w": np.zeros(3, np.float32)}):
        step = ServerStep(WRAPPERS[wrapper](0.0, 2.0), "uniform")
        given = [contribution(0.0, 0.5, of=arrays), contribution(0.1, 0.5, of=arrays)]
        stepped = one_step(step, given, arrays)
        assert stepped.arrays["w"] == pytest.approx(arrays["w"] + 0.05, abs=1e-6)


class Ledger:
    """An accountant that counts, and whose budget is three releases."""

    config = PrivacyConfig(
        1e-5, 1000, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION, max_epsilon=3.0
    )

    def __init__(self):
        self.events = []

    def compose(self, event, count=1):
        self.events += [event] * count

    def would_exceed(self, event, max_epsilon=None, count=1):
        return len(self.events) + count > 3

    def get_privacy_spent(self, delta=None):
        return SimpleNamespace(epsilon=float(len(self.events)), delta=1e-5, num_releases=len(self.events))

    def state_dict(self):
        return {"releases": len(self.events)}

    def load_state_dict(self, state):
        self.events = [None] * state["releases"]


def accounted(ledger):
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 99, accountant=ledger)
    return ServerStep(strategy, "uniform")


def test_an_accountant_counts_rounds_with_failures_too_and_remembers_after_a_resume():
    ledger = Ledger()
    played = Federation(accounted(ledger), selector_for("uniform"))
    played.round(1)
    played.round(2, silent=2)
    assert [event.noise_multiplier for event in ledger.events] == [1.0, 1.0]
    resumed = Ledger()
    step = accounted(resumed)
    step.load_state_dict(played.step.state_dict())
    played.step = step
    played.round(3)
    assert len(resumed.events) == 3
    with pytest.raises(PrivacyBudgetExhausted):
        played.round(4)


# --- memory ----------------------------------------------------------------------------------------------

TIGHT = {
    **{name: lambda name=name: make(name) for name in NAMES[:-2]},
    "DifferentialPrivacyServerSideAdaptiveClipping": lambda: WRAPPERS["server adaptive"](0.0, 0.5),
    "DifferentialPrivacyClientSideAdaptiveClipping": lambda: WRAPPERS["client adaptive"](0.0, 0.5),
}
REMEMBER = {
    "FedAvgM": {"momentum_vector/0", "momentum_vector/1"},
    "FedAdam": {"m_t/w", "m_t/b", "v_t/w", "v_t/b"},
    "FedYogi": {"m_t/w", "m_t/b", "v_t/w", "v_t/b"},
    "FedAdagrad": {"m_t/w", "m_t/b", "v_t/w", "v_t/b"},
    "DifferentialPrivacyServerSideAdaptiveClipping": {"clipping_norm"},
    "DifferentialPrivacyClientSideAdaptiveClipping": {"clipping_norm"},
}


@pytest.mark.parametrize("name", NAMES[:-2])
def test_three_rounds_a_resume_and_three_more_are_six_rounds_bit_for_bit(name):
    whole = Federation(ServerStep(TIGHT[name](), "uniform"), selector_for("uniform"))
    for number in range(1, 7):
        whole.round(number)
    first = Federation(ServerStep(TIGHT[name](), "uniform"), selector_for("uniform"))
    for number in (1, 2, 3):
        first.round(number)
    state = {key: np.array(array) for key, array in first.step.state_dict().items()}
    assert state.keys() - {"server_strategy"} == REMEMBER.get(name, set())
    assert all(isinstance(array, np.ndarray) and array.dtype != object for array in state.values())

    def go_on(step):
        second = Federation(step, first.selector, first.arrays)
        for number in (4, 5, 6):
            second.round(number)
        return second.arrays

    step = ServerStep(TIGHT[name](), "uniform")
    step.load_state_dict(state)
    resumed = go_on(step)
    assert all(np.array_equal(resumed[key], array) for key, array in whole.arrays.items())
    if name in REMEMBER:  # and without the state it is another run
        forgotten = go_on(ServerStep(TIGHT[name](), "uniform"))
        assert not np.array_equal(forgotten["w"], whole.arrays["w"])


def test_a_state_before_the_first_round_is_a_start():
    for name in NAMES[:-2]:
        step = ServerStep(make(name), "uniform")
        step.load_state_dict(ServerStep(make(name), "uniform").state_dict())
        stepped = one_step(step, [contribution(1.0, 1 / 5)] * 5)
        fresh = one_step(ServerStep(make(name), "uniform"), [contribution(1.0, 1 / 5)] * 5)
        assert np.array_equal(stepped.arrays["w"], fresh.arrays["w"])


def test_another_strategys_state_is_refused():
    state = ServerStep(FedAdam(), "uniform").state_dict()
    with pytest.raises(ValueError, match=r"state\['server_strategy'\] = 'FedAdam': must be 'FedYogi'"):
        ServerStep(FedYogi(), "uniform").load_state_dict(state)
    with pytest.raises(ValueError, match=r"state has 'momentum': must be one of m_t, server_strategy, v_t"):
        ServerStep(FedAdam(), "uniform").load_state_dict({**state, "momentum": np.zeros(1)})


@pytest.mark.parametrize("name", NAMES[:-2])
def test_every_step_starts_from_the_given_model(name):
    """Not from the one that a strategy itself returned, which may have been rounded, or refused."""
    far = {key: array + 100 for key, array in first_model().items()}
    step = ServerStep(TIGHT[name](), "uniform")
    one_step(step, [contribution(0.1, 1 / 3)] * 3)
    stepped = one_step(step, [contribution(0.1, 1 / 3, of=far)] * 3, far, 2)
    assert stepped.arrays["w"] == pytest.approx(far["w"], abs=1.0)


@pytest.mark.parametrize("name", ["FedAvgM", "FedAdam"])
def test_a_step_that_is_not_finite_is_not_taken_and_not_remembered(name):
    step = ServerStep(make(name), "uniform")
    one_step(step, [contribution(1.0, 1.0)])
    before = step.state_dict()
    with np.errstate(over="ignore", invalid="ignore"):
        stepped = one_step(
            step,
            [contribution(3e38, 1.0)],
            {"w": np.full(3, -3e38, np.float32), "b": np.array(0, np.float32)},
        )
    assert stepped == Step(None, f"the step of {name} is not finite")
    after = step.state_dict()
    assert before.keys() == after.keys()
    assert all(np.array_equal(after[key], array) for key, array in before.items())
