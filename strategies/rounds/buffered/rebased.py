"""Rebased: a client's update of an earlier model, added to the current model."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Rebased(Mapping[str, NDArray[Any]]):
    """w_t + (w_m - w_s) for a client m that trained from w_s. Each array is computed when it is accessed.

    The sums are in float32, or in the arrays' type if it is wider.

    The names, shapes and types of w_m (``sent``) have been checked. ``base`` is w_s, and ``now`` w_t.
    """

    def __init__(
        self,
        sent: Mapping[str, NDArray[Any]],
        base: Mapping[str, NDArray[Any]],
        now: Mapping[str, NDArray[Any]],
    ) -> None:
        self._sent, self._base, self._now = sent, base, now

    def __getitem__(self, name: str) -> NDArray[Any]:
        now = self._now[name]
        moved: NDArray[Any] = np.subtract(now, self._base[name], dtype=np.result_type(now, np.float32))
        np.add(moved, self._sent[name], out=moved, casting="same_kind")
        return moved

    def __iter__(self) -> Iterator[str]:
        return iter(self._sent)

    def __len__(self) -> int:
        return len(self._sent)
