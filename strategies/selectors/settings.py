"""Settings of a selector: a frozen dataclass whose fields declare their range and meaning.

A setting is a plain value, a schedule over rounds, or (`PerClient`) an array with a value for each client.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Self, TypeAlias

import numpy as np

from ..json_text import parse_json
from ..numerics.arrays import Array
from . import checks


@dataclass(frozen=True)
class Schedule:
    """A number that changes at given rounds."""

    # Pairs (first round, value from this round on), with ascending rounds. The first value also holds in all
    # earlier rounds.
    steps: tuple[tuple[int, int | float], ...]

    def at(self, round: int) -> int | float:
        """Return the value of the schedule in a round."""
        value = self.steps[0][1]
        for first, later in self.steps:
            if round >= first:
                value = later
        return value

    @classmethod
    def parse(cls, name: str, value: Any) -> Self:
        """Return the schedule that `value` describes.

        `value` is a schedule, a number, pairs (first round, value), or text. The text "20@1/10@100" means 20
        from round 1 on and 10 from round 100 on. `name` is the setting's name in the error message.
        """
        pairs = value
        if isinstance(value, str):
            try:
                pairs = [[parse_json(text) for text in part.split("@")[::-1]] for part in value.split("/")]
            except ValueError:
                pairs = None
        elif isinstance(value, cls):
            pairs = value.steps
        elif isinstance(value, Real):
            pairs = [(0, value)]
        try:
            steps = tuple((checks.integer("round", first, low=0), step) for first, step in pairs)
        except (TypeError, ValueError):
            steps = ()
        rounds = [first for first, _ in steps]
        if not steps or any(later <= earlier for earlier, later in pairwise(rounds)):
            raise ValueError(
                f"{name} = {value!r}: must be a number, or (first round, value) pairs with ascending rounds, "
                'as text "20@1/10@100"'
            )
        return cls(steps)


@dataclass(frozen=True)
class PerClient:
    """The allowed values of a setting that has a value for each client."""

    # the value of all clients if no array is given; None if an array must be given
    default: int | float | None
    low: float  # inclusive bounds of the values
    high: float
    integer: bool  # whether the values are integers; else they are floats
    doc: str  # the meaning of the setting, in one line

    def check(self, name: str, values: Any, length: int) -> Array:
        """Return the values as an array (length,). If `values` is None, all values are the default."""
        if values is None:
            if self.default is None:
                raise ValueError(f"{name} = None: must be given for each client ({self.doc})")
            return np.full(length, self.default, dtype=np.int64 if self.integer else np.float64)
        read = checks.ints if self.integer else checks.floats
        array = read(name, values, length)
        checks.in_range(name, array, self.low, self.high)
        return array


@dataclass(frozen=True)
class Setting:
    """The allowed values of one setting."""

    default: "SettingValue"  # It gives the setting its type. None: the setting is a float or None.
    low: float  # inclusive bounds of a number or a schedule
    high: float
    choices: tuple[str, ...]  # the allowed values of a string
    doc: str  # the effect of the setting, in one line

    def check(self, name: str, value: Any) -> "SettingValue":
        """Return `value`, converted to the type of the setting."""
        if self.default is None:
            return None if value is None else checks.real(name, value, low=self.low, high=self.high)
        if isinstance(self.default, Schedule):
            schedule = Schedule.parse(name, value)
            whole = all(isinstance(step, Integral) for _, step in self.default.steps)
            for _, step in schedule.steps:
                (checks.integer if whole else checks.real)(name, step, low=self.low, high=self.high)
            return schedule
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


SettingValue: TypeAlias = bool | int | float | str | Schedule | None


def setting(
    default: SettingValue,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    choices: tuple[str, ...] = (),
    doc: str,
) -> Any:
    """Declare a field of a `Settings` class; the arguments are the attributes of `Setting`."""
    return field(default=default, metadata={"setting": Setting(default, low, high, choices, doc)})


@dataclass(frozen=True)
class Settings:
    """The base of all settings. `setting` declares each field, and the constructor checks all values."""

    def __post_init__(self) -> None:
        for name, allowed in self.allowed().items():
            object.__setattr__(self, name, allowed.check(name, getattr(self, name)))

    @classmethod
    def allowed(cls) -> dict[str, Setting]:
        """Return the allowed values of each setting, by name. Other fields of the class are no settings."""
        return {each.name: each.metadata["setting"] for each in fields(cls) if "setting" in each.metadata}

    @property
    def group_names(self) -> tuple[str, ...]:
        """The names of the groups 0, 1, ..., in this order; empty if no setting names groups."""
        return ()

    @property
    def needs_per_client(self) -> frozenset[str]:
        """The settings per client without which other settings of this object have no effect."""
        return frozenset()

    @property
    def only_named_groups(self) -> bool:
        """Whether every client must belong to one of the groups in `group_names`."""
        return False

    @classmethod
    def of(cls, values: Mapping[str, Any], owner: str, per_client: Collection[str] = ()) -> Self:
        """Return the settings with the given ``values`` by name; all other settings have their defaults.

        ``owner`` is the name of the selector or server strategy whose settings these are. ``per_client`` are
        the names of its settings per client, which the message about an unknown name lists, too.
        """
        known = (*cls.allowed(), *per_client)
        for name, value in values.items():
            if name not in cls.allowed():
                raise ValueError(
                    f"{name} = {value!r}: {owner} has no such setting{checks.did_you_mean(name, known)}; its "
                    f"settings are: {', '.join(known) or 'none'}"
                )
        return cls(**values)
