"""The models of the tasks: one file for each kind of network."""

from importlib import import_module
from typing import Any


def find(module: str, name: str) -> Any:
    """Return the class `name` of a module of this folder. The module may import torch.

    Raises
    ------
    ModuleNotFoundError
        If the module needs a package that is not installed.
    """
    return getattr(import_module(f".{module}", __package__), name)
