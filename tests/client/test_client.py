"""The ClientApp's handlers and local training, one message at a time."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedProx
from numpy.typing import NDArray

import tasks
from client.app import app
from strategies import RoundRecord, SelectionStrategy
from strategies.clients.reports import GROUP, INVITATION, LOSS, STATUS, Report
from strategies.flower.messages import read_report, write_report
from strategies.options import Faults, Polling
from strategies.presets import Delta, Flics, Forecast, PowerOfChoice
from strategies.selectors.invitation import GroupMember
from tasks.base import GradientVariance, batches
from tasks.data import Dataset

from ..server.test_apps import DEFAULTS
from ..support.toy_grid import Node, ToyGrid, node_of

NODE = {"partition-id": 8, "num-partitions": 10}
TRAIN = {"learning-rate": 0.5, "local-steps": 4, "batch-size": 8, "seed": 5, "server-round": 3}


@pytest.fixture(params=["digits", "digits-mlp"])
def task(request: pytest.FixtureRequest) -> tasks.Task:
    return tasks.create(request.param)


def some_model(task: tasks.Task) -> tasks.Arrays:
    rng = np.random.default_rng(3)
    return {
        name: rng.normal(0, 0.1, array.shape).astype(np.float32)
        for name, array in task.initial_arrays(0).items()
    }


def record(arrays: tasks.Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def say(
    kind: str,
    config: dict[str, Any] | None = None,
    node: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    state: RecordDict | None = None,
    **arrays: tasks.Arrays,
) -> RecordDict:
    """Return what the client answers."""
    ToyGrid({})
    content = RecordDict({name: record(each) for name, each in arrays.items()})
    content["config"] = ConfigRecord(config or {})
    context = Context(
        1, 1, {**NODE, **(node or {})}, RecordDict() if state is None else state, {**DEFAULTS, **(run or {})}
    )
    return app(Message(content, 1, kind), context).content


def report(*args: Any, **kwargs: Any) -> Report:
    return read_report(say(*args, **kwargs))


def moved(content: RecordDict) -> tasks.Arrays:
    return {name: array.numpy() for name, array in content.array_records["arrays"].items()}


DIGITS = tasks.create("digits")
MODEL = some_model(DIGITS)
DATA = DIGITS.client_data(8, 10, seed=DEFAULTS["seed"])


# --- status, loss, evaluation ------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["north", 3])
def test_a_clients_group_is_in_its_status(group: Any) -> None:
    assert report(STATUS, node={"group": group}) == Report(
        client_id="client-08", num_examples=len(DATA), group=group
    )
    assert report(STATUS).group is None


@pytest.mark.parametrize("group", [1.5, True])
def test_a_wrong_group_is_refused(group: Any) -> None:
    with pytest.raises(ValueError, match=f"group = {group} in the node's config: must be text or a whole"):
        say(STATUS, node={"group": group})


@pytest.mark.parametrize(("group", "given", "expected"), [("a", None, "a"), (7, None, 7), ("a", "b", "b")])
def test_the_group_may_be_in_the_data_file(tmp_path: Path, group: Any, given: Any, expected: Any) -> None:
    np.savez(tmp_path / "mine.npz", inputs=DATA.inputs, labels=DATA.labels, group=group)
    node = {"data": str(tmp_path / "mine.npz")} | ({} if given is None else {"group": given})
    assert report(STATUS, node=node).group == expected


def test_a_wrong_group_in_the_data_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", inputs=DATA.inputs, labels=DATA.labels, group=[1, 2])
    with pytest.raises(ValueError, match=r"group is int64 .*: must be one text or whole number"):
        say(STATUS, node={"data": str(tmp_path / "mine.npz")})


def test_the_loss_is_that_of_the_model_on_all_samples() -> None:
    told = report(LOSS, {"seed": 1, "server-round": 1}, arrays=MODEL)
    assert told.loss == pytest.approx(DIGITS.evaluate(MODEL, DATA).loss, rel=1e-6)
    assert told.num_examples == len(DATA)
    assert told.train_loss is None


def test_the_loss_of_a_mini_batch_is_a_function_of_the_seed() -> None:
    losses = [report(LOSS, {"seed": seed, "batch-size": 9}, arrays=MODEL).loss for seed in (1, 1, 2)]
    (batch,) = batches(len(DATA), 9, 1, 1)
    expected = DIGITS.evaluate(MODEL, Dataset(DATA.inputs[batch], DATA.labels[batch])).loss
    assert losses[0] == losses[1] == pytest.approx(expected, rel=1e-6)
    assert losses[0] != losses[2]
    everything = report(LOSS, {"seed": 1, "batch-size": 10**6}, arrays=MODEL).loss
    assert everything == pytest.approx(DIGITS.evaluate(MODEL, DATA).loss, rel=1e-5)


def test_a_device_that_is_paused_answers_without_computing(tmp_path: Path) -> None:
    pause = tmp_path / "paused"
    pause.touch()
    node = {"pause-file": str(pause), "private-group": 0, "group": "north"}
    # No model comes along: looking at it would be an error.
    assert report(LOSS, {"seed": 1}, node) == Report(
        client_id="client-08", num_examples=len(DATA), available=False, group="north"
    )
    config = {"num-groups": 2, "epsilon": 1.0, "server-round": 1, "rates": [1.0, 1.0]}
    assert report(GROUP, config, node) == Report(available=False)
    assert report(INVITATION, config, node) == Report(available=False)


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        (
            "train",
            {**TRAIN, "local-steps": 2.5},
            r"local-steps = 2\.5 in the message's config: must be a whole",
        ),
        ("train", {**TRAIN, "learning-rate": "fast"}, "learning-rate = 'fast' .* must be a number"),
        ("train", {**TRAIN, "proximal-mu": "big"}, "proximal-mu = 'big'"),
        (LOSS, {"batch-size": 3}, "seed = None"),
        (GROUP, {"epsilon": 1.0}, "num-groups = None"),
    ],
)
def test_a_wrong_question_is_refused(kind: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        say(kind, config, arrays=MODEL)


# --- training ----------------------------------------------------------------------------------------------


def test_a_training_report_holds_its_norm_and_what_was_asked_for() -> None:
    told = report("train", TRAIN, arrays=MODEL)
    assert told.learning_rate == 0.5
    assert told.num_steps == 4
    assert told.gradient_variance is None
    assert told.update_norm is not None
    asked = {**TRAIN, "report-gradient-variance": True, "report-update-norm": True}
    content = say("train", asked, arrays=MODEL)
    told = read_report(content)
    difference = np.concatenate([(moved(content)[name] - MODEL[name]).ravel() for name in MODEL])
    assert told.update_norm == pytest.approx(np.linalg.norm(difference), rel=1e-5)
    assert told.update_norm == report("train", TRAIN, arrays=MODEL).update_norm
    assert told.gradient_variance is not None
    assert told.gradient_variance > 0
    plain = moved(say("train", TRAIN, arrays=MODEL))
    assert all(
        np.array_equal(moved(content)[name], plain[name]) for name in MODEL
    )  # measuring changes nothing


def test_the_numbers_without_options_are_those_of_plain_sgd(task: tasks.Task) -> None:
    """Bit for bit: each option left out, or set to nothing, takes the same steps."""
    data, model = task.client_data(8, 10, seed=1), some_model(task)
    settings: dict[str, Any] = {"learning_rate": 0.3, "steps": 12, "batch_size": 8, "seed": 5}
    plain = task.train(model, data, **settings)
    for options in (
        {"measure_variance": True},
        {"proximal_mu": 0.0, "control": None},
        {"control": {name: np.zeros_like(array) for name, array in model.items()}},
    ):
        same = task.train(model, data, **settings, **options)
        assert all(np.array_equal(plain.arrays[name], same.arrays[name]) for name in model), options
        assert plain.loss == same.loss
    assert np.isnan(plain.gradient_variance)


def gradients(task: tasks.Task, model: tasks.Arrays, data: Dataset, count: int) -> list[NDArray[np.float64]]:
    """Return the gradients of mini-batches at one model, from steps of one each."""
    rate, found = 1e-2, []
    for seed in range(count):
        after = task.train(model, data, learning_rate=rate, steps=1, batch_size=8, seed=seed).arrays
        found.append(np.concatenate([(model[n] - after[n]).ravel().astype(float) for n in model]) / rate)
    return found


def test_the_variance_is_that_of_mini_batch_gradients(task: tasks.Task) -> None:
    data, model = task.client_data(8, 10, seed=1), some_model(task)
    # With a tiny rate the model hardly moves, and all batches are at one point.
    result = task.train(
        model, data, learning_rate=1e-6, steps=300, batch_size=8, seed=0, measure_variance=True
    )
    g = np.array(gradients(task, model, data, 300))
    expected = ((g - g.mean(axis=0)) ** 2).sum() / (len(g) - 1)
    # Batches without replacement within an epoch differ a little more than independent ones.
    assert result.gradient_variance == pytest.approx(expected, rel=0.1)


def test_one_batch_of_everything_varies_by_drift_alone(task: tasks.Task) -> None:
    data, model = task.client_data(8, 10, seed=1), some_model(task)
    settings: dict[str, Any] = {"steps": 5, "batch_size": len(data), "seed": 0, "measure_variance": True}
    assert task.train(model, data, learning_rate=1e-6, **settings).gradient_variance < 1e-9
    once = task.train(model, data, learning_rate=0.1, **{**settings, "steps": 1})
    assert np.isnan(once.gradient_variance)


def test_welford_agrees_with_two_passes() -> None:
    rng = np.random.default_rng(0)
    stream = [{"a": rng.normal(5, 1, (3, 4)), "b": rng.normal(-100, 3, 7)} for _ in range(50)]
    variance = GradientVariance()
    for gradient in stream:
        variance.add(gradient.values())
    flat = np.array([np.concatenate([g["a"].ravel(), g["b"]]) for g in stream])
    assert variance.value == pytest.approx(flat.var(axis=0, ddof=1).sum(), rel=1e-10)
    variance.add([np.full((3, 4), np.inf), np.zeros(7)])
    assert np.isnan(variance.value)


def flat(arrays: tasks.Arrays) -> NDArray[np.float64]:
    return np.concatenate([arrays[name].ravel().astype(float) for name in sorted(arrays)])


def test_a_control_is_added_to_each_gradient(task: tasks.Task) -> None:
    data, model = task.client_data(8, 10, seed=1), some_model(task)
    rng = np.random.default_rng(1)
    control = {n: rng.normal(0, 0.1, a.shape).astype(np.float32) for n, a in model.items()}
    before = {name: array.copy() for name, array in control.items()}
    settings: dict[str, Any] = {"learning_rate": 0.2, "batch_size": 8, "seed": 5}
    one = task.train(model, data, steps=1, **settings)
    with_control = task.train(model, data, steps=1, control=control, **settings)
    assert flat(one.arrays) - flat(with_control.arrays) == pytest.approx(0.2 * flat(control), abs=1e-6)
    assert all(np.array_equal(control[name], before[name]) for name in control)
    # What cancels the gradient of the first batch keeps the model where it is.
    cancels = {n: (one.arrays[n] - model[n]) / np.float32(0.2) for n in model}
    stays = task.train(model, data, steps=1, control=cancels, **settings)
    assert flat(stays.arrays) == pytest.approx(flat(model), abs=1e-6)


def test_the_proximal_term_pulls_back_to_where_training_began(task: tasks.Task) -> None:
    data, model = task.client_data(8, 10, seed=1), some_model(task)
    settings: dict[str, Any] = {"learning_rate": 0.1, "batch_size": 8, "seed": 5}
    free = {k: task.train(model, data, steps=k, **settings).arrays for k in (1, 2)}
    held = {k: task.train(model, data, steps=k, proximal_mu=3.0, **settings).arrays for k in (1, 2, 60)}
    assert np.array_equal(flat(held[1]), flat(free[1]))  # the first step begins at w_t
    # The second begins at the same model, and differs by rate * mu * (w - w_t).
    assert flat(held[2]) - flat(free[2]) == pytest.approx(
        -0.1 * 3.0 * (flat(free[1]) - flat(model)), abs=1e-6
    )
    far = task.train(model, data, steps=60, **settings).arrays
    assert np.linalg.norm(flat(held[60]) - flat(model)) < 0.5 * np.linalg.norm(flat(far) - flat(model))


def test_flowers_proximal_mu_and_a_control_reach_the_task() -> None:
    control = {name: np.full_like(array, 0.01) for name, array in MODEL.items()}
    got = moved(say("train", {**TRAIN, "proximal-mu": 0.5}, arrays=MODEL, control=control))
    expected = DIGITS.train(
        MODEL,
        DATA,
        learning_rate=0.5,
        steps=4,
        batch_size=8,
        seed=5,
        proximal_mu=0.5,
        control=control,
    ).arrays
    assert all(np.array_equal(got[name], expected[name]) for name in MODEL)


def test_a_control_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"control has arrays .*: must be those of the model"):
        say("train", TRAIN, arrays=MODEL, control={"weight": MODEL["weight"]})


# --- private groups ----------------------------------------------------------------------------------------

MEMBER = {"private-group": 1}
ASKED = {"num-groups": 3, "epsilon": 2.0, "server-round": 4}


def test_a_private_group_is_reported_by_randomised_response_only(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("2a")
    node = {**MEMBER, "secret-file": str(tmp_path / "secret")}
    assert report(STATUS, node=node).group is None
    mine = GroupMember(1, 3, 2.0, 0x2A)
    content = say(GROUP, ASKED, node)
    assert read_report(content) == Report(group=mine.report(4))  # no identity, no size
    rates = [0.0, 0.5, 1.0]
    answers = [
        report(INVITATION, {**ASKED, "server-round": n, "rates": rates}, node).accepts for n in range(40)
    ]
    assert answers == [mine.accepts(n, rates) for n in range(40)]
    assert 5 < sum(map(bool, answers)) < 35


def test_a_limit_of_epsilon_binds_only_the_report_of_the_group() -> None:
    node = {**MEMBER, "group-epsilon": 0.5}
    assert report(INVITATION, {**ASKED, "rates": [0.0, 1.0, 0.0]}, node).accepts
    say("train", {**TRAIN, "update-scales": [1.0, 3.0, 7.0]}, node, arrays=MODEL)
    assert report(GROUP, {**ASKED, "epsilon": 0.5}, node).group is not None


def test_a_private_member_scales_its_own_update() -> None:
    plain = moved(say("train", TRAIN, MEMBER, arrays=MODEL))
    scaled = moved(say("train", {**TRAIN, "update-scales": [1.0, 3.0, 7.0]}, MEMBER, arrays=MODEL))
    assert flat(scaled) - flat(MODEL) == pytest.approx(3 * (flat(plain) - flat(MODEL)), abs=1e-5)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({}, "private-group = None in the node's config: must be one of '0', '1', '2'"),
        ({"private-group": 3}, "private-group = 3"),
        ({"private-group": "north"}, "private-group = 'north'"),
        ({"private-group": 1.0}, r"private-group = 1.0 in the node's config: must be text or a whole number"),
        (
            {**MEMBER, "group-epsilon": 1.0},
            r"epsilon = 2\.0: must be at most 1\.0, the client's",
        ),
        ({**MEMBER, "group-answers": "never"}, "group-answers = 'never'"),
    ],
)
def test_a_private_group_beyond_its_limits_is_refused(node: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        say(GROUP, ASKED, node)


def test_a_private_group_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("2a")
    node = {"private-group": "south", "secret-file": str(tmp_path / "secret")}
    names = {"group-names": ["north", "south", "west"]}
    assert report(GROUP, ASKED | names, node).group == GroupMember(1, 3, 2.0, 0x2A).report(4)
    plain = moved(say("train", TRAIN, node, arrays=MODEL))
    scaled = moved(say("train", {**TRAIN, "update-scales": [1.0, 3.0, 7.0]} | names, node, arrays=MODEL))
    assert flat(scaled) - flat(MODEL) == pytest.approx(3 * (flat(plain) - flat(MODEL)), abs=1e-5)
    for wrong in ({"group-names": ["north", "south"]}, {"group-names": "south"}):
        with pytest.raises(ValueError, match=r"group-names = .*: must be 3 names"):
            say(GROUP, ASKED | wrong, node)


def test_the_partitions_group_is_private_where_clients_decide() -> None:
    """The status of a client would say its group, if the run's partition makes groups."""
    run = {"partition": "groups:3"}
    reported = report(STATUS, run=run | {"selector": "flics"}).group
    assert reported in (0, 1, 2)
    private = run | {"selector": "flics-private"}
    assert report(STATUS, run=private).group is None
    assert report(STATUS, run=private, node={"group": "north"}).group == "north"  # its owner wants it
    rates = {"rates": [1.0 * (number == reported) for number in range(3)], "num-groups": 3}
    assert report(INVITATION, {**ASKED, **rates}, run=private).accepts
    other = {"private-group": (reported + 1) % 3}
    assert not report(INVITATION, {**ASKED, **rates}, run=private, node=other).accepts


