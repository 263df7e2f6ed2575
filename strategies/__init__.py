"""Cohort's strategies for Flower: who trains in each round, and what their updates then weigh."""

from .attendance import NotEnoughClientsError
from .checkpoint import CheckpointError
from .named import AdaptiveOSMD, Cohort, Delta, Flics, PowerOfChoice
from .polling import MissingHandlerError
from .round import RoundRecord
from .strategy import SelectionStrategy

__all__ = [
    "AdaptiveOSMD",
    "CheckpointError",
    "Cohort",
    "Delta",
    "Flics",
    "MissingHandlerError",
    "NotEnoughClientsError",
    "PowerOfChoice",
    "RoundRecord",
    "SelectionStrategy",
]
