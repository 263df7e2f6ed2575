"""Overrides: what the operator declares about clients: sizes, settings, properties and removals."""

from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

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
    removed : path or collection of str (default: empty)
        The identities of the clients that are removed from the run for good, or the path of a JSON file with
        a list of these identities. The server reads the file again whenever the file changes.
    """

    sizes: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _: KW_ONLY
    properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
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
        low, high = checks.SMALLEST_SIZE, checks.LARGEST_SIZE
        for client_id, size in self.sizes.items():
            checks.real(f"overrides.sizes[{client_id!r}]", size, low=low, high=high)
        if not isinstance(self.removed, str | Path | Collection):
            raise TypeError(f"overrides.removed = {self.removed!r}: must be a path or a list of identities")
        if not isinstance(self.removed, str | Path):
            for client_id in self.removed:
                if not isinstance(client_id, str):
                    raise TypeError(f"overrides.removed holds {client_id!r}: must hold identities, as text")

    @property
    def identities(self) -> frozenset[str]:
        return frozenset(self.sizes).union(self.properties, *self.settings.values())

    def check(self, selector: type[Selector]) -> None:
        """Check that a selector has the declared settings per client, and that their values are allowed."""
        known = selector.per_client
        for name, values in self.settings.items():
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
