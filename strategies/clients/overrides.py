"""What the operator declares about clients (`options.Overrides`), looked up for the clients of a roster."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..options import GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from numpy.typing import NDArray

    from ..options import Overrides
    from ..selectors import Selector
    from .roster import Roster


def sizes_of(roster: Roster, declared: Mapping[str, float]) -> NDArray[np.float64]:
    """Return (M,) the declared sizes, NaN where none is declared."""
    return np.array([declared.get(client_id, np.nan) for client_id in roster.ids()], dtype=np.float64)


def per_client(
    overrides: Overrides, selector: type[Selector], roster: Roster, first: int = 0
) -> dict[str, NDArray[Any]]:
    """Return the selector's settings per client for the clients from ``first`` on, arrays (M - first,).

    A client without a declared group has the group that it reported, or else one of its own. For other
    settings a client without a declared value gets the median of the declared ones. A setting for which
    nothing is declared is left to the selector's default.
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
        key = (index,) if group is None else str(group)  # a tuple equals no name
        # Where the operator named the groups, all others share one more number.
        unnamed = len(numbers)
        groups[index] = (
            numbers.get(key, unnamed) if overrides.group_names else numbers.setdefault(key, unnamed)
        )
    return groups


class Removals:
    """The identities that the operator removed from the run.

    Parameters
    ----------
    removed : path or collection of str
        The identities, or the path of a JSON list of them. The file may appear or change while the run goes
        on. A file that is missing or damaged changes nothing, and is reported once.
    report : callable, optional
        Called with that one line (default: a warning to this module's logger).
    """

    def __init__(
        self, removed: str | Path | Collection[str] = (), report: Callable[[str], None] | None = None
    ) -> None:
        self._path = Path(removed) if isinstance(removed, str | Path) else None
        self._identities = frozenset() if isinstance(removed, str | Path) else frozenset(removed)
        self._report = report or logging.getLogger(__name__).warning
        self._reported = False
        self._read_at: tuple[int, int, int] | None = None  # what tells versions of the file apart

    def current(self) -> frozenset[str]:
        """Return the identities that are removed now; reads the file if it has changed."""
        if self._path is None:
            return self._identities
        try:
            status = self._path.stat()
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            if version != self._read_at:
                found = json.loads(self._path.read_text(encoding="utf-8"))
                if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
                    raise ValueError('must be a list such as ["client-03"]')
                self._identities, self._read_at = frozenset(found), version
                self._reported = False
        except (OSError, ValueError) as error:
            if not self._reported:
                self._report(f"overrides.removed = {str(self._path)!r}: cannot be read: {error}")
            self._reported = True
        return self._identities
