"""What happened in a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan

import numpy as np
from numpy.typing import NDArray

from ..selectors import Feedback, Selection


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round; arrays (S,) are aligned with ``selection.clients``.

    A skipped round leaves the model as it is, all weights are 0, and the selector learns from no client:
    ``feedback.responded`` is False for all. (If the server strategy could not take its step, the weights are
    those that it was given, and the selector has learned.) A selected client that is not among ``failures``
    sent a usable update.
    """

    round: int
    num_available: int
    selection: Selection
    weights: NDArray[np.float64]  # (S,) c_m, the coefficient of each update in the pseudo-gradient
    feedback: Feedback  # what the selector learned from
    failures: Mapping[int, str] = field(default_factory=dict)  # client -> why its reply was not used
    clipped: Mapping[int, str] = field(default_factory=dict)  # client -> which of its values were clipped
    skipped: str = ""  # why the round changed nothing; "" if it changed the model
    quarantined: tuple[int, ...] = ()  # available clients that were not selectable after offences
    train_loss: float = nan  # of the clients that replied, weighted as their updates
    seconds: float = nan  # from the poll to the new model, waiting included
