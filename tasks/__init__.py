"""The learning tasks: each has a model (in NumPy or in torch), a data set and a partition.

`create` imports a task's module only when that task is asked for, so a device that trains a NumPy model never
imports torch.
"""

from .base import Arrays, Task
from .federated_data import Dataset
from .registry import available, create, data_files, learning_rate, register

__all__ = ["Arrays", "Dataset", "Task", "available", "create", "data_files", "learning_rate", "register"]
