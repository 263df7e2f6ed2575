"""The options that all strategies take, and what they may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
from flwr.app import MetricRecord
from flwr.serverapp.strategy import Strategy

from . import selectors
from .clients.overrides import GROUPS
from .flower.polling import check_polls_for
from .rounds.logic import RoundRecord, check_correction
from .selectors import checks
from .server_steps.compatibility import View, view_of


class Options(TypedDict, total=False):
    """What every strategy of this package takes besides its selector's settings."""

    server_strategy: Strategy
    seed: int
    num_rounds: int
    min_available_clients: int
    quorum: int
    over_selection: float
    correction: Literal["equal", "rates"]
    join_deadline: float
    absence_deadline: float
    round_deadline: float
    status_deadline: float
    poll_deadline: float
    poll_interval: float
    poll_with: Literal["query", "evaluate"]
    loss_metric: str
    local_learning_rate: float
    ask_status: bool
    client_sizes: Mapping[str, float]
    client_settings: Mapping[str, Mapping[str, Any]]
    guard: bool | Mapping[str, Any]
    variates: Literal["fedvarp", "scaffold"] | None
    masked_updates: bool
    checkpoint_dir: str | Path | None
    resume: bool
    stop: Callable[[int, MetricRecord | None], bool]
    on_round: Callable[[RoundRecord], None]


def check_selector(name: str, clients_per_round: int, settings: Mapping[str, Any], num_rounds: int) -> None:
    """Refuse a selector that cannot be made, or used, before any client is there.

    Raises
    ------
    TypeError, ValueError
        If the name or a setting is wrong, or the selector must know updates before it chooses who makes them.
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
    check_polls_for(name, kind.polls_for)


def check_round_options(clients_per_round: int, quorum: int, over_selection: float, correction: str) -> None:
    """Refuse what no round can have; the message names the option, its value and what is allowed.

    Raises
    ------
    TypeError, ValueError
        If one is out of range.
    """
    if correction not in ("equal", "rates"):
        raise ValueError(f"correction = {correction!r}: must be 'equal' or 'rates'")
    checks.integer("clients_per_round", clients_per_round, low=1)
    checks.integer("quorum", quorum, low=1, high=clients_per_round, why="clients_per_round")
    checks.real("over_selection", over_selection, low=1, high=100)


def check_options(
    selector: str,
    clients_per_round: int,
    *,
    server_strategy: Strategy | None,
    seed: int,
    min_available_clients: int | None,
    quorum: int,
    over_selection: float,
    correction: str,
    seconds: Mapping[str, float],
    local_learning_rate: float | None,
    client_settings: Mapping[str, Mapping[str, Any]],
    guard: bool | Mapping[str, Any],
    variates: str | None,
    masked_updates: bool,
    checkpoint_dir: str | Path | None,
    resume: bool,
) -> None:
    """Refuse options that are out of range, or do not go together; ``seconds`` are the intervals of time.

    Raises
    ------
    TypeError, ValueError
        The message names the option, its value and what is allowed.
    """
    kind = selectors.selector_type(selector)
    checks.integer("seed", seed, low=0)
    for name, value in seconds.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name} = {value!r}: must be a number of seconds greater than 0")
        if not value > 0:
            raise ValueError(f"{name} = {value}: must be greater than 0")
    if local_learning_rate is not None and not 0 < local_learning_rate < inf:
        raise ValueError(f"local_learning_rate = {local_learning_rate}: must be finite and greater than 0")
    check_round_options(clients_per_round, quorum, over_selection, correction)
    if correction == "rates":
        check_correction(kind)
    if min_available_clients is not None:
        checks.integer(
            "min_available_clients", min_available_clients, low=clients_per_round, why="clients_per_round"
        )
    if not isinstance(guard, bool | Mapping):
        raise TypeError(f"guard = {guard!r}: must be True, False or a mapping of its settings")
    if variates == "scaffold" and local_learning_rate is None:
        raise ValueError("local_learning_rate = None: must be the clients' with variates = 'scaffold'")
    if masked_updates:
        _check_masked(kind, server_strategy, bool(variates or over_selection > 1 or correction != "equal"))
    if checkpoint_dir == "":  # an environment variable that is not set, perhaps
        raise ValueError("checkpoint_dir = '': must be a folder, or None")
    if resume and checkpoint_dir is None:
        raise ValueError("resume = True: needs a checkpoint_dir to go on from")
    check_client_settings(selector, client_settings)


def check_client_settings(selector: str, client_settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse settings per client that a selector has not, that are out of range, or that lack.

    Raises
    ------
    TypeError, ValueError
        The message names the setting, its value and what is allowed.
    """
    known = selectors.selector_type(selector).per_client
    for name, values in client_settings.items():
        if name not in known:
            raise ValueError(
                f"client_settings[{name!r}]: {selector} has no such setting per client; it has "
                f"{', '.join(known) or 'none'}"
            )
        if name != GROUPS:  # those may be names
            known[name].check(f"client_settings[{name!r}]", list(values.values()), len(values))
    for name, each in known.items():
        if each.default is None and name != GROUPS and not client_settings.get(name):
            raise ValueError(f"client_settings has no {name!r}: {selector} must have it ({each.doc})")


def _check_masked(kind: type[selectors.Selector], server_strategy: Strategy | None, is_singled: bool) -> None:
    """Refuse what must see single updates, or can do without some, where there is only their sum."""
    if is_singled:
        raise ValueError(
            "masked_updates = True: must be without variates, which need single updates, and without "
            "over_selection and correction = 'rates', since the sum needs everybody"
        )
    if "diversity" in kind.feedback_used:
        raise ValueError(
            f"selector = {kind.name!r} with masked_updates = True: learns how far single updates are from "
            "their mean, and they are hidden"
        )
    if server_strategy is not None and view_of(server_strategy) is not View.AGGREGATE:
        raise ValueError(
            f"server_strategy = {type(server_strategy).__name__}() with masked_updates = True: must step "
            "from the average, since single updates are hidden"
        )
