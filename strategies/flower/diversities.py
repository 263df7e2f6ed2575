"""Computes, from polled clients' updates, the diversities that some selectors must know before selection."""

from collections.abc import Callable, Mapping
from logging import WARNING
from math import nan

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.common import log
from numpy.typing import NDArray

from ..clients.printable import printable
from ..numerics.robust import mean_weights
from ..rounds.aggregation import Model, UnusableError, Update
from .arrays import ReceivedArrays, of_kind


def diversities(
    arrays: ArrayRecord,
    answers: Mapping[int, RecordDict],
    sizes: NDArray[np.float64],
    name_of: Callable[[int], str],
) -> NDArray[np.float64]:
    """Return (n,) the diversity of each client: the L2 distance of its update from the mean of all updates.

    The mean is weighted by `mean_weights`. The diversity of a client without a usable update is NaN. All
    answers are in memory at once, and each model is read three times.

    ``arrays`` is the global model w_t. ``answers`` holds the answers to ``query.update`` by the clients'
    positions in ``sizes`` (n,), the data sizes > 0 of the clients that were asked; each answer holds a
    trained model w_m. ``name_of`` returns the identity of the client at a position, for the log.
    """
    model = Model(dict(ReceivedArrays(arrays)))
    updates: dict[int, Update] = {}
    norms: dict[int, float] = {}
    for position, content in answers.items():
        try:
            records = list(of_kind(content, ArrayRecord).values())
            if len(records) != 1:
                raise UnusableError(f"{len(records)} array records: must be 1")
            update = Update(ReceivedArrays(records[0]))
            norm = model.examine(update)
        except Exception as error:  # a reply may cause any error, and must not end the round
            log(WARNING, "%s sent an unusable update: %s", name_of(position), printable(error))
        else:
            updates[position], norms[position] = update, norm
    apart = np.full(sizes.size, nan)
    weights = mean_weights(sizes[list(updates)], np.array(list(norms.values()), dtype=np.float64))
    mean = model.fold(zip(weights.tolist(), updates.values(), strict=True))
    for position, update in updates.items():
        apart[position] = model.distance(update, mean)
    return apart
