"""Multinomial logistic regression in NumPy, which starts fast and runs on any device."""

import numpy as np
from numpy.typing import NDArray

from ..base import Arrays, GradientVariance, Metrics, TrainResult, batches
from ..federated_data import Dataset
from ..partitioned_task import PartitionedTask


def _log_probabilities(arrays: Arrays, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (n, classes) log softmax(x W + b)."""
    logits: NDArray[np.float32] = inputs @ arrays["weight"]
    if "bias" in arrays:
        logits += arrays["bias"]
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


class Softmax(PartitionedTask):
    """p(y | x) = softmax(x W + b) with W (features, classes) and b (classes,), both 0 at the start.

    With ``bias=False``, the model has no b, as in section G of the OSMD paper.
    """

    def __init__(self, dataset: str = "digits", *, bias: bool = True, **data: str) -> None:
        super().__init__(dataset, **data)
        self._bias = bias

    def initial_arrays(self, seed: int) -> Arrays:
        arrays: Arrays = {"weight": np.zeros((self.data.num_features, self.data.num_classes), np.float32)}
        if self._bias:
            arrays["bias"] = np.zeros(self.data.num_classes, np.float32)
        return arrays

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
        variance = GradientVariance()  # of the moves, which are gradients times the learning rate
        for batch in batches(len(data), batch_size, steps, seed):
            inputs, labels = data.inputs[batch], data.labels[batch]
            log_p = _log_probabilities(model, inputs)
            rows = np.arange(len(batch))
            losses.append(-log_p[rows, labels].mean())
            error = np.exp(log_p)
            error[rows, labels] -= 1
            error *= np.float32(learning_rate / len(batch))
            moves = {"weight": inputs.T @ error}
            if "bias" in model:
                moves["bias"] = error.sum(axis=0)
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
