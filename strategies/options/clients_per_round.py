"""Numbers that may differ between rounds: K(t), how many clients train, and the clients' learning rate."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any, TypeAlias

from ..selectors import checks
from ..selectors.settings import Schedule

Budget: TypeAlias = float | str | Schedule | Callable[[int], float]
"""A number; a schedule such as "20@1/5@50" (20, then 5 from round 50 on); or a function that takes the number
of the round and returns K."""


@dataclass(frozen=True)
class Budgets:
    """How many clients train in each round. The schedule K(t) comes from FLICS; every selector can use it.

    ``clients_per_round``: K of every round, if ``budget`` is None. ``budget``: K(t), >= 0, rounded down. If
    K(t) is below 1, no client trains in round t. Default (None): K is ``clients_per_round`` in every round.
    """

    clients_per_round: int
    budget: Budget | None = None

    def __post_init__(self) -> None:
        given = self.budget
        if given is None or isinstance(given, Schedule) or callable(given):
            pass
        elif isinstance(given, bool) or not isinstance(given, Real | str):
            raise TypeError(
                f'budget = {given!r}: must be a number, a schedule such as "20@1/5@50", or a function of the '
                "round"
            )
        else:
            object.__setattr__(self, "budget", Schedule.parse("budget", given))
        for number in self._numbers:
            _checked("budget", number)

    def of(self, round: int) -> int:
        if self.budget is None:
            return self.clients_per_round
        if isinstance(self.budget, Schedule):
            return int(self.budget.at(round))
        assert callable(self.budget)
        return _checked(f"budget({round})", self.budget(round))

    @property
    def smallest(self) -> int:
        """The smallest K > 0 of the schedule; ``clients_per_round`` if there is no schedule or no such K."""
        return min((k for k in map(int, self._numbers) if k > 0), default=self.clients_per_round)

    def check(self, quorum: int, num_clients: float = inf) -> None:
        """Refuse a schedule in which a K > 0 is below the quorum, or above the number of clients.

        A budget that is a function is not checked here.

        ``quorum``: the usable replies that a round needs, >= 1. ``num_clients`` (default: inf): the number of
        clients; infinite if it is not known.
        """
        for number in self._numbers:
            if 1 <= number < quorum:
                raise ValueError(
                    f"budget = {number:g}: must be 0, or at least {quorum}, the quorum of a round"
                )
            if number > num_clients:
                raise ValueError(f"budget = {number:g}: must be at most {num_clients}, the number of clients")

    @property
    def _numbers(self) -> tuple[int | float, ...]:
        return tuple(number for _, number in self.budget.steps) if isinstance(self.budget, Schedule) else ()

    def __repr__(self) -> str:
        changing = "a function" if callable(self.budget) else repr(self.budget)
        return f"Budgets({self.clients_per_round}, {changing})"


def _checked(name: str, number: Any) -> int:
    return int(checks.real(name, number, low=0))


def read_rates(name: str, value: float | str) -> Schedule:
    """Read a learning rate: a number, or text such as "0.5@1/0.25@150" (0.5, and from round 150 on 0.25)."""
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise TypeError(f'{name} = {value!r}: must be a number, or text such as "0.5@1/0.25@150"')
    schedule = Schedule.parse(name, value)
    for _, rate in schedule.steps:
        if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < rate < inf:
            raise ValueError(f"{name} = {value}: must be finite and greater than 0")
    return schedule