def test_costs_and_energies_are_in_the_status() -> None:
    said = report(STATUS, node={"cost": 2, "energy": 0.5})
    assert (said.cost, said.energy) == (2.0, 0.5)
    assert (report(STATUS).cost, report(STATUS).energy) == (None, None)
    for name, wrong in (("cost", -1), ("energy", "much"), ("cost", True), ("energy", float("inf"))):
        with pytest.raises(ValueError, match=f"{name} = .* in the node's config: must be a finite number"):
            say(STATUS, node={name: wrong})


def test_a_secret_is_made_once_and_kept_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    node = {**MEMBER, "secret-file": str(file)}
    report(GROUP, ASKED, node)
    first = file.read_text()
    assert 2**64 < int(first, 16) < 2**128
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    said = [report(GROUP, {**ASKED, "server-round": n}, node).group for n in range(30)]
    assert file.read_text() == first
    assert len(set(said)) == 1  # permanent: the same for life
    fresh = {**node, "group-answers": "fresh"}
    file.write_text("1")  # a random secret gives only two of the three answers in one of fifteen cases
    assert len({report(GROUP, {**ASKED, "server-round": n}, fresh).group for n in range(30)}) == 3
    file.write_text("not a number")
    with pytest.raises(ValueError, match=r"secret-file = .*: must hold one hexadecimal number"):
        say(GROUP, ASKED, node)


