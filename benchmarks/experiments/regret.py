"""The regret of a sampler, and the oracle that has none: how test beds that know every client's norm score.

The loss of round t is ``l_t(p) = (1/K) sum_m a_m / p_m`` with ``a_m = λ_m² ||g_m||²``, which is the variance
of the aggregate of K draws from p, up to a constant. The regret of the round is ``l_t(p_t) - min_q l_t(q)``.
"""

from __future__ import annotations

import numpy as np

from strategies.numerics.arrays import Floats
from strategies.numerics.projection import project_floored_simplex
from strategies.selectors import Feedback
from strategies.selectors.probability import ProbabilitySelector


def excess(r: Floats, p: Floats) -> float:
    """Return K (l(p) - min_q l(q)) for r_m = λ_m ||g_m||; the minimum is at q in proportion to r."""
    return float((r**2 / p).sum() - r.sum() ** 2)


def feedback_of(norms: Floats) -> Feedback:
    """Return the feedback of a round in which every selected client replies, with these norms (S,)."""
    missing = np.full(norms.size, np.nan)
    return Feedback(norms, missing, missing, missing, np.ones(norms.size, dtype=np.bool_))


class Oracle(ProbabilitySelector):
    """The p >= floor of least variance for the norms of this round, which the test bed sets beforehand.

    ``p_m = max(floor, c λ_m ||g_m||)`` with the c that makes the sum 1 minimises sum_m a_m/p_m over all
    p >= floor; with floor 0 it is `optimal`.

    Attributes
    ----------
    norms : ndarray, shape (M,)
        Every client's ||g_m|| in the coming round.
    """

    name = "oracle"

    def __init__(self, num_clients: int, clients_per_round: int, seed: int, floor: float) -> None:
        super().__init__(num_clients, clients_per_round=clients_per_round, seed=seed)
        self._floor = floor
        self.norms = np.ones(num_clients)

    def _distribution(self) -> Floats:
        with np.errstate(divide="ignore"):
            return project_floored_simplex(np.log(self.client_sizes * self.norms), self._floor)
