"""The options that all strategies take, and what they may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
from flwr.app import MetricRecord
from flwr.serverapp.strategy import Strategy

from . import selectors
from .composition import View, view_of
from .declared import GROUPS
from .polling import check_needs
from .round import RoundRecord


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
    if clients_per_round < 1:
        raise ValueError(f"clients_per_round = {clients_per_round}: must be at least 1")
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
    check_needs(name, kind.needs)


def check_round_options(clients_per_round: int, quorum: int, over_selection: float, correction: str) -> None:
    """Refuse what no round can have; the message names the option, its value and what is allowed.

    Raises
    ------
    ValueError
        If one is out of range.
    """
    if correction not in ("equal", "rates"):
        raise ValueError(f"correction = {correction!r}: must be 'equal' or 'rates'")
    if not 1 <= quorum <= clients_per_round:
        raise ValueError(f"quorum = {quorum}: must be between 1 and {clients_per_round} (clients_per_round)")
    if not 1 <= over_selection <= 100:
        raise ValueError(f"over_selection = {over_selection}: must be between 1 and 100")


def check_options(
    selector: str,
    clients_per_round: int,
    *,
    server_strategy: Strategy | None,
    min_available_clients: int | None,
    quorum: int,
    over_selection: float,
    correction: str,
    seconds: Mapping[str, float],
    local_learning_rate: float | None,
    client_settings: Mapping[str, Mapping[str, Any]],
    variates: str | None,
    masked_updates: bool,
    checkpoint_dir: str | Path | None,
    resume: bool,
) -> None:
    """Refuse options that are out of range, or do not go together; ``seconds`` are the intervals of time.

    Raises
    ------
    ValueError
        The message names the option, its value and what is allowed.
    """
    for name, value in {**seconds, "local_learning_rate": local_learning_rate}.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} = {value}: must be greater than 0")
    check_round_options(clients_per_round, quorum, over_selection, correction)
    if min_available_clients is not None and min_available_clients < clients_per_round:
        raise ValueError(
            f"min_available_clients = {min_available_clients}: must be at least {clients_per_round} "
            "(clients_per_round)"
        )
    if variates == "scaffold" and local_learning_rate is None:
        raise ValueError("local_learning_rate = None: must be the clients' with variates = 'scaffold'")
    if masked_updates and (variates or over_selection > 1):
        raise ValueError(
            "masked_updates = True: must be without variates and over_selection; the one needs single "
            "updates, the other leaves some out"
        )
    if masked_updates and server_strategy is not None and view_of(server_strategy) is not View.AGGREGATE:
        raise ValueError(
            f"server_strategy = {type(server_strategy).__name__}() with masked_updates = True: must step "
            "from the average, since single updates are hidden"
        )
    if resume and checkpoint_dir is None:
        raise ValueError("resume = True: needs a checkpoint_dir to go on from")
    known = selectors.selector_type(selector).per_client
    for name in client_settings:
        if name not in known:
            raise ValueError(
                f"client_settings[{name!r}]: {selector} has no such setting per client; it has "
                f"{', '.join(known) or 'none'}"
            )
