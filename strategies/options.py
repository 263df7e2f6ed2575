"""The options of a strategy, grouped: frozen dataclasses that check themselves and know nothing of Flower.

`SelectionStrategy`, the simulator and the settings of the app take the same objects, so that an option and
its range stand in one place. The app's own defaults are in pyproject.toml.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from math import inf
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from . import selectors
from .selectors import Selector, checks

GROUPS = "groups"
"""The per-client setting that clients may report themselves."""
POLLED = frozenset({"loss", "group"})
"""What clients can be asked before the selection."""


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """How long a run waits, in seconds, each > 0.

    Attributes
    ----------
    join : float (default: 600)
        Round 1 waits this long for ``min_available_clients``; then it starts with the available clients, if
        there are at least ``clients_per_round``.
    absence : float (default: 600)
        A round waits this long until ``quorum`` clients are available; then the run ends.
    round : float (default: 3600)
        A round waits this long for replies and goes on with those that arrived.
    status : float (default: 60)
        A new client has this long to answer the first question. A silent one is asked again, ever more
        rarely.
    poll : float (default: 60)
        Candidates have this long to answer a poll.

    Raises
    ------
    TypeError, ValueError
        If a value is not a number of seconds > 0.
    """

    join: float = 600.0
    absence: float = 600.0
    round: float = 3600.0
    status: float = 60.0
    poll: float = 60.0

    def __post_init__(self) -> None:
        for each in fields(self):
            _check_seconds(f"deadlines.{each.name}", getattr(self, each.name))


@dataclass(frozen=True, kw_only=True)
class Polling:
    """How clients are asked, before and during a round.

    Attributes
    ----------
    interval : float (default: 0.1)
        Seconds between two requests for replies, > 0.
    ask_status : bool (default: True)
        Ask new clients for identity, data size and availability with a ``query.status`` message. With False,
        or where the app has no such handler, a client is known by its registered name or its node id, and its
        size is learned from the ``num-examples`` of its replies.
    poll_with : {"query", "evaluate"} (default: "query")
        Candidates are asked for their loss with a ``query.loss`` message, or with EVALUATE, which also serves
        an app without a ``query.loss`` handler.
    loss_metric : str (default: "loss")
        The metric of EVALUATE replies that holds the loss.

    Raises
    ------
    TypeError, ValueError
        If a value is out of range.
    """

    interval: float = 0.1
    ask_status: bool = True
    poll_with: Literal["query", "evaluate"] = "query"
    loss_metric: str = "loss"

    def __post_init__(self) -> None:
        _check_seconds("polling.interval", self.interval)
        _check_bool("polling.ask_status", self.ask_status)
        _check_choice("polling.poll_with", self.poll_with, ("query", "evaluate"))
        if not self.loss_metric:
            raise ValueError("polling.loss_metric = '': must be the name of a metric")


@dataclass(frozen=True)
class Checkpoints:
    """Where a run is saved after each round.

    Attributes
    ----------
    folder : str or Path
        The folder of this run's checkpoints.
    resume : bool (default: False)
        Continue from the last checkpoint in the folder; start anew if there is none.

    Raises
    ------
    TypeError, ValueError
        If the folder is empty text or not a path.
    """

    folder: str | Path
    resume: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | Path):
            raise TypeError(f"checkpoints.folder = {self.folder!r}: must be the path of a folder")
        if self.folder == "":  # for example an environment variable that is not set
            raise ValueError("checkpoints.folder = '': must be the path of a folder")
        _check_bool("checkpoints.resume", self.resume)


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """The settings of the guard, see `strategies.rounds.guard.Guard`.

    Attributes
    ----------
    deviations : float (default: 4)
        How many standard deviations of the logarithms above the centre are plausible, in [0.1, 1000].
    factor : float (default: 2)
        Up to this many times the centre is always plausible, in [1, 1e9].
    window : int (default: 256)
        The number of clients whose last values are remembered, >= 32.
    strikes, memory : int (default: 3, 4)
        ``strikes`` offences in the last ``memory`` replies quarantine a client, 1 <= strikes <= memory <= 8.
    quarantine, longest_quarantine : int (default: 10, 320)
        The first and the longest quarantine in rounds, 1 <= quarantine <= longest_quarantine.
    signed_losses : bool (default: False)
        Whether a loss may be negative, as a log-likelihood of densities is. Limits are then taken of the
        losses themselves, with |centre| as the unit.

    Raises
    ------
    TypeError, ValueError
        If a value is out of range.
    """

    deviations: float = 4.0
    factor: float = 2.0
    window: int = 256
    strikes: int = 3
    memory: int = 4
    quarantine: int = 10
    longest_quarantine: int = 320
    signed_losses: bool = False

    def __post_init__(self) -> None:
        checks.real("guard.deviations", self.deviations, low=0.1, high=1e3)
        checks.real("guard.factor", self.factor, low=1, high=1e9)
        checks.integer("guard.window", self.window, low=32)  # rounds.limits.RECENT
        checks.integer("guard.memory", self.memory, low=1, high=8)
        checks.integer("guard.strikes", self.strikes, low=1, high=self.memory, why="memory")
        checks.integer("guard.quarantine", self.quarantine, low=1)
        checks.integer(
            "guard.longest_quarantine", self.longest_quarantine, low=self.quarantine, why="quarantine"
        )
        _check_bool("guard.signed_losses", self.signed_losses)


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What a round does about clients that are missing, late, wrong or malicious.

    Attributes
    ----------
    quorum : int (default: 1)
        A round with fewer usable replies is skipped; it does not begin while fewer clients are available.
        Where draws are with replacement, fewer distinct clients than ``clients_per_round`` train: leave room
        for it. In [1, clients_per_round].
    over_selection : float (default: 1)
        Select this many times ``clients_per_round`` and go on once ``clients_per_round`` (and the quorum)
        have replied; in [1, 100]. Early replies are not a random sample: see ``correction``.
    correction : {"equal", "rates"} (default: "equal")
        How weights make up for missing replies: all by the same factor (right where every client fails
        equally often), or by each client's estimated response rate, see `strategies.rounds.response_rates`.
    guard : bool, mapping or GuardSettings (default: True)
        Clips and rejects implausible reports and updates; False accepts everything. A mapping holds settings
        of `GuardSettings`.

    Raises
    ------
    TypeError, ValueError
        If a value is out of range.
    """

    quorum: int = 1
    over_selection: float = 1.0
    correction: Literal["equal", "rates"] = "equal"
    guard: bool | Mapping[str, Any] | GuardSettings = True

    def __post_init__(self) -> None:
        checks.integer("faults.quorum", self.quorum, low=1)
        checks.real("faults.over_selection", self.over_selection, low=1, high=100)
        _check_choice("faults.correction", self.correction, ("equal", "rates"))
        if not isinstance(self.guard, bool | Mapping | GuardSettings):
            raise TypeError(
                f"faults.guard = {self.guard!r}: must be True, False or a mapping of its settings"
            )
        _ = self.guard_settings  # which check themselves

    @property
    def guard_settings(self) -> GuardSettings | None:
        """The settings of the guard; None if there is no guard."""
        if isinstance(self.guard, GuardSettings):
            return self.guard
        if isinstance(self.guard, Mapping):
            return GuardSettings(**self.guard)
        return GuardSettings() if self.guard else None

    def check(self, selector: type[Selector], clients_per_round: int) -> None:
        """Refuse what does not go with a selector or with K.

        Raises
        ------
        ValueError
            If the quorum exceeds K, or the selector itself makes up for missing replies.
        """
        k = checks.integer("clients_per_round", clients_per_round, low=1)
        checks.integer("faults.quorum", self.quorum, low=1, high=k, why="clients_per_round")
        if self.correction == "rates":
            check_correction(selector)


