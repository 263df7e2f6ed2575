"""Overrides: what the operator declares about clients: sizes, shares, settings, properties and removals."""

from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..selectors import Selector, checks
from .eligibility_conditions import checked_properties

GROUPS = "groups"
"""The name of the setting that holds each client's group."""


@dataclass(frozen=True)
class Overrides:
    """What the operator declares about clients. A declared value takes precedence over client reports.

    Attributes
    ----------
    sizes : mapping of str to float (default: empty)
        The number of samples that a client holds, by identity, in [1e-100, 1e100].
    settings : mapping of str to mapping of str to value (default: empty)
        The selector's settings per client (``groups``, ``lipschitz``, ``energies``, ...), by name and
        identity, for example ``{"groups": {"client-01": "north"}}``. A group is a name or a number.
    properties : mapping of str to mapping of str to value (default: empty)
        Properties and ``tags`` of clients, by identity, for `Eligibility`: ``{"site-1": {"tags": ["eu"]}}``.
    shares : "data", "equal" or mapping of str to float (default: "data")
        The clients' shares of the mean that the aggregate estimates, relative to each other: their data
        sizes, the same share for all, or a number in [1e-100, 1e100] by identity; the other clients have the
        median of these numbers. Every selector aims at these shares instead of the data sizes.
    group_shares : mapping of str to float (default: empty)
        The share of each group in this mean, by its name, in [1e-100, 1e100], relative to the other groups. A
        group's clients have parts of it in proportion to ``shares``. Clients of other groups are refused. The
        share of clients that are absent goes to the others.
    every : mapping of str to int (default: empty)
        The number of rounds, >= 1, in which a client trains at least once, by identity. A client that is due
        trains for certain if it is available; the selector draws the other clients of the round. One place
        is left for others, so if more clients are due, the ones that are overdue longest come first.
    removed : path or collection of str (default: empty)
        The identities of the clients that are removed from the run for good, or the path of a JSON file with
        a list of these identities. The server reads the file again whenever the file changes.
    """

    sizes: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _: KW_ONLY
    properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shares: Literal["data", "equal"] | Mapping[str, float] = "data"
    group_shares: Mapping[str, float] = field(default_factory=dict)
    every: Mapping[str, int] = field(default_factory=dict)
    removed: str | Path | Collection[str] = ()

    def __post_init__(self) -> None:
        _by_identity("overrides.sizes", self.sizes, '{"client-1": 120}')
        example = '{"groups": {"client-1": "north"}}'
        if not isinstance(self.settings, Mapping):
            raise TypeError(f"overrides.settings = {self.settings!r}: must be of the form {example}")
        for name, values in self.settings.items():
            _by_identity(f"overrides.settings[{name!r}]", values, '{"client-1": ...}')
        for client_id, group in self.settings.get(GROUPS, {}).items():
            if isinstance(group, bool) or not isinstance(group, str | int):
                raise TypeError(f"groups[{client_id!r}] = {group!r}: must be a name or an integer")
        _by_identity("overrides.properties", self.properties, '{"client-1": {"tags": ["eu"]}}')
        for client_id, properties in self.properties.items():
            checked_properties(f"overrides.properties[{client_id!r}]", properties)
        if self.shares not in ("data", "equal"):
            _by_identity("overrides.shares", self.shares, '{"client-1": 2}, or "data" or "equal"')
        _by_identity("overrides.group_shares", self.group_shares, '{"north": 0.5}')
        _by_identity("overrides.every", self.every, '{"client-1": 5}')
        low, high = checks.SMALLEST_SIZE, checks.LARGEST_SIZE
        for kind, numbers in (
            ("sizes", self.sizes),
            ("shares", self.declared_shares),
            ("group_shares", self.group_shares),
        ):
            for name, number in numbers.items():
                checks.real(f"overrides.{kind}[{name!r}]", number, low=low, high=high)
        for client_id, rounds in self.every.items():
            checks.integer(f"overrides.every[{client_id!r}]", rounds, low=1)
        if not isinstance(self.removed, str | Path | Collection):
            raise TypeError(f"overrides.removed = {self.removed!r}: must be a path or a list of identities")
        if not isinstance(self.removed, str | Path):
            for client_id in self.removed:
                if not isinstance(client_id, str):
                    raise TypeError(f"overrides.removed holds {client_id!r}: must hold identities, as text")

    @property
    def identities(self) -> frozenset[str]:
        declared = (self.sizes, self.properties, self.declared_shares, self.every, *self.settings.values())
        return frozenset().union(*declared)

    @property
    def declared_shares(self) -> Mapping[str, float]:
        """The clients' shares by identity; empty if they are not declared one by one."""
        return {} if isinstance(self.shares, str) else self.shares

    def check(self, selector: type[Selector]) -> None:
        """Check that a selector has the declared settings per client, and that their values are allowed."""
        if self.every and (selector.unbiased == "long-run" or selector.part_names or selector.clients_decide):
            raise ValueError(
                f"overrides.every = {dict(self.every)!r:.200}: must be empty with {selector.name}, which "
                "shares rounds among groups, draws parts of updates or lets clients decide; use 'forecast' "
                "or 'md'"
            )
        known = selector.per_client
        for name, values in self.settings.items():
            if name == GROUPS and self.group_shares:
                continue
            if name not in known:
                raise ValueError(
                    f"overrides.settings[{name!r}]: {selector.name} has no such setting per client; it has "
                    f"{', '.join(known) or 'none'}"
                )
            if name != GROUPS:  # a group may be a name, which has no range
                known[name].check(f"overrides.settings[{name!r}]", list(values.values()), len(values))
        for name, each in known.items():
            if each.default is None and name != GROUPS and not self.settings.get(name):
                raise ValueError(
                    f"overrides.settings has no {name!r}: {selector.name} must have it ({each.doc}) for at "
                    "least one client; without it use 'forecast'"
                )


def _by_identity(name: str, values: Any, example: str) -> None:
    """Refuse anything but a mapping by identity, such as a list of sizes: clients have no fixed order."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{name} = {values!r:.200}: must be a mapping by identity, such as {example}")
    for client_id in values:
        if not isinstance(client_id, str):
            raise TypeError(f"{name} holds the identity {client_id!r}: must be text, as in {example}")
