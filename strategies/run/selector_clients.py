"""Creates the selector with the first clients, and tells it which clients join, leave or change."""

from collections.abc import Mapping
from dataclasses import replace
from logging import WARNING
from typing import Any

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from ..clients.eligible_clients import EligibleClients
from ..clients.overrides import Groups, per_client, sizes_of, target_sizes
from ..clients.roster import Roster
from ..options import GROUPS
from ..rounds.control_variates import ClientVariates
from ..rounds.guard.claimed_sizes import ClaimLog, ClientSizes, believed_numbers, judged_sizes
from ..rounds.logic import RoundLogic
from ..selectors import create
from .settings import RunSettings


class SelectorClients:
    """Creates the selector and the `RoundLogic`, and tells them which clients join, leave or change.

    If ``is_private``, the server step adds the noise of differential privacy.
    """

    def __init__(
        self,
        settings: RunSettings,
        roster: Roster,
        groups: Groups,
        variates: ClientVariates | None,
        is_private: bool,
    ) -> None:
        self._settings, self._roster, self._groups = settings, roster, groups
        self._variates, self._is_private = variates, is_private
        self._overrides, self._guard = settings.overrides, settings.faults.guard_settings
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
        if self._logic is None:
            raise RuntimeError("no client is known before the first round")
        return self._logic

    def create(self, num_rounds: int) -> None:
        """Create the selector with all known clients, and load a saved state, if any. Call `update` next."""
        given, sizes = self._settings, self._target_sizes()
        selector = create(
            given.selector,
            len(sizes),
            client_sizes=sizes,
            clients_per_round=given.clients_per_round,
            num_rounds=num_rounds,
            seed=given.seed,
            **given.selector_settings,
            **self._per_client(),
        )
        self._logic = RoundLogic(
            selector,
            given.faults,
            variates=self._variates,
            budgets=given.budgets,
            shortest_deadline=given.deadlines.shortest,
            updates="masked" if given.masked_updates else "noised" if self._is_private else "open",
            mode=given.mode,
            every=self._every() if self._overrides.every else None,
        )
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
        logic, sizes = self.logic, self._target_sizes()
        known = logic.selector.num_clients
        if len(sizes) > known:
            logic.add_clients(sizes[known:], **self._per_client(known))
            if logic.regular is not None:
                logic.regular.declare(self._every())
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
            self._overrides, self._settings.kind, self._roster, first, groups=self._groups, reported=reported
        )
        for name in sorted(self._settings.of_selector.needs_per_client - each.keys()) if first == 0 else ():
            log(WARNING, "No client reports %s, and none are declared: each client has the value 1", name)
        if GROUPS in each and first == 0 and not any(self._groups.of_all(self._roster)):
            log(WARNING, "No client reports a group, and none is declared: each client is a group of its own")
        return each

    @property
    def sizes(self) -> ClientSizes:
        """The data sizes of the clients, as claimed and as used, as of the last update."""
        return self._judge_sizes() if self._sizes is None else self._sizes

    def _judge_sizes(self) -> ClientSizes:
        declared = sizes_of(self._roster, self._overrides.sizes) if self._overrides.sizes else None
        sizes = judged_sizes(self._roster.sizes(), declared, self._guard)
        targets = target_sizes(sizes.used, self._overrides, self._roster, self._groups)
        self._sizes = sizes if targets is sizes.used else replace(sizes, targets=targets)
        return self._sizes

    def _target_sizes(self) -> NDArray[np.float64]:
        sizes = self._judge_sizes()
        return sizes.used if sizes.targets is None else sizes.targets

    def _every(self) -> dict[int, int]:
        every = self._overrides.every
        return {client: every[name] for client, name in enumerate(self._roster.ids()) if name in every}

    def _believed(self, name: str, claimed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (M,) the costs or energies that the server uses; NaN = unknown. See `believed_numbers`."""
        if name not in self._settings.kind.per_client:
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
        return self.logic.state_dict()

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Keep a saved state until `create`, since the clients are not known yet."""
        self._restored = state


def needs_status(settings: RunSettings, eligible: EligibleClients) -> bool:
    """Return whether the run needs what only a status report says: groups, costs, properties, ..."""
    kind, overrides = settings.kind, settings.overrides
    reported = {GROUPS}.intersection(kind.per_client) | settings.of_selector.needs_per_client
    reported |= {GROUPS} if overrides.group_shares else set()
    by_property = eligible.conditions.needs_properties and not overrides.properties
    return bool(reported - overrides.settings.keys() or kind.polls_for - {"loss"} or by_property)
