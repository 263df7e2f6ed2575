"""rpow-d: Power-of-Choice by the last training loss (Cho et al. 2022, section 4 and Algorithm 2)."""

from ...numerics.arrays import Floats, Ints
from ..context import RoundContext
from .last_losses import LastLossSelector
from .pow_d import PowDSelector


class RPowDSelector(LastLossSelector, PowDSelector):
    """Selects as `pow-d`, but F_k is the mean loss of client k's last local training.

    F_k is infinite for clients that were never selected, see `LastLossSelector`. No client is polled, but
    losses may be old: F_k changes only when client k trains. So d must be much larger than for `pow-d`. In
    the paper's tables, and by default, d is half of all clients.
    """

    name = "rpow-d"
    summary = "with the largest past losses"
    polls_for = frozenset()

    def _choose(self, context: RoundContext) -> tuple[Ints, Floats]:
        d = max(context.k, self._num_candidates(context.round))
        drawn = context.available.clients if d >= context.available.count else self._arrivals(context, d)[0]
        return self._largest(context, drawn, self._last_losses()[drawn])

    def _default_candidates(self) -> int:
        return max(self._clients_per_round, self._num_registered // 2)
