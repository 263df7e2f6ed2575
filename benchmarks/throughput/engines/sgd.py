"""Local training in PyTorch as a user would write it, with plain SGD on shuffled mini-batches."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.throughput.workloads import Parameters, Workload

torch.set_num_threads(1)


def network(workload: Workload) -> nn.Sequential:
    """Return the workload's network with the initial model."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(workload.layers):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), workload.initial(), strict=True):
            parameter.copy_(torch.from_numpy(values.T))
    return model


def parameters(model: nn.Module) -> Parameters:
    """Return a network's parameters in the form of `workloads.Parameters`."""
    return [parameter.detach().numpy().T.copy() for parameter in model.parameters()]


def batches(num_samples: int, workload: Workload) -> Iterator[torch.Tensor]:
    """Yield the sample indexes of each step's mini-batch, without replacement until too few are left."""
    size = min(workload.batch_size, num_samples)
    left = torch.randperm(num_samples)
    for _ in range(workload.steps):
        if len(left) < size:
            left = torch.randperm(num_samples)
        yield left[:size]
        left = left[size:]


def train(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, workload: Workload) -> None:
    """Train a network in place on one client's samples."""
    optimizer = torch.optim.SGD(model.parameters(), lr=workload.learning_rate)
    for batch in batches(len(labels), workload):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
