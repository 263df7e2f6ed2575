"""Selectors that know the group of each client (FLICS, section II)."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Floats, Ints
from .. import checks
from ..base import Selector
from ..context import RoundContext
from ..records import Selection
from ..settings import PerClient, Setting, Settings


class GroupNumbers(Setting):
    """A setting with a number for each group, given as a sequence or as text such as "0.5/0.3/0.2"."""

    def check(self, name: str, value: Any) -> Any:
        """Return the numbers as a tuple, empty for ""."""
        if isinstance(value, int | float):
            value = [value]
        try:
            parts = value.split("/") if isinstance(value, str) and value else value
            if not isinstance(parts, Sequence):
                raise ValueError
            numbers = tuple(float(part) for part in parts)
        except (TypeError, ValueError):
            raise ValueError(
                f'{name} = {value!r}: must be a number for each group, as a sequence or as text "0.5/0.3/0.2"'
            ) from None
        for number in numbers:
            checks.real(name, number, low=self.low, high=self.high)
        return numbers


def group_numbers(*, low: float, high: float, doc: str) -> Any:
    """Declare a field of `Settings` with a number for each group; none by default."""
    return field(default="", metadata={"setting": GroupNumbers("", low, high, (), doc)})


@dataclass(frozen=True)
class GroupSettings(Settings):
    """Settings of every selector with groups."""

    group_shares: tuple[float, ...] = group_numbers(
        low=1e-100,
        high=1e100,
        doc="p, the weight of each group in the objective, in any unit (default: its data)",
    )


class GroupSelector(Selector):
    """The objective is sum_j p_j F_j, F_j being the mean loss of the N_j clients of group j.

    Within a group all available clients have the same probability, whatever their data. p is normalised over
    the groups that have registered clients. `probabilities` holds p_j/N_j, the target over time;
    ``Selection.probabilities`` the inclusion probabilities of the round, and ``Selection.importance`` the
    weight over p_j/N_j.
    """

    settings_type = GroupSettings
    _settings: GroupSettings
    per_client = Selector.per_client | {
        "groups": PerClient(None, 0, 10**7 - 1, True, "the number of its group, from 0")
    }

    def target_shares(
        self, *, available: npt.ArrayLike | None = None, unavailable: npt.ArrayLike | None = None
    ) -> Floats:
        """Return `probabilities`: the aggregate estimates a mean over all registered clients, over time."""
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
        """Register n more clients, see `Selector.add_clients`; their `groups` may be new ones."""
        if "groups" in per_client:
            self._check_groups(checks.ints("groups", per_client["groups"]))
        super().add_clients(client_sizes, **per_client)

    @abstractmethod
    def _sample(self, context: RoundContext) -> tuple[Floats, Ints]:
        """Return (inclusion probability of each group's clients (G,), selected clients, ascending)."""

    @abstractmethod
    def _weights(self, clients: Ints) -> Floats:
        """Return (S,) the weights of these clients if they alone respond."""

    def _check_groups(self, groups: Ints) -> None:
        """Refuse a group for which a setting with a number for each group has none."""
        self._check_numbered("group_shares", self._settings.group_shares, groups)

    def _check_numbered(self, name: str, numbers: tuple[float, ...], groups: Ints) -> None:
        if numbers and groups.size and groups.max() >= len(numbers):
            raise ValueError(f"groups holds {groups.max()}: {name} has numbers for 0 to {len(numbers) - 1}")

    def _num_groups(self) -> int:
        return self._cached("num_groups", ("groups",), lambda: int(self._array("groups").max()) + 1)

    def _counted(self, clients: Ints) -> Ints:
        """Return (G,) how many of these clients belong to each group."""
        return np.bincount(self._array("groups")[clients], minlength=self._num_groups())

    def _targets(self) -> Floats:
        """Return p_j/N_j (G,)."""
        shares, members = self._shares()
        return shares / np.maximum(members, 1)

    def _shares(self) -> tuple[Floats, Ints]:
        """Return p (G,), 0 for groups without registered clients, and N (G,), the number of these."""
        return self._cached("shares", ("groups", "registered", "client_sizes"), self._compute_shares)

    def _compute_shares(self) -> tuple[Floats, Ints]:
        groups, num_groups = self._array("groups")[self._registered], self._num_groups()
        members = np.bincount(groups, minlength=num_groups)
        if self._settings.group_shares:
            shares = np.where(members > 0, self._settings.group_shares[:num_groups], 0.0)
        else:
            shares = np.bincount(groups, self.client_sizes[self._registered], num_groups)
        return shares / (shares.sum() or 1.0), members
