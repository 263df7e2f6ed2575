"""Checks whether a strategy can use a selector."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import selectors
from ..selectors import checks
from .overrides import GROUPS

AFTER_TRAINING = frozenset({"update_norm", "gradient_variance", "diversity"})
"""The reports for which the candidates must train before the selection."""
POLLED = frozenset({"loss", "group"}) | AFTER_TRAINING
"""The reports that the server can ask for before the selection."""


def check_selector(name: str, clients_per_round: int, settings: Mapping[str, Any], num_rounds: int) -> None:
    """Refuse a selector that cannot be made or used. No client needs to be known for this check.

    ``name``: the name of the selector. ``clients_per_round``: K, >= 1. The selector is made for this many
    clients, with placeholders for settings per client. ``settings``: the selector's settings, by name.
    ``num_rounds``: the number of rounds of the run, >= 1.
    """
    checks.integer("clients_per_round", clients_per_round, low=1)
    kind = selectors.selector_type(name)
    each: dict[str, Any] = {
        setting: np.zeros(clients_per_round, dtype=np.int64)
        if setting == GROUPS
        else np.ones(clients_per_round)
        for setting in kind.per_client
        if setting not in settings
    }
    selectors.create(
        name,
        clients_per_round,
        clients_per_round=clients_per_round,
        num_rounds=num_rounds,
        **each,
        **settings,
    )
    if unknown := sorted(kind.polls_for - POLLED):
        raise ValueError(
            f"selector = {name!r}: polls for {' and '.join(unknown)}: must be of {', '.join(sorted(POLLED))}"
        )
