"""The learning tasks. Each has a model, a data set and a partition; the model is in NumPy or in torch.

`create` imports a task's module only when that task is asked for, so a device that trains a NumPy model never
imports torch.
"""

from importlib import import_module
from typing import Any

from .base import Arrays, Task
from .data import Dataset

__all__ = ["Arrays", "Dataset", "Task", "available", "create"]

_SOFTMAX = ("softmax", "Softmax")  # module, class
_MLP = ("mlp", "MLP")
_CNN = ("cnn", "CNN")

# For each task: its model, its data set, further arguments of the model.
_TASKS: dict[str, tuple[tuple[str, str], str, dict[str, Any]]] = {
    "digits": (_SOFTMAX, "digits", {}),
    "digits-mlp": (_MLP, "digits", {"hidden": (32,)}),
    **{name: (_SOFTMAX, name, {}) for name in ("mnist", "fashion-mnist", "kmnist")},
    **{f"{name}-mlp": (_MLP, name, {"hidden": (64, 30)}) for name in ("mnist", "fashion-mnist", "kmnist")},
    **{f"{name}-cnn": (_CNN, name, {}) for name in ("mnist", "fashion-mnist", "kmnist")},
    **{name: (_CNN, name, {}) for name in ("cifar10", "femnist", "celeba")},
}


def available() -> tuple[str, ...]:
    """Return the names that `create` accepts."""
    return tuple(_TASKS)


def create(name: str, *, partition: str = "skewed", data_dir: str = "", **model: Any) -> Task:
    """Return the task called ``name``.

    Parameters
    ----------
    name : str
        One of `available()`: the name of a data set, and of a model if the data set has several.
    partition : str (default: "skewed")
        How the samples are distributed over the clients; see `partitions.FORMS`.
    data_dir : str (default: "")
        The folder or file of the data; see `datasets`. The digits need neither.
    **model
        Further arguments of the model, for example ``bias=False`` or ``hidden=(100,)``.

    Raises
    ------
    ValueError
        If the task or partition does not exist.
    ModuleNotFoundError
        If the task needs an extra that is not installed; the message says which.
    """
    if name not in _TASKS:
        raise ValueError(f"task = {name!r}: must be one of {', '.join(_TASKS)}")
    (module, kind), dataset, options = _TASKS[name]
    try:
        create_model = getattr(import_module(f".{module}", __package__), kind)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"task = {name!r} needs {error.name}: pip install 'cohort-app[torch]'", name=error.name
        ) from error
    task: Task = create_model(dataset, partition=partition, data_dir=data_dir, **(options | model))
    return task
