"""Checks of single values. Each error names the option, its value and what is allowed."""

from math import inf
from numbers import Real
from typing import Any


def seconds(name: str, value: Any) -> None:
    """Refuse a value that is not a number of seconds > 0; infinity is allowed."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} = {value!r}: must be a number of seconds greater than 0")
    if not 0 < float(value) <= inf:
        raise ValueError(f"{name} = {value}: must be greater than 0")


def boolean(name: str, value: Any) -> None:
    """Refuse a value that is not True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} = {value!r}: must be True or False")


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not in ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name} = {value!r}: must be {' or '.join(map(repr, allowed))}")