@dataclass(frozen=True)
class Overrides:
    """What the operator declares about clients; it takes precedence over client reports.

    Attributes
    ----------
    sizes : mapping of str to float
        Samples held, by identity, in [1e-100, 1e100].
    settings : mapping of str to mapping of str to value
        The selector's settings per client (``groups``, ``lipschitz``, ``energies``, ...), by name and
        identity: ``{"groups": {"client-01": "north"}}``. Groups are names or numbers of any kind.
    removed : path or collection of str (default: none)
        Identities of the clients that are removed from the run for good, or the path of a JSON list of them,
        which is read again whenever the file changes.
    group_names : tuple of str
        The groups with the numbers 0, 1, ...; all other groups share the next number. Without it groups are
        numbered in the order of their first client.

    Raises
    ------
    TypeError, ValueError
        If a size is not a number or out of range, or an identity is not text.
    """

    sizes: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _: KW_ONLY
    removed: str | Path | Collection[str] = ()
    group_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        low, high = checks.SMALLEST_SIZE, checks.LARGEST_SIZE
        for client_id, size in self.sizes.items():
            checks.real(f"overrides.sizes[{client_id!r}]", size, low=low, high=high)
        if not isinstance(self.removed, str | Path):
            for client_id in self.removed:
                if not isinstance(client_id, str):
                    raise TypeError(f"overrides.removed holds {client_id!r}: must hold identities, as text")

    def check(self, selector: type[Selector]) -> None:
        """Refuse settings per client that a selector does not have, that are out of range, or that it lacks.

        Raises
        ------
        TypeError, ValueError
            The message names the setting, its value and what is allowed.
        """
        known = selector.per_client
        for name, values in self.settings.items():
            if name not in known:
                raise ValueError(
                    f"overrides.settings[{name!r}]: {selector.name} has no such setting per client; it has "
                    f"{', '.join(known) or 'none'}"
                )
            if name != GROUPS:  # their values may be names
                known[name].check(f"overrides.settings[{name!r}]", list(values.values()), len(values))
        for name, each in known.items():
            if each.default is None and name != GROUPS and not self.settings.get(name):
                raise ValueError(
                    f"overrides.settings has no {name!r}: {selector.name} must have it ({each.doc})"
                )


def check_selector(name: str, clients_per_round: int, settings: Mapping[str, Any], num_rounds: int) -> None:
    """Refuse a selector that cannot be made, or used, before any client is known.

    Raises
    ------
    TypeError, ValueError
        If the name or a setting is wrong, or the selector must know updates before it selects.
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
            f"selector = {name!r}: needs the {' and the '.join(unknown)} of all clients before it selects, "
            "which only a simulation knows"
        )


def check_correction(selector: type[Selector]) -> None:
    """Refuse response rates where the selector's own weights make up for missing replies.

    Raises
    ------
    ValueError
        If they do: a group that seldom replies would be made up for twice.
    """
    if selector.unbiased == "long-run":
        raise ValueError(
            f"faults.correction = 'rates': must be 'equal' with selector = {selector.name!r}, which counts "
            "who replies and makes up for missing replies itself"
        )


def _check_seconds(name: str, value: Any) -> None:
    """Refuse what is not a number of seconds > 0; infinity is one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} = {value!r}: must be a number of seconds greater than 0")
    if not 0 < float(value) <= inf:
        raise ValueError(f"{name} = {value}: must be greater than 0")


def _check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} = {value!r}: must be True or False")


def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} = {value!r}: must be {' or '.join(map(repr, allowed))}")
