"""The learning tasks. Each has a model, a data set and a partition; the model is in NumPy or in torch.

`create` imports a task's module only when that task is asked for, so a device that trains a NumPy model never
imports torch.
"""

from .base import Arrays, Task
from .federated_data import Dataset
from .registry import available, create, data_files, learning_rate, register

__all__ = ["Arrays", "Dataset", "Task", "available", "create", "data_files", "learning_rate", "register"]
