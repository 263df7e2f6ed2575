"""Client selectors. `create` makes a selector by its name, and `available` lists the names.

The selectors of one paper, or of one kind, have a folder of their own.
"""

from .base import Selector
from .context import RoundContext
from .records import Feedback, Selection
from .registry import available, create, register, selector_type, settings_of_run

__all__ = [
    "Feedback",
    "RoundContext",
    "Selection",
    "Selector",
    "available",
    "create",
    "register",
    "selector_type",
    "settings_of_run",
]
