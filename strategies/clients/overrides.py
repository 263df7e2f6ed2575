"""Looks up the operator's declarations (`options.Overrides`) for the clients of a roster."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..json_text import parse_json
from ..options import GROUPS, Overrides
from ..selectors import Selector, checks
from ..selectors.settings import Settings
from .roster import Roster


def sizes_of(roster: Roster, declared: Mapping[str, float]) -> NDArray[np.float64]:
    """Return (M,) the declared data size of each client, in samples; NaN if none is declared."""
    if not declared:
        return np.full(len(roster), nan)
    return np.array([declared.get(client_id, nan) for client_id in roster.ids()], dtype=np.float64)


def target_sizes(
    sizes: NDArray[np.float64], overrides: Overrides, roster: Roster, groups: "Groups"
) -> NDArray[np.float64]:
    """Return (M,) the numbers that take the place of the data sizes ``sizes`` (M,) in all shares.

    They are ``sizes`` unless the operator declared other shares, see `Overrides`.
    """
    targets, declared = sizes, overrides.declared_shares
    if overrides.shares == "equal":
        targets = np.ones(sizes.size)
    elif declared:
        middle = float(np.median(list(declared.values())))
        targets = np.array([declared.get(client_id, middle) for client_id in roster.ids()], dtype=np.float64)
    if overrides.group_shares:
        names = list(overrides.group_shares)
        numbers = numbered(names, groups.of_all(roster))
        here = np.ones(sizes.size, dtype=np.bool_)
        here[roster.removed()] = False
        sums = np.bincount(numbers[here], targets[here], minlength=numbers.max(initial=len(names) - 1) + 1)
        shares = np.ones(sums.size)
        shares[: len(names)] = list(overrides.group_shares.values())
        targets = targets * np.divide(shares, sums, out=shares, where=sums > 0)[numbers]
    return targets.clip(checks.SMALLEST_SIZE, checks.LARGEST_SIZE) if targets is not sizes else sizes


def per_client(
    overrides: Overrides,
    selector: type[Selector],
    roster: Roster,
    first: int = 0,
    *,
    groups: "Groups",
    reported: Mapping[str, NDArray[np.float64]] | None = None,
) -> dict[str, NDArray[Any]]:
    """Return the selector's settings per client for the clients from index ``first`` on.

    Each setting is an array (M - first,). The result holds the settings that `declared_values` returns. If
    the selector has groups, the result also holds the number of each client's group.
    """
    found = declared_values(overrides, selector, roster.ids(), reported)
    found = {name: values[first:] for name, values in found.items()}
    if GROUPS in selector.per_client:
        found[GROUPS] = groups.numbers(roster)[first:]
    return found


def declared_values(
    overrides: Overrides,
    selector: type[Selector],
    client_ids: Sequence[str],
    reported: Mapping[str, NDArray[np.float64]] | None = None,
) -> dict[str, NDArray[Any]]:
    """Return the settings per client as arrays (M,), by the name of the setting; groups are left out.

    A client's value is the declared value if there is one, otherwise the reported value. If a client has
    neither, its value is the median of all known values. If no value of a setting is known, the setting is
    missing from the result, and the selector uses its default.

    `client_ids` are the identities (M,), and `reported` (M,) the values that clients reported, by the name of
    the setting; NaN = not reported.
    """
    found: dict[str, NDArray[Any]] = {}
    for name in selector.per_client:
        declared = overrides.settings.get(name, {})
        if name == GROUPS:
            continue
        values = np.array([float(declared.get(each, nan)) for each in client_ids])
        if reported is not None and name in reported:
            values = np.where(np.isnan(values), reported[name], values)
        here = set(client_ids)
        absent = [float(value) for each, value in declared.items() if each not in here]
        known = np.concatenate([values[~np.isnan(values)], absent])
        if known.size:
            found[name] = np.where(np.isnan(values), np.median(known), values)
    return found


def numbered(names: Sequence[str], labels: Iterable[str | int | None]) -> NDArray[np.int64]:
    """Return (n,) the number of each client's group.

    The groups in ``names`` have the numbers 0, 1, .... All other groups get the next numbers, in the order of
    their first clients.

    `labels` holds the group of each client, by index. The labels 3 and "3" name the same group. A client with
    the label None is the only member of its group.
    """
    numbers: dict[object, int] = {name: number for number, name in enumerate(names)}
    found = []
    for index, label in enumerate(labels):
        key = (index,) if label is None else str(label)  # a tuple cannot be equal to the name of a group
        found.append(numbers.setdefault(key, len(numbers)))
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True)
class Groups:
    """The groups that clients may have, and the number of each client's group.

    A client belongs to the group that the operator declared for it. Without a declaration, it belongs to the
    group that it reported. If it reported none, it is the only member of its group.
    """

    # the groups with the numbers 0, 1, ...; all others are numbered in the order of their first clients
    names: tuple[str, ...] = ()
    # Whether clients of other groups are refused, because the selector's settings hold a value for each of
    # these groups only, such as the group's share.
    only: bool = False
    # the groups that the operator declared, by identity
    declared: Mapping[str, str | int] = field(default_factory=dict)

    @classmethod
    def of(cls, overrides: Overrides, settings: Settings) -> "Groups":
        names, only = settings.group_names, settings.only_named_groups
        if shares := overrides.group_shares:
            if names and set(names) != set(shares):
                raise ValueError(
                    f"overrides.group_shares = {dict(shares)!r:.200}: must have the selector's groups, "
                    f"{', '.join(map(repr, names))}"
                )
            names, only = names or tuple(shares), True
        groups = cls(names, only, overrides.settings.get(GROUPS, {}))
        for client_id, group in groups.declared.items():
            if refusal := groups.refusal(client_id, None):
                raise ValueError(f"overrides.settings['{GROUPS}'][{client_id!r}] = {group!r}: {refusal}")
        return groups

    def refusal(self, client_id: str, reported: str | int | None) -> str:
        """Return why a client with this group, if none is declared, is refused; "" if it is not."""
        group = self.declared.get(client_id, reported)
        if not self.only or str(group) in self.names:
            return ""
        known = ", ".join(map(repr, self.names))
        return f"its group is {group!r}: must be one of {known}, for which there are numbers"

    def numbers(self, roster: Roster) -> NDArray[np.int64]:
        return numbered(self.names, self.of_all(roster))

    def of_all(self, roster: Roster) -> list[str | None]:
        """Return (M,) the name of each client's group, see `of_client`."""
        if not self.declared:
            return roster.groups()
        return [self.of_client(roster, index) for index in range(len(roster))]

    def of_client(self, roster: Roster, index: int) -> str | None:
        """Return the name of a client's group; None if no group was declared or reported for the client."""
        group = self.declared.get(roster.id_of(index), roster.group_of(index))
        return None if group is None else str(group)


