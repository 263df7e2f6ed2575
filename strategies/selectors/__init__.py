"""Client selectors: `create` makes one by name, `available` lists the names; each paper has a folder."""

from .base import Selector
from .context import RoundContext
from .records import Feedback, Selection
from .registry import available, create, register, selector_type

__all__ = [
    "Feedback",
    "RoundContext",
    "Selection",
    "Selector",
    "available",
    "create",
    "register",
    "selector_type",
]
