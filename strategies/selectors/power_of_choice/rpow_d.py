"""rpow-d: Power-of-Choice on the last training loss (Cho et al. 2022, section 4 and Algorithm 2)."""

from ...numerics.arrays import Floats, Ints
from ..context import RoundContext
from .last_losses import LastLossSelector
from .pow_d import PowDSelector


class RPowDSelector(LastLossSelector, PowDSelector):
    """F_k is the mean loss over k's last local training, infinite for clients that were never selected.

    No candidate is polled, at the price of old losses: a client with a small loss that is rarely a candidate
    keeps it, so the paper needs a d much larger than that of `pow-d` (half of all clients in its tables, the
    default).
    """

    name = "rpow-d"
    polls_for = frozenset()

    def _choose(self, context: RoundContext) -> tuple[Ints, Floats]:
        d = max(context.k, self._num_candidates(context.round))
        drawn = context.available.clients if d >= context.available.count else self._arrivals(context, d)[0]
        return self._largest(context, drawn, self._last_losses()[drawn])

    def _default_candidates(self) -> int:
        return max(self._clients_per_round, self._num_registered // 2)
