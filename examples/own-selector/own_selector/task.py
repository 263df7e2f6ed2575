"""The data, the model and its training: softmax regression on scikit-learn's digits."""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Floats = NDArray[np.float32]
NUM_TEST = 360


def _digits() -> tuple[Floats, NDArray[np.int64]]:
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (pixels[order] / 16).astype(np.float32), labels[order]


def load_part(part: int, num_parts: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return the samples of one client. Each client holds 1.5 times as many as the one before."""
    pixels, labels = _digits()
    sizes = 1.5 ** np.arange(num_parts)
    ends = (np.cumsum(sizes) / sizes.sum() * (len(labels) - NUM_TEST)).astype(int)
    rows = slice(ends[part - 1] if part else 0, ends[part])
    return pixels[rows], labels[rows]


def load_test_data() -> tuple[Floats, NDArray[np.int64]]:
    """Return the samples that no client has."""
    pixels, labels = _digits()
    return pixels[-NUM_TEST:], labels[-NUM_TEST:]


def initial_weights() -> Floats:
    """Return the model before round 1, of shape (pixels, digits)."""
    return np.zeros((64, 10), np.float32)


def train(
    weights: Floats, inputs: Floats, labels: NDArray[np.int64], *, steps: int, rate: float, seed: int
) -> tuple[Floats, float]:
    """Train with SGD on mini-batches of 16; return the new weights and the mean loss."""
    rng, losses = np.random.default_rng(seed), []
    for _ in range(steps):
        rows = rng.integers(len(labels), size=16)
        p = _probabilities(weights, inputs[rows])
        losses.append(-np.log(p[range(16), labels[rows]] + 1e-9).mean())
        p[range(16), labels[rows]] -= 1
        weights = weights - rate * inputs[rows].T @ p / 16
    return weights, float(np.mean(losses))


def evaluate(weights: Floats, inputs: Floats, labels: NDArray[np.int64]) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    p = _probabilities(weights, inputs)
    loss = -np.log(p[range(len(labels)), labels] + 1e-9).mean()
    return float(loss), float((p.argmax(axis=1) == labels).mean())


def _probabilities(weights: Floats, inputs: Floats) -> Floats:
    scores = inputs @ weights
    e: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
