"""The settings of a run, in the form for reporters and in the form for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..options import Budgets, Buffered, Faults
from ..server_steps.step import ServerStep


@dataclass(frozen=True)
class RunDescription:
    """The settings of a strategy that determine its run."""

    strategy: str  # the name of the class
    selector: str
    selector_settings: Mapping[str, Any]
    budgets: Budgets
    seed: int
    local_learning_rate: float | str
    step: ServerStep
    faults: Faults
    variates: str | None
    masked_updates: bool
    mode: Buffered | None

    def shown(self) -> dict[str, Any]:
        """Return the settings that reporters show."""
        return {
            "strategy": self.strategy,
            **self._selection(self.selector_settings),
            "variates": self.variates,
            "masked_updates": self.masked_updates,
            "mode": None if self.mode is None else repr(self.mode),
        }

    def fixed(self) -> dict[str, Any]:
        """Return the settings that a resume must not change, as JSON values."""
        guard = self.faults.guard_settings
        settings = {name: repr(value) for name, value in sorted(self.selector_settings.items())}
        return {
            **self._selection(settings),
            "server_settings": self.step.settings,
            "guard": None if guard is None else asdict(guard),
            "correction": self.faults.correction,
            "silence": self.faults.silence,
            "variates": self.variates,
            "masked_updates": self.masked_updates,
            **({} if self.mode is None else {"mode": asdict(self.mode)}),
        }

    def _selection(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "selector": self.selector,
            "selector_settings": settings,
            "clients_per_round": repr(self.budgets),
            "seed": self.seed,
            "local_learning_rate": self.local_learning_rate,
            "server_strategy": type(self.step.strategy).__name__,
        }