def test_without_a_file_the_secret_lives_in_the_nodes_state() -> None:
    states = [RecordDict(), RecordDict()]
    secrets = []
    for state in states:
        config = {**ASKED, "epsilon": 0.001}
        say(GROUP, config, MEMBER, state=state)
        (kept,) = state.config_records.values()
        secrets.append(kept["hex"])
        say(GROUP, config, MEMBER, state=state)
        assert [each["hex"] for each in state.config_records.values()] == [secrets[-1]]
    assert secrets[0] != secrets[1]


# --- noise -------------------------------------------------------------------------------------------------

NOISE = {"noise-epsilon": 1.0, "loss-bound": 4.0, "norm-bound": 2.0}
EVERYTHING = {**TRAIN, "report-gradient-variance": True, "report-update-norm": True}


def test_a_norm_is_clipped_where_there_is_a_bound() -> None:
    full = report("train", EVERYTHING, arrays=MODEL).update_norm
    assert full is not None
    assert report("train", EVERYTHING, {"norm-bound": full / 2}, arrays=MODEL).update_norm == full / 2
    assert report("train", EVERYTHING, {"norm-bound": full * 2}, arrays=MODEL).update_norm == full


def test_a_norm_that_the_server_would_measure_otherwise_is_not_reported() -> None:
    """With noise or beyond its bound; and where a group scales the update, it would tell the group."""
    full = report("train", TRAIN, arrays=MODEL).update_norm
    assert full is not None
    assert report("train", TRAIN, {"norm-bound": full * 2}, arrays=MODEL).update_norm == full
    assert report("train", TRAIN, {"norm-bound": full / 2}, arrays=MODEL).update_norm is None
    assert report("train", TRAIN, NOISE, arrays=MODEL).update_norm is None
    scaled = {**TRAIN, "update-scales": [1.0, 2.0, 3.0]}
    assert report("train", scaled, {"private-group": 1}, arrays=MODEL).update_norm is None


