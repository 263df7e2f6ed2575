"""Replays a recorded trace of availability, one bin of time per round."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Floats, Ints
from strategies.numerics.streams import generator

from .base import Availability
from .trace_file import Recording


class Trace(Availability):
    """Replays a recorded trace, one bin per round, and starts again at its end.

    Parameters
    ----------
    recording : Recording
        The trace of D recorded clients.
    assign : {"random", "key", "same"} (default: "random")
        Which recorded client each client follows. "random": a random recorded client; all recorded clients
        are followed about equally often ("real-random" in the FLICS paper). "key": a recorded client chosen
        by ``key`` ("real-correlated"). "same": the recorded client with the same index; needs D = M.
    key : array_like, shape (M,), optional
        For ``assign="key"``: clients are sorted by the key, and recorded clients by the share of bins in
        which they are available. Both lists are cut into ``parts`` of about equal size. A client follows a
        random recorded client of the corresponding part. Clients with the same key are in the same part. So
        if the key is the client's group, no group is divided: 10 equal groups make parts of 3, 4 and 3
        groups. If the key is the share of a class in a client's data, clients with much of this class are
        available often; ``-key`` gives the opposite.
    parts : int (default: 3)
        For ``assign="key"``: the number of parts, from 1 to min(D, M); the default is the FLICS paper's. (In
        that paper, a client's share of bins is relative to the time in which the client is active at all.
        Here the share is relative to the whole trace.)

    Examples
    --------
    >>> rows = [(0, 0.0, 5400.0), (1, 1800.0, 3600.0), (2, 7000.0, 9000.0)]  # or read_trace("phones.csv")
    >>> hours = Recording(rows, bin_length=3600.0)
    >>> process = Trace(3, recording=hours, assign="same")
    >>> [process.available(round).tolist() for round in (1, 2, 3, 4)]
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
            raise ValueError("recording has no bin in which a client is available: must have one")
        if (assign == "key") != (key is not None):
            given = "'key' if a key is given" if key is not None else "'random' or 'same' if no key is given"
            raise ValueError(f"assign = {assign!r}: must be {given}")
        rng = generator(seed, 0, "assign")
        recorded = np.arange(recording.num_clients)
        if assign == "same":
            if recording.num_clients != num_clients:
                raise ValueError(
                    f"recording has {recording.num_clients} clients: must have {num_clients}, one for each "
                    "client of the run, with assign = 'same'"
                )
            source = recorded
        elif assign == "random":
            source = _spread(recorded, num_clients, rng)
        elif assign == "key":
            source = np.empty(num_clients, dtype=np.int64)
            if not 1 <= parts <= min(num_clients, recorded.size):
                raise ValueError(
                    f"parts = {parts}: must be from 1 to {min(num_clients, recorded.size)}, the smaller of "
                    "the numbers of clients and of recorded clients"
                )
            values = np.asarray(key, dtype=np.float64)
            if values.shape != (num_clients,):
                raise ValueError(f"key has shape {values.shape}: must have {(num_clients,)}")
            if np.isnan(values).any():
                raise ValueError(f"key[{np.isnan(values).argmax()}] = nan: must be a number")
            by_share = np.array_split(np.argsort(recording.shares(), kind="stable"), parts)
            part_of = _parts(values, parts)
            for part, recorded_part in enumerate(by_share):
                clients_part = np.flatnonzero(part_of == part)
                source[clients_part] = _spread(recorded_part, clients_part.size, rng)
        else:
            raise ValueError(f"assign = {assign!r}: must be 'random', 'key' or 'same'")
        self.recording = recording
        self.source: npt.NDArray[np.int32] = source.astype(np.int32)
        """(M,) the recorded client that each client follows."""

    def _available(self, round: int) -> Ints:
        available = self.recording.available((round - 1) % self.recording.num_bins)
        return np.flatnonzero(available[self.source])


def _parts(values: Floats, parts: int) -> Ints:
    """Return (M,) each client's part, 0 to ``parts`` - 1, by its rank. Equal values have their mean rank."""
    _, same, counts = np.unique(values, return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - counts / 2
    part_of: Ints = np.floor(parts * middles / values.size).astype(np.int64)[same]
    return part_of


def _spread(recorded: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Return (count,) recorded clients in random order, with frequencies that differ by at most 1."""
    shuffled = rng.permutation(recorded)
    return rng.permutation(shuffled[np.arange(count) % shuffled.size])
