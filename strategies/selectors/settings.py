"""Settings of a selector: a frozen dataclass whose fields know their range and meaning."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from . import checks


@dataclass(frozen=True)
class Setting:
    """What one setting may be.

    Attributes
    ----------
    default : bool, int, float or str
        Its default; the type of the setting is the default's.
    low, high : float
        Bounds of a number, inclusive.
    choices : tuple of str
        What a string may be.
    doc : str
        One line on what it does.
    """

    default: bool | int | float | str
    low: float
    high: float
    choices: tuple[str, ...]
    doc: str

    def check(self, name: str, value: Any) -> bool | int | float | str:
        """Return `value` in the setting's type, or raise a TypeError or ValueError naming what is allowed."""
        if isinstance(self.default, bool):
            if not isinstance(value, bool | np.bool_):
                raise TypeError(f"{name} = {value!r}: must be True or False")
            return bool(value)
        if isinstance(self.default, int):
            return checks.integer(name, value, low=self.low, high=self.high)
        if isinstance(self.default, float):
            return checks.real(name, value, low=self.low, high=self.high)
        if value not in self.choices:
            raise ValueError(f"{name} = {value!r}: must be one of {', '.join(map(repr, self.choices))}")
        return str(value)


def setting(
    default: bool | int | float | str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    choices: tuple[str, ...] = (),
    doc: str,
) -> Any:
    """Declare a field of `Settings`: its default, bounds (inclusive) or choices, and meaning."""
    return field(default=default, metadata={"setting": Setting(default, low, high, choices, doc)})


@dataclass(frozen=True)
class Settings:
    """Base of all settings; every field is made by `setting` and checked on construction."""

    def __post_init__(self) -> None:
        for name, allowed in self.allowed().items():
            object.__setattr__(self, name, allowed.check(name, getattr(self, name)))

    @classmethod
    def allowed(cls) -> dict[str, Setting]:
        """Return what each setting may be, by name."""
        return {each.name: each.metadata["setting"] for each in fields(cls)}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Build the settings, refusing an unknown name with a ValueError that lists the known ones."""
        known = cls.allowed()
        for name, value in values.items():
            if name not in known:
                raise ValueError(
                    f"{name} = {value!r}: no such setting; known are {', '.join(known) or 'none'}"
                )
        return cls(**values)