def test_with_noise_only_noisy_numbers_are_reported() -> None:
    told = [report("train", EVERYTHING, NOISE, arrays=MODEL) for _ in range(20)]
    assert {each.gradient_variance for each in told} == {None}
    # Fresh each time, though the question is the same.
    assert len({each.train_loss for each in told}) > 1 < len({each.update_norm for each in told})
    assert all(0 <= (each.update_norm or 0) <= 2 and 0 <= (each.train_loss or 0) <= 4 for each in told)
    unbounded = report("train", EVERYTHING, {"noise-epsilon": 1.0}, arrays=MODEL)
    assert unbounded.train_loss is None
    assert unbounded.update_norm is None
    measured = say("evaluate", {}, NOISE, arrays=MODEL).metric_records["metrics"]
    assert measured.keys() == {"num-examples", "loss"}
    measured = say("evaluate", {}, {"noise-epsilon": 1.0}, arrays=MODEL).metric_records["metrics"]
    assert measured.keys() == {"num-examples"}
    measured = say("evaluate", {}, arrays=MODEL).metric_records["metrics"]
    assert measured.keys() == {"num-examples", "loss", "accuracy"}


def test_noise_has_the_stated_size() -> None:
    # ε = 50 at δ = .5: σ is a tenth of the bound or so, and the loss is far from both ends.
    node = {"noise-epsilon": 50.0, "noise-delta": 0.5, "loss-bound": 6.0}
    true = DIGITS.evaluate(MODEL, DATA).loss
    losses = np.array([report(LOSS, {"seed": 1}, node, arrays=MODEL).loss for _ in range(60)])
    assert losses.mean() == pytest.approx(true, abs=0.4)
    assert 0.2 < losses.std() < 1.2


