"""The tasks by name: the model, the data set and the learning rate of each, and the tasks that users add."""

from collections.abc import Callable
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .base import Task

_SOFTMAX = ("softmax", "Softmax")  # module, class
_MLP = ("mlp", "MLP")
_CNN = ("cnn", "CNN")
_DIGITS = ("mnist", "fashion-mnist", "kmnist", "emnist")


_Create = TypeVar("_Create", bound=Callable[..., Task])


class _Row(NamedTuple):
    """A row of `_TASKS`: what `create` needs to make a task."""

    model: tuple[str, str] | Callable[..., Task]  # a module of `models` and a class; or a user's function
    dataset: str  # "" for a user's function, which chooses its own data
    learning_rate: float  # the default of runs, for mini-batches of about 16 samples
    options: dict[str, Any] = {}  # noqa: RUF012 (never changed): further arguments of the model


# The learning rates on MNIST and its relatives are measured on MNIST. Most others are from papers: those of
# FEMNIST and CelebA from DELTA (appendix H.2), that of Sent140 from Power-of-Choice (appendix F), that of
# Shakespeare from LEAF. The rate of CIFAR-10 is a tenth of the rate in Power-of-Choice, whose mini-batches
# have 128 samples. The rate of CIFAR-100 is a guess.
_TASKS: dict[str, _Row] = {
    "digits": _Row(_SOFTMAX, "digits", 0.5),
    "digits-mlp": _Row(_MLP, "digits", 0.5, {"hidden": (32,)}),
    **{name: _Row(_SOFTMAX, name, 0.1) for name in _DIGITS},
    **{f"{name}-mlp": _Row(_MLP, name, 0.1, {"hidden": (64, 30)}) for name in _DIGITS},
    **{f"{name}-cnn": _Row(_CNN, name, 0.1) for name in _DIGITS},
    "cifar10": _Row(_CNN, "cifar10", 0.05),
    "cifar100": _Row(("resnet", "ResNet18"), "cifar100", 0.05),
    "femnist": _Row(_CNN, "femnist", 0.1),
    "celeba": _Row(_CNN, "celeba", 0.1),
    "sent140": _Row(_MLP, "sent140", 0.05, {"hidden": (128, 86, 30)}),
    "shakespeare": _Row(("next_character", "NextCharacter"), "shakespeare", 0.8),
}


def available() -> tuple[str, ...]:
    """Return the names that `create` accepts."""
    return tuple(_TASKS)


def data_files(name: str, data_dir: str = "") -> list[Path]:
    """Return the files that a task reads its data from; none if they are downloaded, or for a user's task."""
    from .datasets import files

    dataset = _row(name).dataset
    return files(dataset, data_dir) if dataset else []


def register(name: str, *, learning_rate: float) -> Callable[[_Create], _Create]:
    """Return a decorator that adds a task: a function or class that returns a `Task`.

    ``name`` is the value of the run setting ``task``, and ``learning_rate`` > 0 the rate of runs that set
    none. Raises ValueError if another task has this name, or the learning rate is not above 0.

    >>> from tasks.models.softmax import Softmax
    >>> @register("digits-without-bias", learning_rate=0.2)
    ... def digits_without_bias(*, partition: str, data_dir: str) -> Task:
    ...     return Softmax("digits", partition=partition, data_dir=data_dir, bias=False)
    >>> sorted(create("digits-without-bias").initial_arrays(0))
    ['weight']
    """
    if not (isfinite(learning_rate) and learning_rate > 0):
        raise ValueError(f"learning_rate = {learning_rate}: must be a finite number above 0")

    def add(function: _Create) -> _Create:
        if _TASKS.setdefault(name, _Row(function, "", learning_rate)).model is not function:
            raise ValueError(f"name = {name!r}: there is a task of this name already")
        return function

    return add


def learning_rate(name: str) -> float:
    """Return the default learning rate of a task, > 0, without importing its model. ValueError if unknown."""
    return _row(name).learning_rate


def _row(name: str) -> _Row:
    if name not in _TASKS:
        raise ValueError(f"task = {name!r}: must be one of {', '.join(_TASKS)}")
    return _TASKS[name]


def create(name: str, *, partition: str = "skewed", data_dir: str = "", **model: Any) -> Task:
    """Return the task called ``name``: a data set, and a model if the data set has several.

    ``partition`` says how the samples are distributed over the clients, see `partitions.FORMS`; ``data_dir``
    is the folder or file of the data, see `datasets`. ``model`` holds further arguments of the model, for
    example ``bias=False`` or ``hidden=(100,)``. Raises ValueError if the task or partition does not exist,
    and ModuleNotFoundError if the task needs an extra that is not installed; the message names the extra.
    """
    row = _row(name)
    if not isinstance(row.model, tuple):
        return row.model(partition=partition, data_dir=data_dir, **model)
    module, model_name = row.model
    try:
        create_model = getattr(import_module(f".models.{module}", __package__), model_name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"task = {name!r} needs {error.name}: pip install 'cohort-app[torch]'", name=error.name
        ) from error
    task: Task = create_model(row.dataset, partition=partition, data_dir=data_dir, **(row.options | model))
    return task
