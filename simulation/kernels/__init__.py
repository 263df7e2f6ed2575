"""Local training of whole cohorts: kernels for the models at hand, and `torch.func` for the rest.

A kernel trains many clients from one model in one call, and gives the numbers that a ClientApp would, client
by client, on the same mini-batches (to rounding).
"""

import sys

from tasks.base import Task
from tasks.softmax import Softmax as SoftmaxTask

from .base import Kernel, Plan, Trained
from .dense import MLP, Softmax
from .loop import Loop
from .parallel import Parallel

__all__ = ["MLP", "Kernel", "Loop", "Parallel", "Plan", "Softmax", "Trained", "kernel_of"]


def kernel_of(task: Task, device: str | None = None) -> Kernel:
    """Return what trains a task's model for many clients at once.

    Parameters
    ----------
    task : Task
        Softmax regression and perceptrons have kernels in NumPy, other networks go through `torch.func`,
        anything else is trained client after client.
    device : str, optional
        "cpu" or "cuda": where networks are trained in torch. Default: on a GPU if there is one, but
        perceptrons in NumPy.
    """
    if type(task) is SoftmaxTask:  # a subclass may train in its own way
        arrays = task.initial_arrays(0)
        return Softmax(*arrays["weight"].shape, bias="bias" in arrays)
    if "torch" not in sys.modules:  # then it is no network: their tasks import it
        return Loop(task)
    from torch.cuda import is_available

    from tasks import mlp, network

    from .torch_functional import Torch

    if type(task) is mlp.MLP and device in (None, "cpu"):
        return MLP(task.sizes)
    if isinstance(task, network.Network):
        where = device or ("cuda" if is_available() else "cpu")
        return Torch(task.layers, task.initial_arrays, device=where)
    return Loop(task)
