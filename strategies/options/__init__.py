"""The options of a strategy, in groups. Each group is a frozen dataclass that checks its values.

These dataclasses do not depend on Flower. `SelectionStrategy`, the simulator and the settings of the app all
use them, so each option and its range are defined once. A wrong type raises a TypeError, and a value out of
range a ValueError; the message names the option, its value and what is allowed. The defaults of the app are
in pyproject.toml.
"""

from .arguments import arguments_of, check_kind, names_replacements, refuse_unknown
from .buffered import Buffered
from .checkpoints import Checkpoints
from .clients_per_round import Budget, Budgets, read_rates
from .deadlines import Deadlines
from .eligibility_conditions import Eligibility, Eligible, checked_properties
from .faults import Faults, check_correction
from .guard_settings import LEVELS, GuardSettings, Level
from .overrides import GROUPS, Overrides
from .polling import Polling
from .selector_check import AFTER_TRAINING, check_selector

__all__ = [
    "AFTER_TRAINING",
    "GROUPS",
    "LEVELS",
    "Budget",
    "Budgets",
    "Buffered",
    "Checkpoints",
    "Deadlines",
    "Eligibility",
    "Eligible",
    "Faults",
    "GuardSettings",
    "Level",
    "Overrides",
    "Polling",
    "arguments_of",
    "check_correction",
    "check_kind",
    "check_selector",
    "checked_properties",
    "names_replacements",
    "read_rates",
    "refuse_unknown",
]
