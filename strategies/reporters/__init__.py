"""Tells trackers such as TensorBoard what happens in a run. `Reporter` is the contract."""

from .base import Reporter, RoundReport, RunInfo
from .json_lines import JSONLines
from .mlflow import MLflow
from .prometheus import Prometheus
from .reporters import Reporters
from .tensorboard import TensorBoard
from .wandb import WandB

__all__ = [
    "JSONLines",
    "MLflow",
    "Prometheus",
    "Reporter",
    "Reporters",
    "RoundReport",
    "RunInfo",
    "TensorBoard",
    "WandB",
]
