"""The clients' learning rate: a number, or a schedule over rounds."""

from math import inf
from numbers import Real

from ..selectors.settings import Schedule


def read_rates(name: str, value: float | str) -> Schedule:
    """Read a learning rate: a number, or text such as "0.5@1/0.25@150" (0.5, and from round 150 on 0.25)."""
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise TypeError(f'{name} = {value!r}: must be a number, or text such as "0.5@1/0.25@150"')
    schedule = Schedule.parse(name, value)
    for _, rate in schedule.steps:
        if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < rate < inf:
            raise ValueError(f"{name} = {value}: must be finite and greater than 0")
    return schedule
