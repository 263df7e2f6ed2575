"""What the operator declares about clients (`options.Overrides`), looked up for the clients of a roster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..options import GROUPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ..options import Overrides
    from ..selectors import Selector
    from .roster import Roster


def sizes_of(roster: Roster, overrides: Mapping[str, float]) -> NDArray[np.float64]:
    """Return (M,) the declared sizes, NaN where none is."""
    return np.array([overrides.get(client_id, np.nan) for client_id in roster.ids()], dtype=np.float64)


def per_client(
    overrides: Overrides, selector: type[Selector], roster: Roster, first: int = 0
) -> dict[str, NDArray[Any]]:
    """Return the selector's settings per client for the clients from ``first`` on, arrays (M - first,).

    Who is not declared has the group that it reported, else one of its own; of other settings the median
    of the declared values. A setting of which nothing is declared is left to the selector's default.
    """
    ids = roster.ids()
    found: dict[str, NDArray[Any]] = {}
    for name in selector.per_client:
        declared = overrides.settings.get(name, {})
        if name == GROUPS:
            found[name] = _groups(overrides, roster)[first:]
        elif declared:
            usual = float(np.median([float(value) for value in declared.values()]))
            found[name] = np.array([float(declared.get(each, usual)) for each in ids[first:]])
    return found


def _groups(overrides: Overrides, roster: Roster) -> NDArray[np.int64]:
    """Return (M,) the number of each client's group; a client without one is a group of its own."""
    declared = overrides.settings.get(GROUPS, {})
    numbers: dict[object, int] = {name: number for number, name in enumerate(overrides.group_names)}
    groups = np.empty(len(roster), dtype=np.int64)
    for index, client_id in enumerate(roster.ids()):
        group = declared.get(client_id, roster.group_of(index))
        key = (index,) if group is None else str(group)  # a tuple is nobody's name
        # Where the operator numbered the groups, what it did not name is one more.
        unnamed = len(numbers)
        groups[index] = (
            numbers.get(key, unnamed) if overrides.group_names else numbers.setdefault(key, unnamed)
        )
    return groups
