"""Personal models: the parts of the update by closed forms, and federations of the real apps."""

import numpy as np
import pytest
from flwr.app import RecordDict

from client.app import PERSONAL
from client.personal_model import personal_update, solve, split
from tasks.base import Task, TrainResult
from tasks.federated_data import Dataset

from ..server.test_apps import federation
from ..support.client_app import DATA, DIGITS, MODEL, TRAIN, moved, report, say

PERSONALLY = {**TRAIN, "personal-mu": 0.5, "personal-holdout": 0.25}


class Quadratic(Task):
    """The loss of β on samples a_i is the mean of (β - a_i)' A (β - a_i)/2, in exact arithmetic."""

    def __init__(self, curvature):
        self.curvature = curvature

    def train(self, arrays, data, *, learning_rate, steps, **options):
        start = arrays["w"]
        w, mu, control = start, options.get("proximal_mu", 0.0), options.get("control")
        for _ in range(steps):
            gradient = self.curvature @ (w - data.inputs.mean(axis=0)) + mu * (w - start)
            w = w - learning_rate * (gradient + (0 if control is None else control["w"]))
        return TrainResult({"w": w}, 1.0, steps)

    def evaluate(self, arrays, data):
        raise NotImplementedError

    initial_arrays = client_data = federated_data = test_data = None


def test_the_parts_are_the_gradient_of_the_bilevel_objective():
    """β(w) = (A + μ)^-1 (A a' + μ w); ∇h by central differences of h(w) = φ(w, β(w); D)."""
    rng = np.random.default_rng(1)
    root = rng.normal(size=(4, 4))
    curvature, mu = root @ root.T / 4, 0.7
    mine, held = (Dataset(rng.normal(size=(5, 4)), np.zeros(5, dtype=np.int64)) for _ in range(2))
    w, eye = rng.normal(size=4), np.eye(4)
    pull = np.linalg.inv(curvature + mu * eye)

    def personal(w):
        return pull @ (curvature @ mine.inputs.mean(axis=0) + mu * w)

    def h(w):
        beta = personal(w)
        off = beta - held.inputs
        return float((off @ curvature * off).sum(axis=1).mean() / 2 + mu / 2 * (beta - w) @ (beta - w))

    task = Quadratic(curvature)
    result = personal_update(
        task,
        {"w": w},
        {"w": rng.normal(size=4)},  # from wherever it starts, it ends at β(w)
        (mine, held),
        (True, True),
        mu=mu,
        learning_rate=0.3,
        steps=2000,
        batch_size=5,
        seed=1,
    )
    np.testing.assert_allclose(result.personal["w"], personal(w), atol=1e-5)
    np.testing.assert_allclose(result.parts[0], mu * (w - personal(w)), atol=1e-5)
    gradient = [(h(w + 1e-5 * e) - h(w - 1e-5 * e)) / 2e-5 for e in eye]
    np.testing.assert_allclose(result.parts[0] + result.parts[1], gradient, rtol=2e-3, atol=1e-4)
    assert np.linalg.norm(result.parts[1]) > 0.1 * np.linalg.norm(gradient)
    with pytest.raises(ValueError, match="the arrays of the personal model must be"):
        personal_update(
            task, {"w": w}, {"w": w[:2]}, (mine, held), (True, True),
            mu=mu, learning_rate=0.3, steps=1, batch_size=5, seed=1,
        )  # fmt: skip


def test_on_a_real_task_the_second_part_solves_its_system():
    """Softmax regression: H by the gradient's differences along every axis would be the same operator."""
    data = split(DATA, 0.4, 3)
    options = {
        "mu": 0.5, "learning_rate": 0.2, "steps": 50, "batch_size": 100, "seed": 1,
    }  # fmt: skip
    both = personal_update(DIGITS, MODEL, None, data, (True, True), **options)
    alone = personal_update(DIGITS, MODEL, None, data, (False, True), **options)
    np.testing.assert_array_equal(alone.parts[1], both.parts[1])
    assert not alone.parts[0].any()
    off = np.concatenate([(both.personal[name] - MODEL[name]).ravel() for name in MODEL])
    np.testing.assert_allclose(both.parts[0], -0.5 * off, atol=1e-6)
    assert np.linalg.norm(both.parts[1]) > 0


