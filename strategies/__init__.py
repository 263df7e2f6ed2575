"""Cohort's strategies for Flower: which clients train in each round, and how much their updates weigh."""

from .checkpoint import CheckpointError
from .clients.reports import Report
from .flower.attendance import NotEnoughClientsError
from .flower.client_app import ReportingClientApp
from .flower.messages import read_report, write_report
from .flower.polling import MissingHandlerError
from .options import Buffered, Checkpoints, Deadlines, Eligibility, Faults, GuardSettings, Overrides, Polling
from .presets import AdaptiveOSMD, Delta, Flics, Forecast, PersonalisedOSMD, PowerOfChoice
from .reporters import JSONLines, MLflow, Prometheus, Reporter, RoundReport, RunInfo, TensorBoard, WandB
from .rounds.record import RoundRecord
from .selectors import Selector
from .selectors.probability import ProbabilitySelector
from .strategy import SelectionStrategy

__all__ = [
    "AdaptiveOSMD",
    "Buffered",
    "CheckpointError",
    "Checkpoints",
    "Deadlines",
    "Delta",
    "Eligibility",
    "Faults",
    "Flics",
    "Forecast",
    "GuardSettings",
    "JSONLines",
    "MLflow",
    "MissingHandlerError",
    "NotEnoughClientsError",
    "Overrides",
    "PersonalisedOSMD",
    "Polling",
    "PowerOfChoice",
    "ProbabilitySelector",
    "Prometheus",
    "Report",
    "Reporter",
    "ReportingClientApp",
    "RoundRecord",
    "RoundReport",
    "RunInfo",
    "SelectionStrategy",
    "Selector",
    "TensorBoard",
    "WandB",
    "read_report",
    "write_report",
]
