"""What is learned: data, partitions, models; NumPy and torch behind one small interface.

A task is asked for by name. Its module is imported only then, so that a device that trains the NumPy
model never imports torch.
"""

from importlib import import_module

from .base import Arrays, Dataset, Task

__all__ = ["Arrays", "Dataset", "Task", "available", "create"]

_TASKS = {
    "digits": ("softmax", "Softmax"),
    "digits-mlp": ("mlp", "MLP"),
}
_EXTRA = {"digits-mlp": "torch"}


def available() -> tuple[str, ...]:
    """Return the names that `create` takes."""
    return tuple(_TASKS)


def create(name: str) -> Task:
    """Return the task called ``name``.

    Raises
    ------
    ValueError
        If there is no such task.
    ModuleNotFoundError
        If the task needs an extra that is not installed; the message says which.
    """
    if name not in _TASKS:
        raise ValueError(f"task = {name!r}: must be one of {', '.join(_TASKS)}")
    module, model = _TASKS[name]
    try:
        task: Task = getattr(import_module(f".{module}", __package__), model)()
    except ModuleNotFoundError as error:
        extra = _EXTRA.get(name, "demo")
        raise ModuleNotFoundError(
            f"task = {name!r} needs {error.name}: pip install 'flwr-cohort[{extra}]'", name=error.name
        ) from error
    return task
