"""A kernel for torch models: `torch.func` turns the training of one client into the training of many."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from math import nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from strategies.numerics.arrays import Floats, Ints
from tasks.base import Arrays, Metrics
from tasks.federated_data import Dataset, FederatedData

from .base import Kernel, MiniBatches, Plan, StackedUpdates, Trained, chunked, splitter
from .gpu import Replayed, Step, UpdatesOnGPU

# Default limit on a chunk's models and mini-batches, in bytes. The limit for a CPU is small: there, several
# models in one convolution are slower than one model after another, except for the smallest models.
_MEMORY, _MEMORY_OF_GPU = 1 << 23, 1 << 30
# On a GPU, models of fewer bytes than this train together. Larger models (ResNet-18) train one after another:
# several of them in one convolution are slower.
_SMALL = 1 << 24
_ROWS = 1000  # samples per step of an evaluation


class Torch(Kernel):
    """A module that maps (n, features) to (n, classes) logits, trained with cross-entropy.

    ``build``: Returns the module; the values of its parameters are not used. The module's state must consist
    of parameters only, and its output must be a function of its input: no running statistics, no dropout.
    Which operations it executes must not depend on the values of its input. ``initial_arrays``: Returns the
    initial arrays by parameter name, for a seed. ``device`` (default: "cpu"): Device of the training: "cuda"
    for a GPU. ``memory``: Limit on a chunk's models and mini-batches, in bytes (default: 8 MB; 1 GB on a GPU
    if a model has less than 16 MB).
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        initial_arrays: Callable[[int], Arrays],
        *,
        device: str = "cpu",
        memory: int | None = None,
    ) -> None:
        with torch.device("meta"):  # uses no memory and no global random numbers
            module = build()
        if names := [name for name, _ in module.named_buffers()]:
            raise ValueError(f"the module has buffers, {', '.join(names)}: must have parameters only")
        if dropout := [name for name, part in module.named_modules() if "Dropout" in type(part).__name__]:
            raise ValueError(f"the module has dropout, {', '.join(dropout)}: must have none")
        self._module, self._start = module, initial_arrays
        self._num_parameters = sum(
            parameter.numel() for _, parameter in module.named_parameters(remove_duplicate=False)
        )
        self._device = device
        on_gpu, is_small = device != "cpu", 4 * self._num_parameters < _SMALL
        self._is_large_on_gpu = on_gpu and not is_small
        self._memory = memory or (_MEMORY_OF_GPU if on_gpu and is_small else _MEMORY)

    def initial_arrays(self, seed: int) -> Arrays:
        return self._start(seed)

    def check(self, data: FederatedData) -> None:
        num_features = data.inputs.shape[-1]
        try:
            logits = self._module(torch.empty(1, num_features, device="meta"))  # shapes only
        except RuntimeError as error:
            raise ValueError(f"inputs of {num_features} features: do not fit the module: {error}") from error
        data.check(num_features, logits.shape[1])

    def train(
        self,
        arrays: Arrays,
        data: FederatedData,
        clients: Ints,
        plan: Plan,
        controls: Mapping[int, Arrays] | None = None,
    ) -> Trained:
        steps, widths = plan.work(data, clients)
        start = self._tensors(arrays)
        rows = self._empty(clients.size)
        chunks = self.chunks(data, clients, plan)
        numbers: list[list[Tensor]] = []  # on the device, so that a GPU need not wait for this process
        replayed: dict[tuple[int, ...], Replayed] = {}
        for chunk in chunks:
            work = MiniBatches(data, clients[chunk], plan, int(steps[chunk[0]]), widths[chunk])
            added = None
            if controls is not None:
                each = [self._tensors(controls[int(client)]) for client in clients[chunk]]
                added = {name: torch.stack([one[name] for one in each]) for name in start}
            with _exactly():
                moves, *found = self._train_chunk(start, work, plan, added, replayed)
            for row, move in zip(chunk.tolist(), moves, strict=True):
                rows[row].copy_(move, non_blocking=True)
            numbers.append(found)
        if self._device != "cpu":
            torch.cuda.synchronize()
        losses, variances = np.empty(clients.size), np.empty(clients.size)
        for chunk, found in zip(chunks, numbers, strict=True):
            losses[chunk], variances[chunk] = (each.cpu().numpy() for each in found)
        split = splitter(arrays)
        if rows.is_cuda:
            return Trained(UpdatesOnGPU(rows, arrays, split), losses, variances)
        return Trained(StackedUpdates(rows.numpy(), arrays, split), losses, variances)

    def _empty(self, count: int) -> Tensor:
        """Return memory for ``count`` updates, in the GPU's memory or in page-locked main memory.

        A GPU adds the updates of large models many times faster than a CPU. So these updates stay in the
        GPU's memory, unless they take more than a quarter of it.
        """
        shape = count, self._num_parameters
        if self._is_large_on_gpu:
            memory = torch.cuda.get_device_properties(self._device).total_memory
            if 16 * count * self._num_parameters <= memory:
                return torch.empty(shape, device=self._device)
        return torch.empty(shape, pin_memory=self._device != "cpu")

    def chunks(self, data: FederatedData, clients: Ints, plan: Plan, controlled: bool = False) -> list[Ints]:
        def capacity(width: int) -> int:
            return int(self._memory // (4 * (4 * self._num_parameters + 8 * width * data.inputs.shape[1])))

        return chunked(*plan.work(data, clients), capacity)

    def _train_chunk(
        self,
        start: dict[str, Tensor],
        work: MiniBatches,
        plan: Plan,
        added: dict[str, Tensor] | None,
        replayed: dict[tuple[int, ...], Replayed],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Take all steps of G clients; return (G, P) updates, (G,) mean losses, (G,) gradient variances."""
        count = work.shape[0]
        models = {name: tensor.expand(count, *tensor.shape).clone() for name, tensor in start.items()}
        shares = self._sent(work.shares)
        step: Step = vmap(grad_and_value(self._loss)) if count > 1 else self._step_of_one
        losses = torch.zeros(count, device=self._device)
        variance = _Variance() if plan.measure_variance else None
        for inputs, labels in work:
            batch = self._sent(inputs), self._sent(labels), shares
            if self._is_large_on_gpu and count == 1:
                if work.shape not in replayed:
                    replayed[work.shape] = Replayed(self._step_of_one, models, batch)
                step = replayed[work.shape]
            gradients, each = step(models, *batch)
            losses += each
            if variance:
                variance.add(_flat({name: gradients[name] for name in start}))
            for name, model in models.items():
                gradient = gradients[name]
                if plan.proximal_mu:
                    gradient = gradient + plan.proximal_mu * (model - start[name])
                if added is not None:
                    gradient = gradient + added[name]
                model.sub_(gradient, alpha=plan.learning_rate)
        moves = _flat({name: model - start[name] for name, model in models.items()})
        return moves, losses / work.steps, variance.values() if variance else torch.full((count,), nan)

    def _step_of_one(
        self, models: dict[str, Tensor], inputs: Tensor, labels: Tensor, shares: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the gradients and losses of a chunk of one client; this is faster than `vmap`."""
        model = {name: tensor[0].requires_grad_() for name, tensor in models.items()}
        loss = self._loss(model, inputs[0], labels[0], shares[0])
        gradients = torch.autograd.grad(loss, list(model.values()), materialize_grads=True)
        return {name: each[None] for name, each in zip(model, gradients, strict=True)}, loss.detach()[None]

    def _loss(self, model: dict[str, Tensor], inputs: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
        logits = functional_call(self._module, model, (inputs,))
        return (cross_entropy(logits, labels, reduction="none") * shares).sum()

    def losses(self, arrays: Arrays, data: FederatedData, clients: Ints) -> Floats:
        return np.array([self.evaluate(arrays, data.client(m)).loss for m in clients.tolist()])

    def evaluate(self, arrays: Arrays, data: Dataset) -> Metrics:
        model = self._tensors(arrays)
        loss = right = 0.0
        with torch.inference_mode(), _exactly():
            for begin in range(0, len(data), _ROWS):
                rows = slice(begin, begin + _ROWS)
                inputs = torch.from_numpy(data.inputs[rows]).to(self._device)
                labels = torch.from_numpy(data.labels[rows]).to(self._device)
                logits = functional_call(self._module, model, (inputs,))
                loss += float(cross_entropy(logits, labels, reduction="sum"))
                right += float((logits.argmax(dim=1) == labels).sum())
        return Metrics(loss / len(data), right / len(data))

    def _sent(self, array: NDArray[Any]) -> Tensor:
        """Return a tensor on the device; on the CPU it shares the array's memory.

        If the model is large, the GPU copies from page-locked memory while this process goes on. Otherwise
        this process waits for the GPU, since small models train faster without page-locked memory.
        """
        tensor = torch.from_numpy(array)
        if self._is_large_on_gpu:
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)

    def _tensors(self, arrays: Arrays) -> dict[str, Tensor]:
        return {name: torch.tensor(array, device=self._device) for name, array in arrays.items()}


class _Variance:
    """The variance of each client's mini-batch gradients, as `tasks.base.GradientVariance`, on the device."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, gradients: Tensor) -> None:
        """Include a mini-batch's gradient of each client, (G, P)."""
        self._count += 1
        if self._count == 1:
            self._mean = gradients.clone()
            self._squares = torch.zeros(len(gradients), dtype=torch.float64, device=gradients.device)
            return
        moved = gradients - self._mean
        self._mean += moved / self._count
        self._squares += moved.square_().sum(dim=1, dtype=torch.float64) * (1 - 1 / self._count)

    def values(self) -> Tensor:
        found = self._squares / (self._count - 1)  # 0 / 0 is NaN
        return found.masked_fill(~found.isfinite(), nan)


def _flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten(1) for tensor in tensors.values()], dim=1)


def _exactly() -> AbstractContextManager[None]:
    """Make a GPU convolve deterministically, and in float32 instead of TF32, to match the CPU's numbers."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, deterministic=True, allow_tf32=False
    )
    return flags
