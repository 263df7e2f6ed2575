"""Numbers over the rounds of a run, in memory that does not grow with the number of rounds."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Series:
    """One number per round. If there are too many rounds, neighbouring rounds share a bin.

    `most`: the largest number of bins; must be even. When all bins are in use, each pair of neighbouring bins
    becomes one.
    """

    def __init__(self, most: int = 512) -> None:
        self.width = 1  # rounds per bin
        self._most = most
        self._sums: list[float] = []
        self._counts: list[int] = []
        self._lows: list[float] = []
        self._highs: list[float] = []

    def add(self, round: int, value: float | None) -> None:
        """Enter the value of a round; rounds are numbered from 0. Values that are not finite are left out."""
        while round // self.width >= self._most:
            self._merge()
        at = round // self.width
        while len(self._sums) <= at:
            self._sums.append(0.0)
            self._counts.append(0)
            self._lows.append(math.inf)
            self._highs.append(-math.inf)
        if value is None or not math.isfinite(value):
            return
        self._sums[at] += value
        self._counts[at] += 1
        self._lows[at] = min(self._lows[at], value)
        self._highs[at] = max(self._highs[at], value)

    def shown(self, start: int = 0) -> dict[str, Any]:
        """Return the bins from ``start`` on: their means, and their ranges if a bin has several rounds."""
        known = [count > 0 for count in self._counts[start:]]
        means = [s / max(1, n) for s, n in zip(self._sums[start:], self._counts[start:], strict=True)]
        found: dict[str, Any] = {
            "width": self.width,
            "start": start,
            "mean": [mean if has else None for mean, has in zip(means, known, strict=True)],
        }
        if self.width > 1:
            for name, values in (("low", self._lows), ("high", self._highs)):
                found[name] = [v if has else None for v, has in zip(values[start:], known, strict=True)]
        return found

    def __len__(self) -> int:
        return len(self._sums)

    def _merge(self) -> None:
        self.width *= 2
        self._sums = _pairs(self._sums, sum)
        self._counts = _pairs(self._counts, sum)
        self._lows = _pairs(self._lows, min)
        self._highs = _pairs(self._highs, max)


def _pairs(values: list[Any], joined: Any) -> list[Any]:
    return [joined(values[at : at + 2]) for at in range(0, len(values), 2)]


class ClientCounts:
    """How often something happened to each client in each round, for example a draw.

    If there are too many rounds, neighbouring rounds share a column.

    `cells`: about how many counts are kept in memory.
    """

    def __init__(self, cells: int = 1 << 23) -> None:
        self.width = 1  # rounds per column
        self.columns = 0  # the columns in use
        self._cells = cells
        self._counts = np.zeros((0, 16), dtype=np.uint16)

    @property
    def counts(self) -> NDArray[np.uint16]:
        """The counts, an array (clients, columns); 65535 stands for 65535 or more."""
        return self._counts[:, : self.columns]

    def resize(self, clients: int) -> None:
        """Make room for more clients."""
        missing = clients - len(self._counts)
        if missing > 0:
            room = np.zeros((missing, self._counts.shape[1]), dtype=np.uint16)
            self._counts = np.concatenate([self._counts, room])

    def add(self, round: int, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Count the events of a round; rounds are numbered from 0, and ``clients`` are distinct."""
        most = int(min(256, max(32, self._cells // max(1, len(self._counts)))))
        while round // self.width >= most:
            odd = np.zeros((len(self._counts), self._counts.shape[1] % 2), dtype=np.uint16)
            wide = np.concatenate([self._counts, odd], axis=1).astype(np.uint32)
            self._counts = np.minimum(wide[:, ::2] + wide[:, 1::2], 65535).astype(np.uint16)
            self.width *= 2
            self.columns = -(-self.columns // 2)
        at = round // self.width
        if at >= self._counts.shape[1]:
            room = np.zeros((len(self._counts), min(most, 2 * at + 16) - self._counts.shape[1]), np.uint16)
            self._counts = np.concatenate([self._counts, room], axis=1)
        self.columns = max(self.columns, at + 1)
        grown = self._counts[clients, at].astype(np.int64) + counts
        self._counts[clients, at] = np.minimum(grown, 65535).astype(np.uint16)

    def binned(self, row_of: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
        """Return an array (rows, columns): the sums of `counts` over the clients of each row.

        The array ``row_of`` (clients,) holds the row of each client. Each row must have at least one client.
        """
        order = np.argsort(row_of, kind="stable")
        starts = np.searchsorted(row_of[order], np.arange(rows))
        return np.add.reduceat(self.counts[order].astype(np.int64), starts, axis=0)
