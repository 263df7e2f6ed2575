"""pow-d, Power-of-Choice: of d candidates, the K clients with the largest losses are selected.

Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (AISTATS 2022),
section 4. The paper's K is M here, the number of clients. The paper's m is K here, the clients per round.
"""

from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Array, Floats, Ints
from ...numerics.sampling import first_arrivals, largest
from .. import checks
from ..context import RoundContext
from ..settings import Schedule, setting
from .plain_mean import MeanSettings, PlainMeanSelector


@dataclass(frozen=True)
class PowDSettings(MeanSettings):
    """Settings of all four variants of Power-of-Choice."""

    num_candidates: Schedule = setting(  # noqa: RUF009 (a frozen default)
        Schedule(((0, 0),)),
        low=0,
        doc="d, a number or a schedule over rounds, each >= clients_per_round; 0 is the variant's default: "
        "2K (pow-d, cpow-d), half of the clients (rpow-d), all of them (adapow-d)",
    )


class PowDSelector(PlainMeanSelector):
    """Selects the candidates with the largest losses.

    A round takes three steps::

        1. A = d candidates, drawn one after another without replacement, in proportion to p_k,
           client k's share of the available clients' data
        2. F_k for each candidate k: here the mean loss of the current global model over all samples of k
        3. S = the K candidates with the largest F_k, ties broken at random
           Δ = (1/K) sum_{k in S} u_k, or other weights by the setting `averaging`

    In step 2 the d candidates download and evaluate the model in each round. The variants of pow-d have
    another F_k or another d. If at most d clients are available, all of them are candidates. A candidate that
    does not answer the poll cannot be selected.

    With a larger d the model converges faster, but to a larger final error. With d = K, clients are sampled
    in proportion to data without replacement. The paper's footnote 2 calls this unbiased, but it is not: the
    inclusion probability of a client with a large p_k is less than K p_k. ``md`` with replacement is
    unbiased. Only the order of the losses has an effect on the selection, not their values.

    In a run, unlike in the paper, a client with more than twice its share of the draws rests for some rounds
    (`GuardSettings.draws`; the guard is on by default).

    `probabilities` and ``Selection.probabilities`` hold p_k, with which the candidates are drawn. The poll
    does not depend on the budget. If the budget of a round exceeds d, only the d candidates are selected.
    """

    name = "pow-d"
    summary = "with the largest losses"
    polls_for = frozenset({"loss"})
    settings_type = PowDSettings
    _settings: PowDSettings

    def _initial_state(self) -> dict[str, Array]:
        for _, d in self._settings.num_candidates.steps:
            if d:
                checks.integer(
                    "num_candidates", d, low=self._clients_per_round, why="the clients per round; 0: default"
                )
        return {}

    def _candidates(self, context: RoundContext) -> Ints:
        d = self._num_candidates(context.round)
        if d >= context.available.count:
            return context.available.clients
        clients, arrivals = self._arrivals(context, d)
        return clients[np.argsort(arrivals)]

    def _choose(self, context: RoundContext) -> tuple[Ints, Floats]:
        return self._largest(context, *context.answered(context.reports["loss"]))

    def _largest(self, context: RoundContext, clients: Ints, losses: Floats) -> tuple[Ints, Floats]:
        """Return (the K of `clients` (n,) with the largest `losses` (n,), their p_k)."""
        chosen = clients[largest(losses, context.k, context.rng("ties"))]
        return chosen, self.client_sizes[chosen] / context.available.total_size

    def _num_candidates(self, round: int) -> int:
        return int(self._settings.num_candidates.at(round)) or self._default_candidates()

    def _default_candidates(self) -> int:
        return 2 * self._clients_per_round

    def _arrivals(self, context: RoundContext, d: int) -> tuple[Ints, Floats]:
        """Draw d of more than d available clients; return them and their arrivals, see `first_arrivals`."""
        sizes = context.available.of(self.client_sizes)
        drawn, arrivals = first_arrivals(sizes, d, context.rng("candidates"))
        return context.available.at(drawn), arrivals
