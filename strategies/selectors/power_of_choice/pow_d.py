"""pow-d: Power-of-Choice; of d candidates, the K with the largest losses train.

Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (AISTATS 2022),
section 4 (the paper's K (clients) and m (selected) are M and K here).
"""

from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Array, Floats, Ints
from ...numerics.sampling import first_arrivals, largest
from .. import checks
from ..context import RoundContext
from ..settings import Schedule, Settings, setting
from .plain_mean import PlainMeanSelector


@dataclass(frozen=True)
class PowDSettings(Settings):
    """Settings common to all variants."""

    num_candidates: Schedule = setting(  # noqa: RUF009 (a frozen default)
        Schedule(((0, 0),)),
        low=0,
        doc="d, a number or a schedule over rounds, each >= clients_per_round; 0 is the variant's default: "
        "2K (pow-d, cpow-d), half of the clients (rpow-d), all of them (adapow-d)",
    )


class PowDSelector(PlainMeanSelector):
    """A round takes three steps.

    They are::

        1. A = d clients drawn without replacement, one after another in proportion to their data p_k
        2. F_k for k in A: here the mean loss of the current global model over all samples of k
        3. S = the K of A with the largest F_k, ties at random;  Δ = (1/K) sum_{k in S} u_k

    Step 2 asks d clients in each round to download the model and evaluate it; the variants differ in F_k and
    d. If at most d clients are available, all are candidates. A candidate that does not answer is no longer a
    candidate.

    A larger d converges faster to a higher final error: the plain mean of the clients with the largest losses
    is not the gradient of the global loss. d = K is sampling in proportion to data, which the paper's
    footnote 2
    calls unbiased; it is not: a client's inclusion probability without replacement is below K p_k where p_k
    is large. ``md`` with replacement is the unbiased one. Only the order of the losses matters.

    ``Selection.probabilities`` and `probabilities` hold p_k, from which the candidates are drawn; the
    probability of being selected depends on losses that are unknown beforehand. The budget is not known at
    the poll; if it exceeds d, only the d candidates are selected.
    """

    name = "pow-d"
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
        """Return the K clients with the largest losses, and their p_k among the available clients."""
        chosen = clients[largest(losses, context.k, context.rng("ties"))]
        return chosen, self.client_sizes[chosen] / context.available.total_size

    def _num_candidates(self, round: int) -> int:
        """Return d in a round."""
        return int(self._settings.num_candidates.at(round)) or self._default_candidates()

    def _default_candidates(self) -> int:
        return 2 * self._clients_per_round

    def _arrivals(self, context: RoundContext, d: int) -> tuple[Ints, Floats]:
        """Draw d of the available clients, fewer than all; see `first_arrivals`."""
        sizes = context.available.of(self.client_sizes)
        drawn, arrivals = first_arrivals(sizes, d, context.rng("candidates"))
        return context.available.at(drawn), arrivals