def test_conjugate_gradients():
    rng = np.random.default_rng(2)
    root = rng.normal(size=(6, 6))
    matrix, right = root @ root.T + np.eye(6), rng.normal(size=6)
    solution = solve(lambda v: matrix @ v, right)
    assert np.linalg.norm(matrix @ solution - right) <= 1e-3 * np.linalg.norm(right)
    assert not solve(lambda v: -v, right).any()  # downwards: no step
    assert not solve(lambda v: v, np.zeros(3)).any()


@pytest.mark.parametrize("n", [1, 2, 9])
@pytest.mark.parametrize("holdout", [0.01, 0.5, 0.99])
def test_both_halves_hold_samples_and_share_none(n, holdout):
    data = Dataset(np.arange(n, dtype=float)[:, None], np.arange(n))
    mine, held = split(data, holdout, 5)
    assert len(mine) >= 1
    assert len(held) >= 1
    again = split(data, holdout, 5)
    np.testing.assert_array_equal(again[1].labels, held.labels)
    if n > 1:
        assert sorted([*mine.labels, *held.labels]) == list(range(n))


def test_a_client_scales_its_parts_and_keeps_its_model():
    state = RecordDict()
    one = say("train", {**PERSONALLY, "part-scales": [1.0, 0.0]}, state=state, arrays=MODEL)
    assert PERSONAL in state.array_records
    assert "personal" not in str(one.array_records.keys())
    two = say("train", {**PERSONALLY, "part-scales": [0.0, 1.0]}, arrays=MODEL)
    both = say("train", {**PERSONALLY, "part-scales": [0.5, 1.0]}, arrays=MODEL)
    for name, array in MODEL.items():
        expected = array + 0.5 * (moved(one)[name] - array) + (moved(two)[name] - array)
        np.testing.assert_allclose(moved(both)[name], expected, atol=1e-6)
    told = report("train", {**PERSONALLY, "part-scales": [0.5, 1.0]}, arrays=MODEL)
    assert told.num_parts == 2
    alone = report("train", {**PERSONALLY, "part-scales": [1.0, 0.0]}, arrays=MODEL)
    assert alone.personal_norm is None
    assert alone.model_norm == pytest.approx(told.model_norm)
    # The next round goes on from the personal model.
    first = {name: array.numpy() for name, array in state.array_records[PERSONAL].items()}
    say("train", {**PERSONALLY, "part-scales": [1.0, 0.0]}, state=state, arrays=MODEL)
    second = state.array_records[PERSONAL]
    assert any((second[name].numpy() != first[name]).any() for name in first)


@pytest.mark.parametrize("scales", [[1.0], [1.0, 0.5, 0.5]])
def test_wrong_scales_are_refused(scales):
    with pytest.raises(ValueError, match=r"part-scales = .*: must be 2 numbers"):
        say("train", {**PERSONALLY, "part-scales": scales}, arrays=MODEL)


def test_a_federation_with_personal_models(tmp_path):
    lines = federation(
        tmp_path,
        num_clients=8,
        num_rounds=15,
        clients_per_round=6,
        selector="personalised-osmd",
        selector_settings="learning-rate-multiplier=100",
    )
    rounds = [line for line in lines if line["type"] == "round" and line["round"]]
    assert len(rounds) == 15
    assert all(not line["failures"] and not line["skipped"] for line in rounds)
    assert rounds[-1]["test_accuracy"] > 0.5
    assert rounds[-1]["test_loss"] < 0.8 * rounds[0]["test_loss"]


def test_evaluation_reports_the_personal_model():
    state, run = RecordDict(), {"selector": "personalised-osmd"}
    before = say("evaluate", state=state, run=run, arrays=MODEL).metric_records["metrics"]
    assert before["personal-loss"] == before["loss"]
    say("train", {**PERSONALLY, "part-scales": [1.0, 1.0]}, state=state, run=run, arrays=MODEL)
    after = say("evaluate", state=state, run=run, arrays=MODEL).metric_records["metrics"]
    assert after["personal-loss"] < after["loss"] == before["loss"]
    assert "personal-loss" not in say("evaluate", arrays=MODEL).metric_records["metrics"]
