"""Creates the selector with the first clients, and tells it which clients join, leave or change."""

from __future__ import annotations

from logging import WARNING
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.common import log

from ..clients.overrides import per_client, sizes_of
from ..options import GROUPS
from ..rounds.guard.claimed_sizes import ClaimLog, believed_numbers, judged_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from ..clients.eligible_clients import EligibleClients
    from ..clients.overrides import Groups
    from ..clients.roster import Roster
    from ..options import GuardSettings, Overrides
    from ..rounds.guard.claimed_sizes import ClientSizes
    from ..rounds.logic import RoundLogic
    from ..selectors import Selector
    from ..selectors.settings import Settings


class SelectorClients:
    """Creates the selector and the `RoundLogic`, and tells them which clients join, leave or change.

    Parameters
    ----------
    roster : Roster
        The known clients.
    overrides : Overrides
        What the operator declares about clients.
    groups : Groups
        The clients' groups.
    guard : GuardSettings or None
        The limits of what clients report about themselves; None if reports are not limited.
    kind : subclass of Selector
        The selector's class.
    settings : Settings
        The selector's settings.
    create_selector : callable
        Creates the selector from the number of clients, ``client_sizes``, ``num_rounds`` and the settings per
        client.
    create_logic : callable
        Creates the `RoundLogic` from the selector.
    """

    def __init__(
        self,
        roster: Roster,
        overrides: Overrides,
        groups: Groups,
        guard: GuardSettings | None,
        kind: type[Selector],
        settings: Settings,
        create_selector: Callable[..., Selector],
        create_logic: Callable[[Selector], RoundLogic],
    ) -> None:
        self._roster, self._overrides, self._groups, self._guard = roster, overrides, groups, guard
        self._kind, self._settings = kind, settings
        self._create_selector, self._create_logic = create_selector, create_logic
        self._logic: RoundLogic | None = None
        self._restored: Mapping[str, NDArray[Any]] | None = None  # the saved state, until `create`
        self._seen_changes = -1  # the value of `Roster.changes` at the last update
        self._sizes: ClientSizes | None = None
        self._claim_log = ClaimLog()

    @property
    def are_known(self) -> bool:
        """Whether `create` was called."""
        return self._logic is not None

    @property
    def are_restored(self) -> bool:
        """Whether `create` will go on from a saved state."""
        return self._restored is not None

    @property
    def logic(self) -> RoundLogic:
        """The rounds' logic, with the selector.

        Raises
        ------
        RuntimeError
            If it is accessed before `create`.
        """
        if self._logic is None:
            raise RuntimeError("no client is known before the first round")
        return self._logic

    def create(self, num_rounds: int) -> None:
        """Create the selector with all known clients, and load the saved state if there is one.

        ``num_rounds`` is the planned number of rounds. Call `update` next.
        """
        sizes = self._judge_sizes().used
        selector = self._create_selector(
            len(sizes), client_sizes=sizes, num_rounds=num_rounds, **self._per_client()
        )
        self._logic = self._create_logic(selector)
        if self._restored is not None:
            self._logic.load_state_dict(self._restored)
            self._restored = None

    def update(self) -> None:
        """Tell the selector what has changed in the roster since the last update.

        Claims that are clipped or ignored are logged, see `ClaimLog`.
        """
        if self._seen_changes == self._roster.changes:
            return
        self._seen_changes = self._roster.changes
        logic, sizes = self.logic, self._judge_sizes().used
        known = logic.selector.num_clients
        if len(sizes) > known:
            logic.add_clients(sizes[known:], **self._per_client(known))
        registered = logic.selector.registered
        removed = [client for client in self._roster.removed() if registered[client]]
        if removed:
            logic.remove_clients(removed)
        changed = np.flatnonzero((sizes != logic.selector.client_sizes) & logic.selector.registered)
        if changed.size:
            logic.set_sizes(changed, sizes[changed])
        self._warn(self._claim_log.of_sizes(self.sizes, self._roster.id_of))

    def _per_client(self, first: int = 0) -> dict[str, NDArray[Any]]:
        """Return the selector's settings per client, as arrays (M - first,) from index ``first`` on."""
        reported = {
            "costs": self._believed("costs", self._roster.costs()),
            "energies": self._believed("energies", self._roster.energies()),
        }
        each = per_client(
            self._overrides, self._kind, self._roster, first, groups=self._groups, reported=reported
        )
        for name in sorted(self._settings.needs_per_client - each.keys()) if first == 0 else ():
            log(WARNING, "No client reports %s, and none are declared: each client has the value 1", name)
        if GROUPS in each and first == 0 and not any(self._groups.of_all(self._roster)):
            log(WARNING, "No client reports a group, and none is declared: each client is a group of its own")
        return each

    @property
    def sizes(self) -> ClientSizes:
        """The data sizes of the clients, as claimed and as used, as of the last update."""
        return self._judge_sizes() if self._sizes is None else self._sizes

    def _judge_sizes(self) -> ClientSizes:
        declared = sizes_of(self._roster, self._overrides.sizes)
        self._sizes = judged_sizes(self._roster.sizes(), declared, self._guard)
        return self._sizes

    def _believed(self, name: str, claimed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (M,) the costs or energies that the server uses; NaN = unknown. See `believed_numbers`."""
        if name not in self._kind.per_client:
            return claimed
        declared = sizes_of(self._roster, self._overrides.settings.get(name, {}))
        used = believed_numbers(claimed, declared, self._guard)
        self._warn(self._claim_log.of_numbers(name, claimed, used, declared, self._roster.id_of))
        return used

    @staticmethod
    def _warn(lines: list[str]) -> None:
        for line in lines:
            log(WARNING, line)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the state of the rounds' logic, see `RoundLogic.state_dict`."""
        return self.logic.state_dict()

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Keep a saved state until `create`, since the clients are not known yet."""
        self._restored = state


def needs_status(
    kind: type[Selector], settings: Settings, overrides: Overrides, eligible: EligibleClients
) -> bool:
    """Return whether the run needs status reports, which another project's app may not send.

    It needs them for groups, costs, energies or properties that the operator does not declare, and if the
    selector polls for something else than losses.
    """
    reported = {GROUPS}.intersection(kind.per_client) | settings.needs_per_client
    by_property = eligible.conditions.needs_properties and not overrides.properties
    return bool(reported - overrides.settings.keys() or kind.polls_for - {"loss"} or by_property)
