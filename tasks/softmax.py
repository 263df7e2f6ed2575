"""Multinomial logistic regression on the digits, in NumPy: starts at once and runs on any device."""

import numpy as np
from numpy.typing import NDArray

from . import digits
from .base import Arrays, Dataset, GradientVariance, Metrics, Task, TrainResult, batches


def _log_probabilities(arrays: Arrays, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (n, classes) log softmax(x W + b)."""
    logits: NDArray[np.float32] = inputs @ arrays["weight"] + arrays["bias"]
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


class Softmax(Task):
    """p(y | x) = softmax(x W + b); W is (64, 10), b is (10,), both 0 at the start."""

    def initial_arrays(self, seed: int) -> Arrays:
        return {
            "weight": np.zeros((digits.NUM_FEATURES, digits.NUM_CLASSES), np.float32),
            "bias": np.zeros(digits.NUM_CLASSES, np.float32),
        }

    def client_data(self, partition: int, num_partitions: int, seed: int) -> Dataset:
        return digits.client_data(partition, num_partitions, seed)

    def test_data(self) -> Dataset:
        return digits.test_data()

    def train(
        self,
        arrays: Arrays,
        data: Dataset,
        *,
        learning_rate: float,
        steps: int,
        batch_size: int,
        seed: int,
        proximal_mu: float = 0.0,
        control: Arrays | None = None,
        measure_variance: bool = False,
    ) -> TrainResult:
        model = {name: array.copy() for name, array in arrays.items()}
        losses = []
        variance = GradientVariance()  # of steps: of gradients, times the squared learning rate
        for batch in batches(len(data), batch_size, steps, seed):
            inputs, labels = data.inputs[batch], data.labels[batch]
            log_p = _log_probabilities(model, inputs)
            rows = np.arange(len(batch))
            losses.append(-log_p[rows, labels].mean())
            error = np.exp(log_p)
            error[rows, labels] -= 1
            error *= np.float32(learning_rate / len(batch))
            moves = {"weight": inputs.T @ error, "bias": error.sum(axis=0)}
            if measure_variance:
                variance.add(moves.values())
            for name, move in moves.items():
                if proximal_mu:
                    move += np.float32(learning_rate * proximal_mu) * (model[name] - arrays[name])
                if control is not None:
                    move += np.float32(learning_rate) * control[name]
                model[name] -= move
        return TrainResult(model, float(np.mean(losses)), steps, variance.value / learning_rate**2)

    def evaluate(self, arrays: Arrays, data: Dataset) -> Metrics:
        log_p = _log_probabilities(arrays, data.inputs)
        loss = -log_p[np.arange(len(data)), data.labels].mean()
        return Metrics(float(loss), float((log_p.argmax(axis=1) == data.labels).mean()))
