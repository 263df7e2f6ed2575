"""Which selector a run should have used, and how long its rounds waited: estimates from its log."""

from .log import LoggedRound
from .off_policy import Interval
from .replay import BASELINE, Evidence, collect
from .study import Finding, Findings, check_candidate, check_log, study
from .verdict import Advice, advise
from .waiting import Waiting, waiting

__all__ = [
    "BASELINE",
    "Advice",
    "Evidence",
    "Finding",
    "Findings",
    "Interval",
    "LoggedRound",
    "Waiting",
    "advise",
    "check_candidate",
    "check_log",
    "collect",
    "study",
    "waiting",
]
