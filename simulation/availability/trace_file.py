"""Recorded traces of availability: rows (client, start, end), read from a file and cut into bins of time."""

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Bools, Floats, Ints

from .fedscale_trace import read_fedscale_trace

COLUMNS = ("client", "start", "end")


def read_trace(path: str | Path) -> Floats:
    """Read a recorded trace: a CSV file whose header has the columns client, start and end.

    Other columns are ignored. ``client`` is any name. ``start`` and ``end`` are times as numbers; all rows
    have the same unit and origin of time. A file whose name ends with ``.json`` is a behaviour trace of
    devices, which `read_fedscale_trace` reads. (The FLICS paper excludes hours in which a client transfers 10
    MB or more. To reproduce the paper, leave these hours out of the file.)

    Returns
    -------
    ndarray, shape (R, 3)
        (client, start, end). Clients are numbered in the order of their names, or in numerical order if all
        names are whole numbers.

    Raises
    ------
    ValueError
        If a column is missing or a value is not a number; the message names the line.
    """
    if Path(path).suffix.lower() == ".json":
        return read_fedscale_trace(path)
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
    """A recorded trace in bins of time: which of D recorded clients are available in which bin.

    Parameters
    ----------
    rows : array_like, shape (R, 3)
        (client, start, end): the client, numbered from 0, is available at the times t with start <= t < end.
        Any unit of time is allowed. Rows may overlap and may be in any order.
    bin_length : float
        Length of a bin in the unit of the rows, > 0.
    whole_bins : bool (default: True)
        True: a client available in any part of a bin is available in the bin, as in the FLICS paper (section
        IV-B, bins of one hour). False: a client is available in a bin if it is available when the bin begins.
    origin : float, optional
        Time at which bin 0 begins. Default: the multiple of ``bin_length`` at or before the earliest start.
    num_clients : int, optional
        D; needed if some clients have no row. Default: the largest client number in the rows, plus 1.

    Attributes
    ----------
    num_clients, num_bins : int
        D, and the number of bins up to the last bin in which a client is available.

    Raises
    ------
    ValueError
        If a row ends before it starts, or its client is not in 0..D - 1.
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
            raise ValueError(f"a row has client {largest}: must be below {self.num_clients}")
        if origin is None:
            earliest = table[:, 1].min() if len(table) else 0.0
            origin = bin_length * float(np.floor(earliest / bin_length))
        start, end = (table[:, 1:].T - origin) / bin_length
        first = (np.floor(start) if whole_bins else np.ceil(start)).astype(np.int64)
        last = np.ceil(end).astype(np.int64)  # exclusive
        # A row before the origin covers no bin. If only the beginnings of bins count, a row between two
        # beginnings covers no bin, either. Such rows are dropped.
        first = np.maximum(first, 0)
        kept = last > first
        self._clients, self._first, self._last = _merged(
            table[kept, 0].astype(np.int64), first[kept], last[kept]
        )
        self.num_bins = int(self._last.max(initial=0))

    def available(self, bin: int) -> Bools:
        """Return (D,) whether each recorded client is available in the bin with this number, >= 0."""
        begun = int(np.searchsorted(self._first, bin, side="right"))
        available = np.zeros(self.num_clients, dtype=np.bool_)
        available[self._clients[:begun][self._last[:begun] > bin]] = True
        return available

    def shares(self) -> Floats:
        """Return (D,) the share of the bins in which each recorded client is available."""
        bins = np.bincount(self._clients, self._last - self._first, minlength=self.num_clients)
        return bins / max(1, self.num_bins)


def _merged(clients: Ints, first: Ints, last: Ints) -> tuple[npt.NDArray[np.int32], Ints, Ints]:
    """Return rows (client, first, last) that cover the same bins and do not overlap, sorted by first."""
    order = np.lexsort((first, clients))
    clients, first, last = clients[order], first[order], last[order]
    # For each row, the latest end so far among the rows of its client. An offset per client keeps the rows of
    # different clients apart.
    offset = clients * (int(last.max(initial=0)) + 1)
    reach = np.maximum.accumulate(last + offset)
    begins = np.ones(clients.size, dtype=np.bool_)
    begins[1:] = first[1:] + offset[1:] > reach[:-1]
    at = np.flatnonzero(begins)
    until = np.append(at, clients.size)[1:]
    first, last, clients = first[at], (reach - offset)[until - 1], clients[at]
    order = np.argsort(first, kind="stable")
    return clients[order].astype(np.int32), first[order].astype(np.int32), last[order].astype(np.int32)
