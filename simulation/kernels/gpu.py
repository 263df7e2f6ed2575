"""Speeds up large torch models on a GPU: CUDA graphs, faster gradients, updates kept in the GPU's memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from strategies.numerics.arrays import Floats
from strategies.rounds.trained_clients import ClientUpdates
from tasks.base import Arrays

from .base import Floats32

Step = Callable[..., tuple[dict[str, Tensor], Tensor]]
"""Maps models and a mini-batch (inputs, labels, shares) of each client to the gradients and losses."""


class UpdatesOnGPU(ClientUpdates):
    """Updates as the rows of a matrix (R, P) in a GPU's memory, see `StackedUpdates`."""

    def __init__(self, rows: Tensor, arrays: Arrays, split: Callable[[Floats32], Arrays]) -> None:
        self._rows, self._arrays, self._split = rows, arrays, split

    def norms(self) -> Floats:
        norms: Floats = np.sqrt([float(row.square().sum(dtype=torch.float64)) for row in self._rows])
        return norms

    def combined(self, coefficients: Floats) -> Arrays:
        used = np.flatnonzero(coefficients)  # an update with coefficient 0 may be NaN
        rows = self._rows if used.size == coefficients.size else self._rows[used]
        factors = torch.from_numpy(coefficients[used].astype(np.float32)).to(rows.device)
        return self._split(_fetched(factors @ rows))

    def model(self, row: int) -> Mapping[str, NDArray[Any]]:
        moves = self._split(_fetched(self._rows[row]))
        return {name: array + moves[name] for name, array in self._arrays.items()}


class Replayed:
    """A step of one client as a CUDA graph, which the GPU repeats without the CPU.

    A step of a large network consists of hundreds of CUDA kernels. The CPU needs more time to start them than
    the GPU needs to run them. A call overwrites the result of the previous call.
    """

    def __init__(self, step: Step, models: dict[str, Tensor], batch: Sequence[Tensor]) -> None:
        self._models = {name: tensor.clone() for name, tensor in models.items()}
        self._batch = [tensor.clone() for tensor in batch]
        self._graph = torch.cuda.CUDAGraph()
        before = torch.cuda.current_stream()
        apart = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        apart.wait_stream(before)
        with InputGradients():  # type: ignore[no-untyped-call]
            with torch.cuda.stream(apart):
                step(self._models, *self._batch)  # loads CUDA kernels, which is impossible in a recording
            before.wait_stream(apart)
            with torch.cuda.graph(self._graph):
                self._result = step(self._models, *self._batch)

    def __call__(self, models: dict[str, Tensor], *batch: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        torch._foreach_copy_(list(self._models.values()), list(models.values()))
        for own, given in zip(self._batch, batch, strict=True):
            own.copy_(given)
        self._graph.replay()
        return self._result


class InputGradients(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes the gradient of a convolution's inputs as a convolution of the gradient of its outputs.

    The filters of this second convolution are those of the first, rotated by 180 degrees. cuDNN's
    deterministic algorithm takes several times as long. It is still used if a stride, a dilation or the
    number of groups is above 1, if the convolution is transposed, or if its padding is at least as large as
    its filters.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.convolution_backward.default:
            return func(*args, **(kwargs or {}))
        moves, _, filters, _, strides, padding, dilations, transposed, extra, groups, wanted = args
        edges = [size - 1 - edge for size, edge in zip(filters.shape[2:], padding, strict=True)]
        fits = {*strides, *dilations, groups} == {1} and min(edges) >= 0 and not transposed
        if not (fits and wanted[0]):
            return func(*args)
        turned = filters.flip(*range(2, filters.ndim)).transpose(0, 1)
        of_inputs = torch.ops.aten.convolution.default(
            moves, turned, None, strides, edges, dilations, False, extra, groups
        )
        return of_inputs, *func(*args[:-1], [False, *wanted[1:]])[1:]


def _fetched(tensor: Tensor) -> Floats32:
    """Return a copy in page-locked memory; a GPU copies into it many times faster than into other memory."""
    found = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    array: Floats32 = found.copy_(tensor).numpy()
    return array
