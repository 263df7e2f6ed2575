"""Kernels, which train many clients in one call, all from the same model.

A client trains on the same mini-batches as its ClientApp would, so the results equal those of the ClientApp
up to rounding.
"""

import sys

from tasks.base import Task
from tasks.models.softmax import Softmax as SoftmaxTask

from .base import Kernel, Plan, Trained
from .dense import MLP, Softmax
from .loop import Loop
from .parallel import Parallel

__all__ = ["MLP", "Kernel", "Loop", "Parallel", "Plan", "Softmax", "Trained", "kernel_of"]


def kernel_of(task: Task, device: str | None = None) -> Kernel:
    """Return the kernel for a task's model.

    Softmax regression and perceptrons have kernels in NumPy, other networks use `torch.func`, and any other
    task is trained client after client. ``device`` is "cpu" or "cuda": where torch trains networks (default:
    "cuda" if it is available). With "cuda", torch trains perceptrons, too.
    """
    if type(task) is SoftmaxTask:  # not a subclass, which may train differently
        arrays = task.initial_arrays(0)
        return Softmax(*arrays["weight"].shape, bias="bias" in arrays)
    if "torch" not in sys.modules:  # the task has no network, since a task with a network imports torch
        return Loop(task)
    from torch.cuda import is_available

    from tasks.models import mlp, network

    from .torch_functional import Torch

    if type(task) is mlp.MLP and device in (None, "cpu"):
        return MLP(task.sizes)
    if isinstance(task, network.Network):
        where = device or ("cuda" if is_available() else "cpu")
        return Torch(task.layers, task.initial_arrays, device=where)
    return Loop(task)
