"""The base of the selectors that know each client's group (FLICS paper, section II)."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Floats, Ints
from .. import checks
from ..base import Selector
from ..context import RoundContext
from ..records import Selection
from ..settings import PerClient, Setting, Settings


@dataclass(frozen=True)
class ByGroup:
    """A number for each of some groups."""

    names: tuple[str, ...] = ()  # groups without names are called "0", "1", ...
    numbers: tuple[float, ...] = ()  # in the order of `names`

    def __len__(self) -> int:
        return len(self.names)

    def aligned(self, names: Sequence[str], missing: float) -> Floats:
        """Return (G,) the numbers of the groups ``names``; ``missing`` for a group without a number."""
        known = dict(zip(self.names, self.numbers, strict=True))
        return np.array([known.get(name, missing) for name in names], dtype=np.float64)


class GroupNumbers(Setting):
    """A setting with a number for each group; `group_numbers` declares it."""

    def check(self, name: str, value: Any) -> Any:
        """Return the numbers as a `ByGroup`; if the default is None, also a single float, or None."""
        if self.default is None and isinstance(value, Real) and not isinstance(value, bool):
            return checks.real(name, value, low=self.low, high=self.high)
        names, numbers = _by_group(name, value)
        for number in numbers:
            checks.real(name, number, low=self.low, high=self.high)
        again = next((each for each in names if names.count(each) > 1), None)
        if again is not None:
            raise ValueError(f"{name} = {value!r}: must have one number for each group, {again!r} has two")
        return ByGroup(names, numbers) if names or self.default is not None else None


def _by_group(name: str, value: Any) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the names and the numbers of the groups in `value`; groups without names are "0", "1", ...."""
    if value is None:
        return (), ()
    if isinstance(value, ByGroup):
        return value.names, value.numbers
    pairs: Any = [(None, value)] if isinstance(value, Real) else value
    if isinstance(value, str):
        parts = [part.rpartition(":") for part in value.split("/")] if value else []
        pairs = [(label if colon else None, number) for label, colon, number in parts]
    elif isinstance(value, Mapping):
        pairs = value.items()
    elif isinstance(value, Sequence):
        pairs = [(None, number) for number in value]
    try:
        if isinstance(value, bool | bytes):
            raise TypeError
        read = [(label, float(number)) for label, number in pairs]
        named = [label for label, _ in read if label is not None]
        if named and (len(named) < len(read) or "" in named):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} = {value!r}: must be a number for each group: by name, as a mapping or as text "
            '"north:0.7/south:0.3"; or for the groups 0, 1, ..., as a sequence or as text "0.5/0.3/0.2"'
        ) from None
    names = tuple(map(str, named)) or tuple(map(str, range(len(read))))
    return names, tuple(number for _, number in read)


def group_numbers(*, low: float, high: float, doc: str, or_one: bool = False) -> Any:
    """Declare a field of a `Settings` class that holds a number for each group. By default it has no numbers.

    The numbers of named groups are given as ``{"north": 0.7, "south": 0.3}`` or as text
    "north:0.7/south:0.3". The numbers of groups 0, 1, ... are given as a sequence or as text "0.7/0.3".
    With ``or_one=True``, a single number for all groups together is also allowed, and the default is None.
    `low` and `high` are the inclusive bounds of each number, and `doc` is the meaning in one line.
    """
    default = None if or_one else ""
    return field(default=default, metadata={"setting": GroupNumbers(default, low, high, (), doc)})


@dataclass(frozen=True)
class GroupSettings(Settings):
    """Settings of every selector with groups."""

    group_shares: ByGroup = group_numbers(
        low=1e-100,
        high=1e100,
        doc="p, the weight of each group in the objective, in any unit (default: its data)",
    )

    @property
    def group_names(self) -> tuple[str, ...]:
        return self.group_shares.names

    @property
    def only_named_groups(self) -> bool:
        return bool(self.group_shares)


