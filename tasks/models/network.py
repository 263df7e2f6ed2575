"""The base of the networks in torch: initial parameters, training with plain SGD, and evaluation."""

from abc import abstractmethod

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..base import Arrays, GradientVariance, Metrics, TrainResult, batches
from ..federated_data import Dataset
from ..partitioned_task import PartitionedTask

_CHUNK = 1000  # samples evaluated at once


class Network(PartitionedTask):
    """A network whose parameters have torch's names and layouts. Subclasses define its layers.

    At the start, weights and biases are uniform in ±1/sqrt(fan in), as in torch's own layers, but are drawn
    from the seed. Group norms start with the weight 1 and the bias 0, embeddings with normal draws of
    variance 1.
    """

    @abstractmethod
    def layers(self) -> nn.Sequential:
        """Return the layers. The values of their parameters are not used."""

    def initial_arrays(self, seed: int) -> Arrays:
        random = np.random.default_rng(seed)
        arrays: Arrays = {}
        for name, layer in self._empty().named_modules():
            fan_in = 0
            for kind, parameter in layer.named_parameters(recurse=False):
                if isinstance(layer, nn.GroupNorm):
                    array = np.full(parameter.shape, kind == "weight", np.float32)
                elif isinstance(layer, nn.Embedding):
                    array = random.standard_normal(tuple(parameter.shape)).astype(np.float32)
                else:
                    fan_in = fan_in or parameter[0].numel()  # the weight comes first
                    bound = fan_in**-0.5
                    array = random.uniform(-bound, bound, tuple(parameter.shape)).astype(np.float32)
                arrays[f"{name}.{kind}"] = array
        return arrays

    def _empty(self) -> nn.Sequential:
        with torch.device("meta"):  # takes no memory and no draws from the global generator
            return self.layers()

    def _model(self, arrays: Arrays) -> nn.Module:
        """Return the network with copies of ``arrays`` as parameters."""
        network = self._empty()
        network.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()}, assign=True)
        return network

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
        network = self._model(arrays)
        parameters = list(network.parameters())
        starts = [parameter.detach().clone() for parameter in parameters] if proximal_mu else []
        controls = [torch.tensor(control[name]) for name, _ in network.named_parameters()] if control else []
        inputs, labels = torch.from_numpy(data.inputs), torch.from_numpy(data.labels)
        losses = []
        variance = GradientVariance()
        for batch in batches(len(data), batch_size, steps, seed):
            loss = cross_entropy(network(inputs[batch]), labels[batch])
            gradients = torch.autograd.grad(loss, parameters)
            # The step is written out here, since importing torch.optim takes seconds in each client process.
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
        network = self._model(arrays)
        loss, accuracy = 0.0, 0.0
        with torch.inference_mode():
            # Samples are evaluated in chunks, because convolutions need far more memory than their inputs.
            for start in range(0, len(data), _CHUNK):
                labels = torch.from_numpy(data.labels[start : start + _CHUNK])
                logits = network(torch.from_numpy(data.inputs[start : start + _CHUNK]))
                loss += float(cross_entropy(logits, labels)) * len(labels)
                accuracy += float((logits.argmax(dim=1) == labels).float().mean()) * len(labels)
        return Metrics(loss / len(data), accuracy / len(data))
