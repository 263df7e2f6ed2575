import numpy as np
import pytest

from benchmarks.experiments.power_of_choice import synthetic


def test_losses_and_a_training_step_are_those_of_softmax_regression():
    samples = synthetic.make_synthetic(0, num_clients=4, dimension=7)
    rng = np.random.default_rng(0)
    models = rng.normal(size=(3, 10, 8)).astype(np.float32)
    losses = synthetic.synthetic_losses(samples, models)

    def loss(model, at):
        logits = samples.x[at].astype(np.float64) @ model.T
        truth = logits[np.arange(len(at)), samples.y[at]]
        return float((np.log(np.exp(logits).sum(axis=1)) - truth).mean())

    for client, (start, size) in enumerate(zip(samples.starts, samples.sizes, strict=True)):
        for i, model in enumerate(models):
            assert losses[i, client] == pytest.approx(loss(model, np.arange(start, start + size)), rel=1e-4)

    clients, picks = np.array([2, 0, 2]), rng.integers(0, 50, (3, 1, 5))
    trained, told = synthetic.train_synthetic(samples, models, clients, picks, 0.01)
    for i, client in enumerate(clients):
        at = samples.starts[client] + picks[i, 0]
        assert told[i] == pytest.approx(loss(models[i], at), rel=1e-4)
        step, model = (models[i] - trained[i]) / 0.01, models[i].astype(np.float64)
        for row, column in ((0, 0), (4, 7), (9, 3)):
            nudge = np.zeros_like(model)
            nudge[row, column] = 1e-5
            slope = (loss(model + nudge, at) - loss(model - nudge, at)) / 2e-5
            assert step[row, column] == pytest.approx(slope, abs=2e-3)


def test_clients_of_synthetic_have_fifty_samples_or_more_each_and_all_inputs_a_one():
    samples = synthetic.make_synthetic(5)
    assert samples.sizes.min() >= 50
    assert samples.sizes.sum() == samples.y.size == len(samples.x)
    assert (samples.x[:, -1] == 1).all()
    assert set(samples.y) <= set(range(synthetic.CLASSES))
