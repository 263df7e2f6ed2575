"""Power-of-Choice: of d candidates, the K clients with the largest losses are selected.

Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (AISTATS 2022): pow-d
and cpow-d in section 4 and Algorithm 1, rpow-d in Algorithm 2, adapow-d in appendix F. The paper's K is M
here, the number of clients. The paper's m is K here, the clients per round.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Array, Floats, Ints
from ...numerics.sampling import first_arrivals, largest
from .. import checks
from ..base import Selector
from ..context import RoundContext
from ..settings import Schedule, setting
from .plain_mean import LastLossSelector, MeanSettings, PlainMeanSelector


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


@dataclass(frozen=True)
class CPowDSettings(PowDSettings):
    """Settings of cpow-d. The default batch size is the paper's for FMNIST."""

    batch_size: int = setting(64, low=1, doc="b, the samples that a candidate evaluates, drawn at random")


class CPowDSelector(PowDSelector):
    """Selects as `pow-d`, by the mean loss of b random samples of a client: only `poll_settings` differ."""

    name = "cpow-d"
    summary = "with the largest estimated losses"
    settings_type = CPowDSettings
    _settings: CPowDSettings

    @property
    def poll_settings(self) -> Mapping[str, int | float]:
        return {"batch-size": self._settings.batch_size}


@dataclass(frozen=True)
class AdaPowDSettings(PowDSettings):
    """Settings of adapow-d."""

    halve_every: int = setting(
        0,
        low=0,
        doc="d is halved in each round that is a multiple of this number (5000 in the paper's quadratic); "
        "0: never",
    )
    drop_at: int = setting(
        0,
        low=0,
        doc="from this round on d = clients_per_round; 0: half of num_rounds (the paper's Synthetic(1,1)), "
        "or never if halve_every or a schedule of num_candidates is given",
    )


class AdaPowDSelector(PowDSelector):
    """Halves the number of candidates d every n rounds, sets d = K from a given round on, or does both.

    In round t, d(t) = max(K, d_0 / 2^(t // n)), where n is `halve_every`, and d_0 is `num_candidates`
    (default: all registered clients). From round `drop_at` on, d = K. At first the model converges as fast as
    with `pow-d`; later it reaches the lower final error of d = K.

    The round in which d drops to K is part of the state, so a resume with another `num_rounds` does not
    change it.
    """

    name = "adapow-d"
    summary = "with the largest losses; polls fewer later"
    settings_type = AdaPowDSettings
    _settings: AdaPowDSettings
    state_axes = Selector.state_axes | {"drop_at": ()}

    def _initial_state(self) -> dict[str, Array]:
        drop_at, given = self._settings.drop_at, self._settings
        if not (drop_at or given.halve_every or len(given.num_candidates.steps) > 1):
            if self._num_rounds is None:
                raise ValueError(
                    f"num_rounds = None: must be given with {self.name} (d drops at half of the rounds), or "
                    "else halve_every, drop_at or a schedule of num_candidates"
                )
            drop_at = max(1, self._num_rounds // 2)
        return super()._initial_state() | {"drop_at": np.array(drop_at)}

    def _num_candidates(self, round: int) -> int:
        drop_at = int(self._array("drop_at"))
        if drop_at and round >= drop_at:
            return self._clients_per_round
        d, every = super()._num_candidates(round), self._settings.halve_every
        return max(self._clients_per_round, d >> (round // every) if every else d)

    def _default_candidates(self) -> int:
        return max(self._clients_per_round, self._num_registered)


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