class GroupSelector(Selector):
    """Selects for the objective sum_j p_j F_j, where F_j is the mean loss of the N_j clients of group j.

    All available clients of a group have equal probability, whatever their sizes. p is normalised over the
    groups that have registered clients. `probabilities` holds p_j/N_j, the share at which the selector aims
    for each client over time. ``Selection.probabilities`` holds the inclusion probabilities of the round, and
    ``Selection.importance`` the weight divided by p_j/N_j.
    """

    settings_type = GroupSettings
    _settings: GroupSettings
    per_client = Selector.per_client | {
        "groups": PerClient(None, 0, 10**7 - 1, True, "the number of the client's group in `group_names`")
    }

    def target_shares(
        self, *, available: npt.ArrayLike | None = None, unavailable: npt.ArrayLike | None = None
    ) -> Floats:
        """Return `probabilities` (M,): over time, the aggregate estimates a mean of all registered."""
        return self.probabilities

    def _distribution(self) -> Floats:
        return np.where(self._registered, self._targets()[self._array("groups")], 0.0)

    def _select(self, context: RoundContext) -> Selection:
        inclusion, clients = self._sample(context)
        groups, weights = self._array("groups")[clients], self._weights(clients)
        targets = self._targets()[groups]
        importance = np.divide(weights, targets, out=np.zeros(clients.size), where=targets > 0)
        counts = np.ones(clients.size, dtype=np.int64)
        return Selection(clients, counts, inclusion[groups], importance, weights)

    def add_clients(self, client_sizes: npt.ArrayLike, **per_client: npt.ArrayLike) -> None:
        """Register n more clients, see `Selector.add_clients`. Their `groups` may be new groups."""
        if "groups" in per_client:
            self._check_groups(checks.ints("groups", per_client["groups"]))
        super().add_clients(client_sizes, **per_client)

    @abstractmethod
    def _sample(self, context: RoundContext) -> tuple[Floats, Ints]:
        """Return (G,) the inclusion probability of a group's available clients; the selected, ascending."""

    @abstractmethod
    def _weights(self, clients: Ints) -> Floats:
        """Return (S,) the weights of these clients in a round in which only they respond."""

    def _check_groups(self, groups: Ints) -> None:
        """Raise a ValueError if a group has no number in a setting that must have one for each group."""
        names = self._settings.group_names
        if self._settings.only_named_groups and groups.size and groups.max() >= len(names):
            raise ValueError(
                f"groups holds {groups.max()}: must be from 0 to {len(names) - 1}, the groups "
                f"{', '.join(names)} of the settings"
            )

    def _num_groups(self) -> int:
        return self._cached("num_groups", ("groups",), lambda: int(self._array("groups").max()) + 1)

    def _available_groups(self, context: RoundContext) -> Ints:
        """Return the groups of the available clients, by ascending client. Do not write to this array."""
        groups: Ints = context.available.of(self._array("groups"))
        return groups

    def _counted(self, groups: Ints) -> Ints:
        return np.bincount(groups, minlength=self._num_groups())

    def _draw(self, context: RoundContext, groups: Ints, numbers: Ints, rng: np.random.Generator) -> Ints:
        """Draw ``numbers`` (G,) of the available clients of each group, without replacement; ascending."""
        a = self._counted(groups)
        # Each available client gets a random key, and in each group the clients with the smallest keys are
        # selected. These keys are almost surely below `bounds`, so only keys below `bounds` are sorted.
        keys = rng.random(groups.size)
        bounds = (numbers + 6 * np.sqrt(numbers) + 10) / np.maximum(a, 1)
        few = np.flatnonzero(keys < bounds[groups])
        if (np.bincount(groups[few], minlength=a.size) < numbers).any():
            few = np.arange(groups.size)
        order = few[np.lexsort((keys[few], groups[few]))]
        sizes = np.bincount(groups[few], minlength=a.size)
        place = np.arange(few.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        drawn: Ints = context.available.at(np.sort(order[place < numbers[groups[order]]]))
        return drawn

    def _targets(self) -> Floats:
        """Return p_j/N_j (G,)."""
        shares, members = self._shares()
        return shares / np.maximum(members, 1)

    def _shares(self) -> tuple[Floats, Ints]:
        """Return p (G,) and N (G,), the number of registered clients of each group. Where N is 0, p is 0."""
        return self._cached("shares", ("groups", "registered", "client_sizes"), self._compute_shares)

    def _compute_shares(self) -> tuple[Floats, Ints]:
        groups, num_groups = self._array("groups")[self._registered], self._num_groups()
        members = np.bincount(groups, minlength=num_groups)
        if self._settings.group_shares:
            given = self._settings.group_shares.aligned(self._settings.group_names, 0.0)
            shares = np.where(members > 0, given[:num_groups], 0.0)
        else:
            shares = np.bincount(groups, self.client_sizes[self._registered], num_groups)
        return shares / (shares.sum() or 1.0), members
