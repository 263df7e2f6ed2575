"""The data, the model and its training: a convolutional network on scikit-learn's digits."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_TEST = 360


class Net(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores (n, 10) of images (n, 1, 8, 8)."""
        return self.layers(images)


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = torch.tensor(pixels[order] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return images, torch.tensor(labels[order])


def load_part(part: int, num_parts: int) -> TensorDataset:
    """Return the samples of one client. Each client holds 1.5 times as many as the one before."""
    images, labels = _digits()
    sizes = 1.5 ** np.arange(num_parts)
    ends = (np.cumsum(sizes) / sizes.sum() * (len(labels) - NUM_TEST)).astype(int)
    rows = slice(ends[part - 1] if part else 0, ends[part])
    return TensorDataset(images[rows], labels[rows])


def load_test_data() -> TensorDataset:
    """Return the samples that no client has."""
    images, labels = _digits()
    return TensorDataset(images[-NUM_TEST:], labels[-NUM_TEST:])


def train(net: Net, data: TensorDataset, *, epochs: int, rate: float, seed: int) -> float:
    """Train the network with SGD; return the mean loss."""
    loader = DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    losses = []
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


@torch.no_grad()
def evaluate(net: Net, data: TensorDataset) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    images, labels = data.tensors
    scores = net(images)
    loss = nn.functional.cross_entropy(scores, labels)
    return loss.item(), (scores.argmax(dim=1) == labels).float().mean().item()
