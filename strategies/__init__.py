"""Cohort's strategies for Flower: who trains in each round, and what their updates then weigh."""

from .checkpoint import CheckpointError
from .flower.attendance import NotEnoughClientsError
from .flower.polling import MissingHandlerError
from .presets import AdaptiveOSMD, Cohort, Delta, Flics, PowerOfChoice
from .rounds.logic import RoundRecord
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
