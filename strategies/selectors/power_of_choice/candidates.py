"""Power-of-Choice: of d candidates, the K with the largest losses train.

Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (AISTATS 2022),
section 4 (the paper's K clients and m chosen are M and K here).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Array, Floats, Ints
from ...numerics.sampling import first_arrivals
from ...numerics.streams import generator
from .. import checks
from ..presence import Presence
from ..settings import Schedule, Settings, setting
from .plain_mean import PlainMeanSelector, largest


@dataclass(frozen=True)
class PowerOfChoiceSettings(Settings):
    """Settings of every variant."""

    num_candidates: Schedule = setting(  # noqa: RUF009 (a frozen default)
        Schedule(((0, 0),)),
        low=0,
        doc="d, a number or a schedule over rounds, each >= clients_per_round; 0 is the variant's default: "
        "2K (pow-d, cpow-d), half of the clients (rpow-d), all of them (adapow-d)",
    )


class PowerOfChoiceSelector(PlainMeanSelector):
    """What all variants share.

    A round takes three steps::

        1. A = d clients drawn without replacement, one after another in proportion to their data p_k
        2. F_k for k in A
        3. S = the K of A with the largest F_k, ties at random;  Δ = (1/K) sum_{k in S} u_k

    If at most d clients are here, all are candidates. A candidate that does not answer is none.

    A larger d converges faster to a higher floor: the plain mean of the worst off is not the gradient of the
    global loss. d = K is sampling in proportion to data, which the paper's footnote 2 calls unbiased; it is
    not: a client's inclusion probability without replacement is below K p_k where p_k is large.
    ``md`` with replacement is the unbiased one. Neither losses' unit nor any increasing function of them
    changes the choice.

    ``Selection.probabilities`` and `probabilities` hold p_k, from which the candidates are drawn; the
    probability of being chosen depends on losses that nobody knows beforehand. A budget above d, unknown when
    the candidates are asked, buys d clients.
    """

    polls_for: ClassVar[frozenset[str]] = frozenset({"loss"})
    settings_type = PowerOfChoiceSettings
    _settings: PowerOfChoiceSettings

    def candidates(
        self, round: int, *, available: npt.ArrayLike | None = None, unavailable: npt.ArrayLike | None = None
    ) -> Ints | None:
        """Draw whom to ask for a loss, see `Selector.candidates`."""
        round = checks.integer("round", round, low=0)
        here = self._presence(available, unavailable)
        d = self._num_candidates(round)
        if d >= here.count:
            return here.clients
        clients, arrival = self._arrivals(round, here, d)
        return clients[np.argsort(arrival)]

    def _initial_state(self) -> dict[str, Array]:
        for _, d in self._settings.num_candidates.steps:
            if d:
                checks.integer(
                    "num_candidates", d, low=self._clients_per_round, why="the clients per round; 0: default"
                )
        return {}

    def _choose(
        self,
        round: int,
        here: Presence,
        k: int,
        candidates: npt.ArrayLike | None,
        reports: Mapping[str, Floats] | None,
    ) -> tuple[Ints, Floats]:
        asked, losses = self._answers("loss", candidates, reports, here)
        return self._winners(round, here, k, asked, losses)

    def _winners(
        self, round: int, here: Presence, k: int, asked: Ints, losses: Floats
    ) -> tuple[Ints, Floats]:
        """Return the k of `asked` with the largest losses, and their p_k among those here."""
        winners = asked[largest(losses, k, generator(self._seed, round, "ties"))]
        return winners, self.client_sizes[winners] / here.total_size

    def _num_candidates(self, round: int) -> int:
        """Return d in a round."""
        return int(self._settings.num_candidates.at(round)) or self._default_candidates()

    def _default_candidates(self) -> int:
        return 2 * self._clients_per_round

    def _arrivals(self, round: int, here: Presence, d: int) -> tuple[Ints, Floats]:
        """Draw d < n of who is here; see `first_arrivals`."""
        rng = generator(self._seed, round, "candidates")
        drawn, arrival = first_arrivals(here.of(self.client_sizes), d, rng)
        return here.at(drawn), arrival
