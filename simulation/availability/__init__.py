"""Random processes that determine which clients are available in which round. Rounds are numbered from 1.

`create` makes a process by name, and `available` lists the names. In most processes, clients are available
independently of each other, each client at its own rate. In `GroupCounts`, the number of available clients of
each group is drawn first, as in the FLICS paper.
"""

from .arrival_order import InOrderOfArrival
from .base import Always, Availability, Once
from .groups import GroupCounts
from .markov import Markov
from .poisson import Cyclic, Diurnal, Poisson, Uniform
from .registry import available, create
from .trace import Trace

__all__ = [
    "Always",
    "Availability",
    "Cyclic",
    "Diurnal",
    "GroupCounts",
    "InOrderOfArrival",
    "Markov",
    "Once",
    "Poisson",
    "Trace",
    "Uniform",
    "available",
    "create",
]
