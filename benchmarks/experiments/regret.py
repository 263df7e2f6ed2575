"""The regret of a sampler, and an oracle, for experiments that know every client's norm.

The loss of the probabilities p in round t is ``l_t(p) = (1/K) sum_m a_m / p_m`` with ``a_m = λ_m² ||g_m||²``,
where λ_m is client m's share of the data and ||g_m|| the norm of the client's update or gradient. The loss is
the variance of the aggregate of K draws with the probabilities p, plus a constant that does not depend on p.
The regret of round t is ``l_t(p_t) - min_q l_t(q)``, with the minimum over all probabilities q.
"""

import numpy as np

from strategies.numerics.arrays import Floats
from strategies.numerics.projection import project_floored_simplex
from strategies.selectors import Feedback
from strategies.selectors.probability import ProbabilitySelector


def excess(r: Floats, p: Floats) -> float:
    """Return K times the regret of the probabilities p (M,) in one round, where r (M,) holds λ_m ||g_m||.

    The probabilities of least loss are proportional to r.
    """
    return float((r**2 / p).sum() - r.sum() ** 2)


def feedback_of(norms: Floats) -> Feedback:
    """Return the feedback of a round in which all S selected clients reply with the norms (S,)."""
    missing = np.full(norms.size, np.nan)
    return Feedback(norms, missing, missing, missing, np.ones(norms.size, dtype=np.bool_))


class Oracle(ProbabilitySelector):
    """Knows all clients' norms of the round, and draws with the probabilities of least variance.

    They are ``p_m = max(floor, c λ_m ||g_m||)``, where c makes their sum 1: of all probabilities that are at
    least `floor`, these minimise sum_m a_m / p_m. The experiment sets ``norms`` (M,), every client's ||g_m||
    in the next round, before `select`; at first all are 1.
    """

    name = "oracle"

    def __init__(self, num_clients: int, clients_per_round: int, seed: int, floor: float) -> None:
        super().__init__(num_clients, clients_per_round=clients_per_round, seed=seed)
        self._floor = floor
        self.norms = np.ones(num_clients)

    def _distribution(self) -> Floats:
        with np.errstate(divide="ignore"):
            return project_floored_simplex(np.log(self.client_sizes * self.norms), self._floor)
