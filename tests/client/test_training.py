"""Local training in the ClientApp: its numbers, and what it reports about them."""

import numpy as np
import pytest

import tasks
from strategies.flower.messages import read_report
from tasks.base import GradientVariance

from ..support.client_app import DATA, DIGITS, MODEL, TRAIN, flat, moved, report, say, some_model


@pytest.fixture(params=["digits", "digits-mlp"])
def task(request):
    return tasks.create(request.param)


def test_a_training_report_holds_its_norm_and_what_was_asked_for():
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


def test_the_numbers_without_options_are_those_of_plain_sgd(task):
    """Bit for bit: each option left out, or set to nothing, takes the same steps."""
    data, model = task.client_data(8, 10, seed=1), some_model(task)
    settings = {"learning_rate": 0.3, "steps": 12, "batch_size": 8, "seed": 5}
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


def gradients(task, model, data, count):
    """Return the gradients of mini-batches at one model, from steps of one each."""
    rate, found = 1e-2, []
    for seed in range(count):
        after = task.train(model, data, learning_rate=rate, steps=1, batch_size=8, seed=seed).arrays
        found.append(np.concatenate([(model[n] - after[n]).ravel().astype(float) for n in model]) / rate)
    return found


def test_the_variance_is_that_of_mini_batch_gradients(task):
    data, model = task.client_data(8, 10, seed=1), some_model(task)
    # With a tiny rate the model hardly moves, and all batches are at one point.
    result = task.train(
        model, data, learning_rate=1e-6, steps=300, batch_size=8, seed=0, measure_variance=True
    )
    g = np.array(gradients(task, model, data, 300))
    expected = ((g - g.mean(axis=0)) ** 2).sum() / (len(g) - 1)
    # Batches without replacement within an epoch differ a little more than independent ones.
    assert result.gradient_variance == pytest.approx(expected, rel=0.1)


def test_one_batch_of_everything_varies_by_drift_alone(task):
    data, model = task.client_data(8, 10, seed=1), some_model(task)
    settings = {"steps": 5, "batch_size": len(data), "seed": 0, "measure_variance": True}
    assert task.train(model, data, learning_rate=1e-6, **settings).gradient_variance < 1e-9
    once = task.train(model, data, learning_rate=0.1, **{**settings, "steps": 1})
    assert np.isnan(once.gradient_variance)


def test_welford_agrees_with_two_passes():
    rng = np.random.default_rng(0)
    stream = [{"a": rng.normal(5, 1, (3, 4)), "b": rng.normal(-100, 3, 7)} for _ in range(50)]
    variance = GradientVariance()
    for gradient in stream:
        variance.add(gradient.values())
    flat = np.array([np.concatenate([g["a"].ravel(), g["b"]]) for g in stream])
    assert variance.value == pytest.approx(flat.var(axis=0, ddof=1).sum(), rel=1e-10)
    variance.add([np.full((3, 4), np.inf), np.zeros(7)])
    assert np.isnan(variance.value)


def test_a_control_is_added_to_each_gradient(task):
    data, model = task.client_data(8, 10, seed=1), some_model(task)
    rng = np.random.default_rng(1)
    control = {n: rng.normal(0, 0.1, a.shape).astype(np.float32) for n, a in model.items()}
    before = {name: array.copy() for name, array in control.items()}
    settings = {"learning_rate": 0.2, "batch_size": 8, "seed": 5}
    one = task.train(model, data, steps=1, **settings)
    with_control = task.train(model, data, steps=1, control=control, **settings)
    assert flat(one.arrays) - flat(with_control.arrays) == pytest.approx(0.2 * flat(control), abs=1e-6)
    assert all(np.array_equal(control[name], before[name]) for name in control)
    # What cancels the gradient of the first batch keeps the model where it is.
    cancels = {n: (one.arrays[n] - model[n]) / np.float32(0.2) for n in model}
    stays = task.train(model, data, steps=1, control=cancels, **settings)
    assert flat(stays.arrays) == pytest.approx(flat(model), abs=1e-6)


def test_the_proximal_term_pulls_back_to_where_training_began(task):
    data, model = task.client_data(8, 10, seed=1), some_model(task)
    settings = {"learning_rate": 0.1, "batch_size": 8, "seed": 5}
    free = {k: task.train(model, data, steps=k, **settings).arrays for k in (1, 2)}
    held = {k: task.train(model, data, steps=k, proximal_mu=3.0, **settings).arrays for k in (1, 2, 60)}
    assert np.array_equal(flat(held[1]), flat(free[1]))  # the first step begins at w_t
    # The second begins at the same model, and differs by rate * mu * (w - w_t).
    assert flat(held[2]) - flat(free[2]) == pytest.approx(
        -0.1 * 3.0 * (flat(free[1]) - flat(model)), abs=1e-6
    )
    far = task.train(model, data, steps=60, **settings).arrays
    assert np.linalg.norm(flat(held[60]) - flat(model)) < 0.5 * np.linalg.norm(flat(far) - flat(model))


def test_flowers_proximal_mu_and_a_control_reach_the_task():
    control = {name: np.full_like(array, 0.01) for name, array in MODEL.items()}
    got = moved(say("train", {**TRAIN, "proximal-mu": 0.5}, arrays=MODEL, control=control))
    expected = DIGITS.train(
        MODEL, DATA, learning_rate=0.5, steps=4, batch_size=8, seed=5, proximal_mu=0.5, control=control
    ).arrays
    assert all(np.array_equal(got[name], expected[name]) for name in MODEL)


def test_a_control_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"control has arrays .*: must be those of the model"):
        say("train", TRAIN, arrays=MODEL, control={"weight": MODEL["weight"]})
