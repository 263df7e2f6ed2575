"""The settings of a run: a strategy's arguments, checked, and as reporters and checkpoints hold them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from flwr.serverapp.strategy import Strategy

from ..options import (
    Budget,
    Budgets,
    Buffered,
    Checkpoints,
    Deadlines,
    Eligible,
    Faults,
    Overrides,
    Polling,
    check_kind,
    check_selector,
    read_rates,
)
from ..selectors import Selector, checks, selector_type
from ..selectors.settings import Schedule, Settings
from ..server_steps.compatibility import check_buffered, check_masked
from ..server_steps.step import ServerStep

_NAMED = 'settings by name, such as {"alpha": 0.4}'
_KINDS: dict[str, tuple[Any, str]] = {  # argument -> its kind, and the kind in words
    "selector": (str, "the name of a selector, such as 'forecast'"),
    "selector_settings": (Mapping, _NAMED),
    "variates": (str, "'fedvarp', 'fedvarp-mean' or 'scaffold'"),
    "server_strategy": (Strategy, "a strategy of Flower, such as FedAdam()"),
    "deadlines": (Deadlines, "a Deadlines, such as Deadlines(round=60)"),
    "polling": (Polling, "a Polling, such as Polling(ask_status=True)"),
    "faults": (Faults, "a Faults, such as Faults(quorum=2)"),
    "overrides": (Overrides, 'an Overrides, such as Overrides(sizes={"client-1": 120})'),
    "checkpoints": (Checkpoints, 'a Checkpoints, such as Checkpoints("runs/1")'),
    "mode": (Buffered, "a Buffered, such as Buffered(concurrency=30)"),
    "stop": (Callable, "a function of the round and the metrics"),
    "on_round": (Callable, "a function of a RoundRecord"),
    "reporters": (Sequence, "a list of reporters, such as [JSONLines(path)]"),
}
_HAVE_DEFAULTS = ("deadlines", "polling", "faults", "overrides")


@dataclass(frozen=True)
class RunSettings:
    """The arguments of `SelectionStrategy` that determine a run."""

    strategy: str  # the name of the strategy's class
    selector: str
    clients_per_round: int
    selector_settings: Mapping[str, Any]
    server_strategy: Strategy | None
    seed: int
    num_rounds: int | None
    min_available_clients: int | None
    local_learning_rate: float | str | None
    budget: Budget | None
    deadlines: Deadlines
    polling: Polling
    faults: Faults
    overrides: Overrides
    eligible: Eligible | None
    checkpoints: Checkpoints | None
    variates: str | None
    mode: Buffered | None
    masked_updates: bool

    @classmethod
    def of(cls, strategy: str, given: Mapping[str, Any]) -> "RunSettings":
        """Return the settings for the arguments of a strategy, by name.

        Raises a TypeError or ValueError if an argument has the wrong kind, is out of range, or does not go
        with another one.
        """
        for name, expected in _KINDS.items():
            check_kind(name, given[name], *expected)
        for name in given["selector_settings"] or ():
            check_kind("selector_settings", name, str, _NAMED)
        own = {each.name: given[each.name] for each in fields(cls)[1:]}
        own["selector_settings"] = dict(own["selector_settings"] or {})  # the caller may change its own
        return cls(
            strategy, **own | {name: _KINDS[name][0]() for name in _HAVE_DEFAULTS if own[name] is None}
        )

    def __post_init__(self) -> None:
        checks.boolean("masked_updates", self.masked_updates)
        k, planned = self.clients_per_round, 1 if self.num_rounds is None else self.num_rounds
        # Refuse wrong settings now: the selector itself is only created in the first round.
        check_selector(self.selector, k, self.selector_settings, planned)
        self.faults.check(self.kind, k)
        self.overrides.check(self.kind)
        self.budgets.check(self.faults.quorum)
        checks.integer("seed", self.seed, low=0)
        if self.min_available_clients is not None:
            checks.integer(
                "min_available_clients", self.min_available_clients, low=k, why="clients_per_round"
            )
        if self.variates == "scaffold" and self.local_learning_rate is None:
            raise ValueError(
                "local_learning_rate = None: must be the clients' learning rate with variates = 'scaffold'"
            )
        _ = self.rates  # raises an error if a rate is refused
        given = self.server_strategy
        if self.checkpoints is not None and hasattr(given, "state_dict") != hasattr(given, "load_state_dict"):
            raise TypeError(
                f"server_strategy = {type(given).__name__}: must have both state_dict and load_state_dict, "
                "or neither, so that a resume can restore its memory"
            )
        if self.masked_updates:
            check_masked(self.kind, self.selector_settings, given, self.variates, self.faults)
        if self.mode is not None and self.overrides.every:
            raise ValueError(
                f"overrides.every = {dict(self.overrides.every)!r:.200}: must be empty in buffered rounds, "
                "where a client trains whenever a place is free"
            )
        if self.mode is not None:
            check_buffered(
                self.mode,
                self.kind,
                self.selector_settings,
                given,
                self.faults,
                size=self.mode.size or k,
                variates=self.variates,
                masked_updates=self.masked_updates,
                budget=self.budget,
            )

    @cached_property
    def kind(self) -> type[Selector]:
        return selector_type(self.selector)

    @cached_property
    def of_selector(self) -> Settings:
        return self.kind.checked_settings(self.selector_settings)

    @cached_property
    def budgets(self) -> Budgets:
        return Budgets(self.clients_per_round, self.budget)

    @property
    def rate(self) -> float | str:
        """The clients' learning rate, or its schedule as text."""
        return 1.0 if self.local_learning_rate is None else self.local_learning_rate

    @cached_property
    def rates(self) -> Schedule:
        return read_rates("local_learning_rate", self.rate)

    def shown(self, step: ServerStep) -> dict[str, Any]:
        return {
            "strategy": self.strategy,
            **self._selection(self.selector_settings, step),
            "variates": self.variates,
            "masked_updates": self.masked_updates,
            "mode": None if self.mode is None else repr(self.mode),
        }

    def fixed(self, step: ServerStep) -> dict[str, Any]:
        guard = self.faults.guard_settings
        settings = {name: repr(value) for name, value in sorted(self.selector_settings.items())}
        return {
            **self._selection(settings, step),
            "server_settings": step.settings,
            "guard": None if guard is None else asdict(guard),
            "correction": self.faults.correction,
            "silence": self.faults.silence,
            "variates": self.variates,
            "masked_updates": self.masked_updates,
            **({} if self.mode is None else {"mode": asdict(self.mode)}),
        }

    def _selection(self, settings: Mapping[str, Any], step: ServerStep) -> dict[str, Any]:
        return {
            "selector": self.selector,
            "selector_settings": settings,
            "clients_per_round": repr(self.budgets),
            "seed": self.seed,
            "local_learning_rate": self.rate,
            "server_strategy": type(step.strategy).__name__,
        }
