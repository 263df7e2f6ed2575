"""Cohort's strategies for Flower: who trains in each round, and what their updates then weigh."""

from .attendance import NotEnoughClientsError
from .named import AdaptiveOSMD
from .round import RoundRecord
from .strategy import SelectionStrategy

__all__ = ["AdaptiveOSMD", "NotEnoughClientsError", "RoundRecord", "SelectionStrategy"]
