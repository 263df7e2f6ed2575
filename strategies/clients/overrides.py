"""What the operator says of clients, by their identity; it goes before what they say themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..selectors import checks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..selectors import Selector
    from .roster import Roster

GROUPS = "groups"
"""The per-client setting that clients may report themselves."""


@dataclass(frozen=True)
class Overrides:
    """Facts about clients that the server need not take from them.

    Attributes
    ----------
    sizes : mapping of str to float
        Samples held, by identity, in [1e-100, 1e100].
    settings : mapping of str to mapping of str to value
        A selector's settings per client (``groups``, ``lipschitz``, ``energies``, ...): name -> identity ->
        value. Of ``groups`` the values are names (or numbers) of any kind.
    group_names : tuple of str
        The groups that have the numbers 0, 1, ...; all others have the next one together. Without it groups
        are numbered in the order of their first client.

    Raises
    ------
    TypeError, ValueError
        If a size is no number, or out of range.
    """

    sizes: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    group_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for client_id, size in self.sizes.items():
            checks.real(
                f"client_sizes[{client_id!r}]", size, low=checks.SMALLEST_SIZE, high=checks.LARGEST_SIZE
            )

    def sizes_of(self, client_ids: list[str]) -> NDArray[np.float64]:
        """Return (M,) the declared sizes, NaN where none is."""
        return np.array([self.sizes.get(client_id, np.nan) for client_id in client_ids], dtype=np.float64)

    def per_client(self, selector: type[Selector], roster: Roster, first: int = 0) -> dict[str, NDArray[Any]]:
        """Return the selector's settings per client for the clients from ``first`` on, arrays (M - first,).

        Who is not declared has the group that it reported, else one of its own; of other settings the median
        of the declared values. A setting of which nothing is declared is left to the selector's default.
        """
        ids = roster.ids()
        found: dict[str, NDArray[Any]] = {}
        for name in selector.per_client:
            overrides = self.settings.get(name, {})
            if name == GROUPS:
                found[name] = self._groups(roster)[first:]
            elif overrides:
                usual = float(np.median([float(value) for value in overrides.values()]))
                found[name] = np.array([float(overrides.get(each, usual)) for each in ids[first:]])
        return found

    def _groups(self, roster: Roster) -> NDArray[np.int64]:
        """Return (M,) the number of each client's group; a client without one is a group of its own."""
        overrides = self.settings.get(GROUPS, {})
        numbers: dict[object, int] = {name: number for number, name in enumerate(self.group_names)}
        groups = np.empty(len(roster), dtype=np.int64)
        for index, client_id in enumerate(roster.ids()):
            group = overrides.get(client_id, roster.group_of(index))
            key = (index,) if group is None else str(group)  # a tuple is nobody's name
            # Where the operator numbered the groups, what it did not name is one more.
            unnamed = len(numbers)
            groups[index] = (
                numbers.get(key, unnamed) if self.group_names else numbers.setdefault(key, unnamed)
            )
        return groups
