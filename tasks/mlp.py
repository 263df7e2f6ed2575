"""A two-layer perceptron on the digits, in torch."""

from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from . import digits
from .base import Arrays, Dataset, GradientVariance, Metrics, Task, TrainResult, batches

_HIDDEN = 32


def _model(arrays: Arrays) -> nn.Module:
    """Return the network with a copy of ``arrays`` for parameters."""
    network = nn.Sequential(
        nn.Linear(digits.NUM_FEATURES, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, digits.NUM_CLASSES)
    )
    network.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    return network


class MLP(Task):
    """64 - 32 (ReLU) - 10, uniform Kaiming initialisation as torch's `Linear` has it."""

    def initial_arrays(self, seed: int) -> Arrays:
        random = np.random.default_rng(seed)
        arrays: Arrays = {}
        sizes = (digits.NUM_FEATURES, _HIDDEN, digits.NUM_CLASSES)
        for layer, (fan_in, fan_out) in zip(("0", "2"), pairwise(sizes), strict=True):
            bound = fan_in**-0.5
            arrays[f"{layer}.weight"] = random.uniform(-bound, bound, (fan_out, fan_in)).astype(np.float32)
            arrays[f"{layer}.bias"] = random.uniform(-bound, bound, fan_out).astype(np.float32)
        return arrays

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
        network = _model(arrays)
        parameters = list(network.parameters())
        starts = [parameter.detach().clone() for parameter in parameters] if proximal_mu else []
        controls = [torch.tensor(control[name]) for name, _ in network.named_parameters()] if control else []
        inputs, labels = torch.from_numpy(data.inputs), torch.from_numpy(data.labels)
        losses = []
        variance = GradientVariance()
        for batch in batches(len(data), batch_size, steps, seed):
            loss = cross_entropy(network(inputs[batch]), labels[batch])
            gradients = torch.autograd.grad(loss, parameters)
            # By hand: torch.optim would be imported for seconds in each client process.
            with torch.no_grad():
                if measure_variance:
                    variance.add(gradient.numpy() for gradient in gradients)
                for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                    if starts:
                        gradient += proximal_mu * (parameter - starts[i])
                    if controls:
                        gradient += controls[i]
                    parameter.sub_(learning_rate * gradient)
            losses.append(loss.item())
        trained = {name: tensor.numpy().copy() for name, tensor in network.state_dict().items()}
        return TrainResult(trained, float(np.mean(losses)), steps, variance.value)

    def evaluate(self, arrays: Arrays, data: Dataset) -> Metrics:
        with torch.inference_mode():
            logits = _model(arrays)(torch.from_numpy(data.inputs))
            labels = torch.from_numpy(data.labels)
            accuracy = (logits.argmax(dim=1) == labels).float().mean()
            return Metrics(float(cross_entropy(logits, labels)), float(accuracy))
