"""rpow-d: Power-of-Choice on the last training loss (Cho et al. 2022, section 4 and Algorithm 2)."""

from collections.abc import Mapping
from typing import ClassVar

import numpy.typing as npt

from ...numerics.arrays import Floats, Ints
from ..presence import Presence
from .candidates import PowerOfChoiceSelector
from .plain_mean import LastLossSelector


class RPowDSelector(LastLossSelector, PowerOfChoiceSelector):
    """F_k is replaced by the mean loss over k's last local training, infinite for the never-selected.

    No candidate is asked anything. It costs freshness: a client that fared badly once and is rarely a
    candidate keeps its old loss, so the paper needs a d much larger than that of `pow-d` (half of all clients
    in its tables, the default).
    """

    name = "rpow-d"
    polls_for: ClassVar[frozenset[str]] = frozenset()

    def candidates(
        self, round: int, *, available: npt.ArrayLike | None = None, unavailable: npt.ArrayLike | None = None
    ) -> Ints | None:
        """Return None: nobody needs to be asked."""
        return None

    def _choose(
        self,
        round: int,
        here: Presence,
        k: int,
        candidates: npt.ArrayLike | None,
        reports: Mapping[str, Floats] | None,
    ) -> tuple[Ints, Floats]:
        d = max(k, self._num_candidates(round))
        drawn = here.clients if d >= here.count else self._arrivals(round, here, d)[0]
        return self._winners(round, here, k, drawn, self._last_losses()[drawn])

    def _default_candidates(self) -> int:
        return max(self._clients_per_round, self._num_registered // 2)
