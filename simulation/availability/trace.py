"""As it was recorded."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Ints
from strategies.numerics.streams import generator

from .base import Availability
from .traces import Recording


class Trace(Availability):
    """Replays a recorded trace, a bin of time a round, and begins again at its end.

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`.
    recording : Recording
        Of D recorded clients.
    assign : {"random", "key", "same"} (default: "random")
        Which recorded client each client is: drawn, each recorded one about equally often ("real-random" in
        the FLICS paper); by ``key`` ("real-correlated"); or the one with its index, for D = M.
    key : array_like, shape (M,), optional
        Clients and recorded clients are sorted, by the key and by how often they are here, and cut into
        ``parts`` of about equal size; within a part it is drawn. With the share of a class as the key,
        clients with much of it are those that are here often; -key turns that round.
    parts : int (default: 3)
        >= 1, at most D and M; the paper's three. (It divides by the time that a client is active at all, to
        say how often it is here; this takes the whole record.)

    Examples
    --------
    >>> rows = [(0, 0.0, 5400.0), (1, 1800.0, 3600.0), (2, 7000.0, 9000.0)]  # or read_trace("phones.csv")
    >>> hours = Recording(rows, bin_length=3600.0)
    >>> [Trace(3, recording=hours, assign="same").here(round).tolist() for round in (1, 2, 3, 4)]
    [[0, 1], [0, 2], [2], [0, 1]]
    """

    def __init__(
        self,
        num_clients: int,
        seed: int = 0,
        *,
        recording: Recording,
        assign: Literal["random", "key", "same"] = "random",
        key: npt.ArrayLike | None = None,
        parts: int = 3,
    ) -> None:
        super().__init__(num_clients, seed)
        if recording.num_bins == 0:
            raise ValueError("recording: nobody is ever here in it")
        if (assign == "key") != (key is not None):
            raise ValueError(f"assign = {assign!r}: 'key' needs a key, and only 'key' does")
        rng = generator(seed, 0, "assign")
        recorded = np.arange(recording.num_clients)
        if assign == "same":
            if recording.num_clients != num_clients:
                raise ValueError(
                    f"assign = 'same': {recording.num_clients} recorded clients for {num_clients}"
                )
            source = recorded
        elif assign == "random":
            source = _spread(recorded, num_clients, rng)
        elif assign == "key":
            source = np.empty(num_clients, dtype=np.int64)
            if not 1 <= parts <= min(num_clients, recorded.size):
                raise ValueError(f"parts = {parts}: must be from 1 to {min(num_clients, recorded.size)}")
            values = np.asarray(key, dtype=np.float64)
            if values.shape != (num_clients,) or np.isnan(values).any():
                raise ValueError(f"key of shape {values.shape}: must be {num_clients} numbers")
            by_share = np.array_split(np.argsort(recording.shares(), kind="stable"), parts)
            by_key = np.array_split(np.argsort(values, kind="stable"), parts)
            for seldom, small in zip(by_share, by_key, strict=True):
                source[small] = _spread(seldom, small.size, rng)
        else:
            raise ValueError(f"assign = {assign!r}: must be 'random', 'key' or 'same'")
        self.recording = recording
        self.source: npt.NDArray[np.int32] = source.astype(np.int32)
        """(M,) which recorded client each client is."""

    def _here(self, round: int) -> Ints:
        recorded = self.recording.here((round - 1) % self.recording.num_bins)
        return np.flatnonzero(recorded[self.source])


def _spread(recorded: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Return (count,) recorded clients at random, each as often as the others, give or take one."""
    shuffled = rng.permutation(recorded)
    return rng.permutation(shuffled[np.arange(count) % shuffled.size])