def test_the_node_config_takes_precedence_over_the_run_config() -> None:
    assert (
        report(LOSS, {"seed": 1}, run=NOISE, arrays=MODEL).loss
        != report(LOSS, {"seed": 1}, arrays=MODEL).loss
    )
    off = report(LOSS, {"seed": 1}, {"noise-epsilon": 0}, run={"noise-epsilon": 1.0}, arrays=MODEL)
    assert off.loss == report(LOSS, {"seed": 1}, arrays=MODEL).loss


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"noise-epsilon": -1.0}, r"noise-epsilon = -1\.0: must be a finite number of at least 0"),
        ({"noise-epsilon": "much"}, "noise-epsilon = 'much'"),
        (
            {"noise-epsilon": 99.0, "loss-bound": 1.0},
            r"epsilon = 99\.0: must be greater than 0 and at most 50",
        ),
        ({"noise-epsilon": 1.0, "noise-delta": 0.9}, r"delta = 0\.9"),
    ],
)
def test_a_wrong_budget_in_the_node_config_is_refused(node: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        say("train", TRAIN, node, arrays=MODEL)


# --- with the server's side --------------------------------------------------------------------------------


def federation(strategy: SelectionStrategy, nodes: int = 6, **node: Any) -> tasks.Arrays:
    """Train over client.app for 6 rounds; of lists in the node's config each node has its own element."""
    grid = ToyGrid(
        {
            100 + m: node_of(
                app,
                {
                    "partition-id": m,
                    "num-partitions": nodes,
                    **{
                        name.replace("_", "-"): value[m] if isinstance(value, list) else value
                        for name, value in node.items()
                    },
                },
                DEFAULTS,
            )
            for m in range(nodes)
        }
    )
    config = ConfigRecord({key: value for key, value in TRAIN.items() if key not in ("seed", "server-round")})
    result = strategy.start(grid, record(DIGITS.initial_arrays(0)), num_rounds=6, train_config=config)
    return {name: array.numpy() for name, array in result.arrays.items()}


STRATEGIES: dict[str, tuple[Callable[..., SelectionStrategy], dict[str, Any]]] = {
    "pow-d": (lambda **options: PowerOfChoice(3, num_candidates=5, **options), {}),
    "pow-d, evaluated": (
        lambda **options: PowerOfChoice(3, **{**options, "polling": Polling(poll_with="evaluate")}),
        {},
    ),
    "cpow-d": (lambda **options: PowerOfChoice(3, variant="cpow-d", batch_size=4, **options), {}),
    "rpow-d": (lambda **options: PowerOfChoice(3, variant="rpow-d", **options), {}),
    "delta": (lambda **options: Delta(3, local_steps=4, **options), {}),
    "forecast": (lambda **options: Forecast(3, **options), {}),
    "flics": (lambda **options: Flics(3, **options), {"group": ["a", "a", "a", "b", "b", "b"]}),
    "flics, private": (
        lambda **options: Flics(3, private=True, group_shares=[1, 1], epsilon=8.0, **options),
        {"private_group": [0, 0, 0, 1, 1, 1]},
    ),
    "scaffold": (
        lambda **options: SelectionStrategy("uniform", clients_per_round=3, variates="scaffold", **options),
        {},
    ),
    "fedprox": (
        lambda **options: Forecast(
            3, server_strategy=FedProx(fraction_evaluate=0.0, proximal_mu=0.1), **options
        ),
        {},
    ),
}


@pytest.mark.parametrize("kind", STRATEGIES)
def test_every_kind_of_round_trains(kind: str) -> None:
    make, node = STRATEGIES[kind]
    records: list[RoundRecord] = []
    strategy = make(
        min_available_clients=6,
        polling=Polling(ask_status=True, interval=0.01),
        local_learning_rate=0.5,
        on_round=records.append,
    )
    model = federation(strategy, **node)
    assert len(records) == 6
    assert all(
        not record.failures and not record.skipped for record in records if record.selection.clients.size
    )
    assert sum(record.selection.clients.size for record in records) > 6
    before = DIGITS.evaluate(DIGITS.initial_arrays(0), DIGITS.test_data()).loss
    assert DIGITS.evaluate(model, DIGITS.test_data()).loss < 0.9 * before
    if kind == "delta":
        assert all(np.isfinite(record.feedback.gradient_variances).all() for record in records)


def test_private_flics_makes_the_step_of_its_shares_over_time() -> None:
    """Three quarters of the weight are the first ten clients', a quarter that of the ten others."""
    took_part: list[int] = []

    def node(number: int) -> Node:
        member = GroupMember(int(number > 9), 2, 8.0, secret=number)

        def answer(message: Message) -> Message:
            kind, config = message.metadata.message_type, message.content.config_records.get("config")
            if kind == STATUS or config is None:
                return Message(write_report(Report(client_id=f"c{number}", num_examples=1)), reply_to=message)
            round = int(config["server-round"])  # type: ignore[arg-type]
            if kind == GROUP:
                return Message(write_report(Report(group=member.report(round))), reply_to=message)
            if kind == INVITATION:
                yes = member.accepts(round, np.array(config["rates"]))
                return Message(write_report(Report(accepts=yes)), reply_to=message)
            w = message.content.array_records["arrays"]["w"].numpy()
            step = member.scale(np.array(config["update-scales"]))
            w[member.group] += np.float32(step)
            content = write_report(Report(num_examples=1))
            content["arrays"] = ArrayRecord({"w": Array(w)})
            return Message(content, reply_to=message)

        return answer

    strategy = Flics(
        4,
        private=True,
        group_shares=[3, 1],
        epsilon=8.0,
        faults=Faults(guard=False),
        min_available_clients=20,
        on_round=lambda record: took_part.append(record.selection.clients.size),
    )
    start = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    result = strategy.start(ToyGrid({n: node(n) for n in range(20)}), start, num_rounds=100)
    # Each client moves its group's coordinate by 1: the mean step is the groups' shares.
    assert result.arrays["w"].numpy() / 100 == pytest.approx([0.75, 0.25], abs=0.06)
    assert np.mean(took_part) == pytest.approx(4, abs=0.7)