class Removals:
    """The identities that the operator removed from the run.

    ``removed`` (default: empty): the identities, or the path of a JSON file with a list of identities. The
    file may appear or change during the run. If the file is missing or damaged, the identities that were last
    read from it stay removed, and ``report`` is called once. ``report``: Called with one line of text if the
    file cannot be read (default: the line is logged as a warning by this module's logger).
    """

    def __init__(
        self, removed: str | Path | Collection[str] = (), report: Callable[[str], None] | None = None
    ) -> None:
        self._path = Path(removed) if isinstance(removed, str | Path) else None
        self._identities = frozenset() if isinstance(removed, str | Path) else frozenset(removed)
        self._report = report or logging.getLogger(__name__).warning
        self._reported = False
        self._read_at: tuple[int, int, int] | None = None  # the version of the file that was last read

    def current(self) -> frozenset[str]:
        """Return the identities that are removed now. If the file has changed, it is read again."""
        if self._path is None:
            return self._identities
        try:
            status = self._path.stat()
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            if version != self._read_at:
                found = parse_json(self._path.read_text(encoding="utf-8"))
                if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
                    raise ValueError('must be a list such as ["client-03"]')
                self._identities, self._read_at = frozenset(found), version
                self._reported = False
        except (OSError, ValueError) as error:
            if not self._reported:
                self._report(f"overrides.removed = {str(self._path)!r}: cannot be read: {error}")
            self._reported = True
        return self._identities
