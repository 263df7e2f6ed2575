"""Recorded traces of availability, rows of (client, start, end): read, made up, cut into bins of time."""

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Bools, Floats, Ints

DAY = 24
"""Rounds a day, of those processes that have one."""

COLUMNS = ("client", "start", "end")


def read_trace(path: str | Path) -> Floats:
    """Read a recorded trace: a CSV file whose header has the columns client, start and end.

    Other columns are not looked at. (The FLICS paper does not count hours in which a client moves 10 MB or
    more; they have to be left out of the file.)

    Parameters
    ----------
    path : path
        ``client`` is any name; ``start`` and ``end`` are numbers, in one unit of time from one origin.

    Returns
    -------
    ndarray, shape (R, 3)
        (client, start, end): the recorded clients are numbered in the order of their names, numbers by value.

    Raises
    ------
    ValueError
        If a column is missing or a number is none; the message says in which line.
    """
    names: list[str] = []
    times: list[tuple[float, float]] = []
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file)
        header = [name.strip() for name in next(lines, [])]
        if not {*COLUMNS} <= {*header}:
            raise ValueError(f"{path}: columns are {header}: must have {', '.join(COLUMNS)}")
        client, start, end = map(header.index, COLUMNS)
        for line in lines:
            if not line:
                continue
            try:
                times.append((float(line[start]), float(line[end])))
                names.append(line[client].strip())
            except (IndexError, ValueError) as error:
                raise ValueError(
                    f"{path}, line {lines.line_num}: {line}: must be {', '.join(header)}"
                ) from error
    clients = np.array(names)
    if all(name.isdecimal() for name in names):
        clients = clients.astype(np.int64)
    return np.column_stack([np.unique(clients, return_inverse=True)[1], np.reshape(times, (-1, 2))])


class Recording:
    """A recorded trace in bins of time: which of D recorded clients is here in which bin.

    Parameters
    ----------
    rows : array_like, shape (R, 3)
        (client, start, end), clients numbered from 0: it is here from start to before end, in any unit of
        time. Rows may overlap and come in any order.
    bin_length : float
        Length of a bin in that unit, > 0.
    whole_bins : bool (default: True)
        Who is here in any part of a bin is here in it, as in the FLICS paper (section IV-B: hours). False:
        who is here when it begins.
    origin : float, optional
        When bin 0 begins. Default: with the bin, counted from time 0, in which the earliest row starts.
    num_clients : int, optional
        D, where clients without a row count too. Default: the largest of the rows, and one.

    Attributes
    ----------
    num_clients, num_bins : int
        D, and the number of bins up to the last in which somebody is here.

    Raises
    ------
    ValueError
        If a row ends before it starts or names a client that there is not.
    """

    def __init__(
        self,
        rows: npt.ArrayLike,
        *,
        bin_length: float = 1.0,
        whole_bins: bool = True,
        origin: float | None = None,
        num_clients: int | None = None,
    ) -> None:
        if not bin_length > 0:
            raise ValueError(f"bin_length = {bin_length}: must be > 0")
        table = np.asarray(rows, dtype=np.float64).reshape(-1, 3)
        good = (table[:, 2] >= table[:, 1]) & (table[:, 0] >= 0) & np.isfinite(table).all(axis=1)
        for client, start, end in table[~good]:
            raise ValueError(
                f"row ({client:g}, {start}, {end}): must be (client, start, end) with start <= end"
            )
        largest = int(table[:, 0].max(initial=-1))
        self.num_clients = largest + 1 if num_clients is None else num_clients
        if largest >= self.num_clients:
            raise ValueError(f"a row names client {largest}: there are {self.num_clients}")
        if origin is None:
            origin = (
                bin_length * float(np.floor(table[:, 1].min(initial=np.inf) / bin_length))
                if len(table)
                else 0.0
            )
        start, end = (table[:, 1:].T - origin) / bin_length
        first = (np.floor(start) if whole_bins else np.ceil(start)).astype(np.int64)
        last = np.ceil(end).astype(np.int64)
        # Bins before the origin are not replayed; nor is what lies between two looks.
        first = np.maximum(first, 0)
        seen = last > first
        self._clients, self._first, self._last = _merged(
            table[seen, 0].astype(np.int64), first[seen], last[seen]
        )
        self.num_bins = int(self._last.max(initial=0))

    def here(self, number: int) -> Bools:
        """Return (D,) whether each recorded client is here in a bin, 0 <= number."""
        begun = int(np.searchsorted(self._first, number, side="right"))
        here = np.zeros(self.num_clients, dtype=np.bool_)
        here[self._clients[:begun][self._last[:begun] > number]] = True
        return here

    def shares(self) -> Floats:
        """Return (D,) in which share of the bins each recorded client is here."""
        bins = np.bincount(self._clients, self._last - self._first, minlength=self.num_clients)
        return bins / max(1, self.num_bins)


