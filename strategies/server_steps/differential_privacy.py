"""The server step of strategies with differential privacy: adds the noise that Flower's own step lacks."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from ..rounds.aggregation import Arrays
from .compatibility import SERVER_SIDE
from .replies import NORM_BIT, Asked, Contribution, record

_ROUNDING = 1e-3
"""After a client clipped an update to C, the update's length may differ from C by this relative error."""
_SMALLEST_MOVE = 1e-12  # the least change of one entry in `_move_apart`


def step(
    asked: Asked, round: int, arrays: Arrays, shown: Sequence[Contribution], message: Message
) -> dict[str, NDArray[Any]] | None:
    """Return the new model, with noise in proportion to the largest change that one client can cause.

    This change is the clipping norm C times the largest share of a client in the sum:

    - If the server clips, it clips each update after the multiplication by its weight, so the share is 1/S.
    - If clients clip, the updates are multiplied by their weights after clipping, so the share is c_m. The
      server clips these updates again before the multiplication, since clients may lie.

    Flower adds noise for the share 1/S, and for the C that its adaptive clipping chose for the *next* round.
    This function adds noise if more is needed. The operating system seeds this noise, since the run's seed
    may be known.

    ``arrays`` is w_t, and ``shown`` (S,) holds the contributions of the clients that replied, S >= 1. The
    replies for the strategy are made as answers to ``message``. The result is None if the strategy made no
    model.
    """
    strategy = asked.strategy
    server_clips = isinstance(strategy, SERVER_SIDE)
    # Flower clips in place, which has no effect on arrays without dimensions. So such arrays get a dimension.
    arrays = {name: np.atleast_1d(array) for name, array in arrays.items()}
    if server_clips:
        strategy.current_arrays = record(arrays)
    bound = float(strategy.clipping_norm)
    size = len(shown)
    largest_share = 1 / size if server_clips else max(each.weight for each in shown)
    replies = []
    for each in shown:
        update = {
            name: np.subtract(each.arrays[name], array, dtype=np.result_type(array, np.float32))
            for name, array in arrays.items()
        }
        scale, length = size * each.weight, _length(update)
        if not server_clips and length > bound:
            scale *= bound / length
        estimate = {name: array + scale * update[name] for name, array in arrays.items()}
        if server_clips:
            _move_apart(estimate, arrays)
        clipped = length >= bound * (1 - _ROUNDING)
        replies.append(asked.reply(message, estimate, **{NORM_BIT: clipped}))
    strategy.num_sampled_clients = size
    stepped = asked.step(round, replies)
    if stepped is None:
        return None
    noise = strategy.noise_multiplier
    needed = noise * bound * largest_share
    added = noise * strategy.clipping_norm / size
    if needed > added * (1 + 1e-9):
        rng = np.random.default_rng()
        missing = sqrt(needed**2 - added**2)
        stepped = {
            name: (array + rng.normal(0, missing, array.shape)).astype(array.dtype)
            for name, array in stepped.items()
        }
    return stepped


def _length(update: Mapping[str, NDArray[Any]]) -> float:
    """Return the L2 norm of all arrays together."""
    return sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in update.values()))


def _move_apart(estimate: Arrays, arrays: Arrays) -> None:
    """Move `estimate` so that its distance from w_t, by which Flower divides, is above 0 in its type."""
    if any(float(np.linalg.norm((estimate[name] - array).ravel())) ** 2 for name, array in arrays.items()):
        return
    name = next((name for name, array in arrays.items() if array.size), None)
    if name is not None:
        entry = estimate[name].reshape(-1)[:1]  # a view
        entry += max(_SMALLEST_MOVE, 4 * float(np.finfo(entry.dtype).eps) * abs(float(entry[0])))
