"""Finds the eligible clients of a round among the clients of a roster."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..options import Eligibility, Eligible, Overrides
from .overrides import Groups
from .printable import listed
from .roster import Roster


class EligibleClients:
    """Finds the eligible clients of each round. The conditions may change from round to round.

    By default, every client is eligible. Declared properties take precedence over reported ones.

    ``conditions``: the conditions of the current round.
    """

    def __init__(
        self, given: Eligible | None, overrides: Overrides | None = None, groups: Groups | None = None
    ) -> None:
        self._of_round = None if given is None else Eligibility.of(given)
        self._declared: Mapping[str, Mapping[str, Any]] = {} if overrides is None else overrides.properties
        self._groups = groups or Groups()
        self.conditions = Eligibility()
        # The last conditions on names, the value of `Roster.changes`, and (M,) who is eligible.
        self._seen: tuple[Eligibility, int, NDArray[np.bool_]] | None = None

    def begin(self, round: int) -> None:
        if self._of_round is not None:
            self.conditions = self._of_round(round)

    def among(self, roster: Roster, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the eligible clients among ``clients`` (n,), in the same order."""
        conditions = self.conditions
        if not conditions:
            return clients
        if conditions.needs_properties:
            return clients[[self._admits(roster, int(client)) for client in clients]]
        if self._seen is None or self._seen[:2] != (conditions, roster.changes):
            mask = np.array([conditions.admits(name, {}) for name in roster.ids()], dtype=np.bool_)
            self._seen = (conditions, roster.changes, mask)
        return clients[self._seen[2][clients]]

    def check(self, quorum: int) -> None:
        """Refuse conditions of the current round that fewer clients than a quorum can meet.

        This is known only if every name is given without ``*``, ``?`` and ``[``.
        """
        names = set(self.conditions.names)
        if names and len(names) < quorum and not any(set("*?[") & set(name) for name in names):
            raise ValueError(
                f"faults.quorum = {quorum}: must be at most {len(names)}, the number of clients that can be "
                f"eligible (eligible = {str(self.conditions)!r})"
            )

    def excludes(self, name: str) -> bool:
        """Return whether no client with this registered name can be eligible; False for "", no name."""
        return bool(name) and not Eligibility(names=self.conditions.names).admits(name, {})

    def why_nobody(self, roster: Roster) -> str:
        """Return why no known client has an eligible name; "" if one has, or if no client is known."""
        names = roster.ids()
        by_name = Eligibility(names=self.conditions.names)
        if not names or any(by_name.admits(name, {}) for name in names):
            return ""
        return (
            f"eligible = {str(self.conditions)!r}: no client has a name that matches "
            f"{'|'.join(by_name.names)}; the names here are {listed(names, 3)}"
        )

    def _admits(self, roster: Roster, client: int) -> bool:
        name, group = roster.id_of(client), self._groups.of_client(roster, client)
        properties = {
            **roster.properties_of(client),
            **({} if group is None else {"group": group}),
            **self._declared.get(name, {}),
        }
        return self.conditions.admits(name, properties)