def _merged(clients: Ints, first: Ints, last: Ints) -> tuple[npt.NDArray[np.int32], Ints, Ints]:
    """Return disjoint (client, first, last) that cover the same bins, sorted by first."""
    order = np.lexsort((first, clients))
    clients, first, last = clients[order], first[order], last[order]
    # The furthest end so far of the same client: another client's lies in another stretch of numbers.
    stretch = clients * (int(last.max(initial=0)) + 1)
    reach = np.maximum.accumulate(last + stretch)
    begins = np.ones(clients.size, dtype=np.bool_)
    begins[1:] = first[1:] + stretch[1:] > reach[:-1]
    at = np.flatnonzero(begins)
    until = np.append(at, clients.size)[1:]
    first, last, clients = first[at], (reach - stretch)[until - 1], clients[at]
    order = np.argsort(first, kind="stable")
    return clients[order].astype(np.int32), first[order].astype(np.int32), last[order].astype(np.int32)


def replay(rows: npt.ArrayLike, num_clients: int, num_rounds: int, round_length: float = 1.0) -> Bools:
    """Return (T, M) who is here at the start of each round of a recorded trace.

    Parameters
    ----------
    rows : array_like, shape (R, 3)
        (client, start, end): the client is here from start to before end, in any unit of time.
    num_clients, num_rounds : int
        M and T.
    round_length : float
        Time between two rounds, in that unit; round 0 starts at 0.

    Raises
    ------
    ValueError
        If a row ends before it starts or names a client that there is not.
    """
    recording = Recording(
        rows, bin_length=round_length, whole_bins=False, origin=0.0, num_clients=num_clients
    )
    return np.array([recording.here(round) for round in range(num_rounds)]).reshape(num_rounds, num_clients)


def sessions(
    groups: Ints, shares: Floats, num_rounds: int, rng: np.random.Generator
) -> list[tuple[int, float, float]]:
    """Make up a recorded trace: rows (client, start, end), in rounds, each client's in order.

    A client is here for a lognormal time (median 1.5 rounds, σ = .8) and away for one that makes its share of
    the time what is wanted, thrice as long at the night of its group as at noon.

    Parameters
    ----------
    groups : ndarray of int, shape (M,)
        The group of each client.
    shares : ndarray, shape (G,)
        Which part of the time clients of each group are here, roughly, in (0, 1).
    num_rounds : int
        T; sessions begin before it.
    rng : np.random.Generator
        Source of randomness.
    """
    zones = groups / shares.size
    mean_here = 1.5 * np.exp(0.8**2 / 2)
    mean_away = mean_here * (1 / shares[groups] - 1)
    now = -rng.random(groups.size) * (mean_here + mean_away)
    rows: list[tuple[int, float, float]] = []
    going = np.arange(groups.size)
    while going.size:
        night = 1 - 0.5 * np.sin(2 * np.pi * (now[going] / DAY + zones[going]))  # .5 at noon to 1.5
        start = now[going] + rng.exponential(mean_away[going] * night)
        end = start + 1.5 * rng.lognormal(0, 0.8, going.size)
        seen = (end > 0) & (start < num_rounds)
        rows += zip(going[seen].tolist(), start[seen].tolist(), end[seen].tolist(), strict=True)
        now[going] = end
        going = going[end < num_rounds]
    return sorted(rows)
