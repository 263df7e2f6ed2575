"""Replays selectors on the log of a run, and estimates the variance that each of them would have had.

The variance of the aggregate of K draws from q is ``(sum_m a_m / q_m - ||sum_m λ_m g_m||²) / K`` with
``a_m = λ_m² ||g_m||²``. The second term is the same for all distributions q, and the norms do not determine
it. So only the first sum is estimated. If the logged run drew client m with importance W_m, the sum of
``W_m a_m / q_m`` over the drawn clients is an unbiased estimate of this sum, because E[W_m] = 1.

A fixed distribution is a function of the data sizes, so its q is known in each round. A selector that learns
is replayed: in each round it has learned from the earlier rounds of the log. Its q is an approximation,
because it would have drawn other clients and learned from them. Of the selectors that learn, only the one
that drew the log has an exact q.

Let b_m be a prediction of a_m that does not depend on the draws of the round. The sum of ``W_m b_m / q_m``
over the drawn clients, minus the sum of ``b_m / q_m`` over all clients, has mean 0 and resembles the error of
the estimate. Subtracting this difference makes the interval short if norms can be predicted, however seldom
the log drew the clients with the largest terms.

A round is predicted from the earlier rounds. Little is known at first, so the rounds of the first half are
also predicted from the second half. If the draws of the log do not depend on earlier norms, the estimate uses
this second prediction. Otherwise the second prediction may depend on the draws of the round, through later
draws: then the estimate uses the first prediction, and the interval is extended until it contains the
estimate that uses the second prediction.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..designs.inclusion import inclusion
from ..numerics.arrays import Floats
from ..selectors import Selector
from .log import LoggedRound, feedback_of
from .off_policy import Interval, compare
from .predictor import Predictor, extended

BASELINE = "uniform"
SAME = 1e-6
"""The probabilities of a log and of its replay count as the same up to this relative difference."""


class Evidence:
    """What the rounds of a log say about distributions with ``names``, of which one is `BASELINE`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._rounds: list[Floats] = []

    @property
    def num_rounds(self) -> int:
        return len(self._rounds)

    def add(self, round: LoggedRound, distributions: Floats, predictions: Floats) -> None:
        """Add a round: (S, M) distributions and (P, M) predictions b >= 0, the first for the estimate."""
        drawn, importance = round.clients, round.importance
        a = (round.shares[drawn] * round.norms) ** 2
        inverse = np.divide(1.0, distributions, out=np.zeros_like(distributions), where=distributions > 0)
        terms = importance * a * inverse[:, drawn]
        errors = predictions[:, drawn] * importance @ inverse[:, drawn].T - predictions @ inverse.T
        self._rounds.append(np.vstack([terms.sum(axis=1), (terms**2).sum(axis=1), errors]))

    def against(self, name: str, other: str = BASELINE) -> Interval:
        """Estimate the variance with the distribution `name`, divided by the variance with `other`."""
        i, j = self.names.index(name), self.names.index(other)
        x, y = (np.stack([each[:, at] for each in self._rounds], axis=1) for at in (i, j))
        first, *others = (
            compare(x[0], y[0], ours, theirs) for ours, theirs in zip(x[2:], y[2:], strict=True)
        )
        values = [each.value for each in others]
        return Interval(first.value, min([first.low, *values]), max([first.high, *values]))

    def effective_draws(self, name: str) -> float:
        """Return (sum of the terms W a / q)² / (sum of their squares).

        This is roughly the number of draws on which an estimate without predictions would rest.
        """
        at = self.names.index(name)
        terms, squares = (sum(float(each[row, at]) for each in self._rounds) for row in (0, 1))
        return terms**2 / squares if squares else 0.0


class Replay:
    """Selectors that learn from a log. ``same``: those whose probabilities were always those of the log."""

    def __init__(self, selectors: Mapping[str, Selector]) -> None:
        self._selectors = dict(selectors)
        self._k = next(iter(selectors.values())).clients_per_round
        self.same = set(selectors)

    def distributions(self, round: LoggedRound) -> Floats:
        """Return (S, M) the distribution of each selector in this round; clients may have joined."""
        for selector in self._selectors.values():
            extended(selector, round.sizes)
        return np.stack([round.restricted(each.probabilities) for each in self._selectors.values()])

    def matters(self, round: LoggedRound) -> bool:
        """Return whether a norm is known, and more clients were selectable than a selector selects."""
        return round.clients.size > 0 and round.sizes.size - round.absent.size > self._k

    def learn(self, round: LoggedRound, distributions: Floats) -> None:
        """Let the selectors learn from a round, in which they had these distributions (S, M).

        If the logged run selected all selectable clients, and these are more than `clients_per_round`, each
        selector makes draws of its own and learns from them. Otherwise it learns from the draws of the log.
        """
        if not round.clients.size:
            return
        by_itself = round.everyone and self.matters(round)
        if self.matters(round):
            for name, p in zip(self._selectors, distributions, strict=True):
                # Most designs draw distinct clients, whose probabilities in the log are those of inclusion.
                for logged in (p[round.clients], inclusion(p, self._k).of(round.clients)):
                    if np.allclose(logged, round.probabilities, rtol=SAME, atol=0):
                        break
                else:
                    self.same.discard(name)
        selection, feedback = round.observed()
        norms = round.dense_norms()
        for selector in self._selectors.values():
            if by_itself:
                selection = selector.select(round.number, unavailable=round.absent)
                feedback = feedback_of(norms[selection.clients])
            selector.update(round.number, selection, feedback)


def collect(
    rounds: Sequence[LoggedRound],
    selectors: Mapping[str, Selector],
    fixed_log: bool,
    watch: Callable[[LoggedRound, Floats], None] | None = None,
) -> tuple[Evidence, set[str]]:
    """Replay selectors on a log, and collect what the log says about them.

    Return the evidence of the rounds in which clients had to be left out, and the selectors that had the
    probabilities of the log in all these rounds. The arguments are those of `study.study`. `watch` is called
    with each round, and the distributions (S, M) of all selectors in this round.
    """
    evidence, replay = Evidence(list(selectors)), Replay(selectors)
    k = next(iter(selectors.values())).clients_per_round
    half = len(rounds) // 2
    backwards = Predictor.new(rounds[-1].sizes, k)
    for round in reversed(rounds[half:]):
        backwards.learn(round)
    shared = selectors.get("forecast")
    forwards = Predictor.new(rounds[0].sizes, k) if shared is None else Predictor(shared)
    for at, round in enumerate(rounds):
        distributions = replay.distributions(round)
        if replay.matters(round):
            late = forwards.predict(round)
            early = backwards.predict(round) if at < half else late
            evidence.add(round, distributions, np.stack([early] if fixed_log else [late, early]))
        if watch is not None:
            watch(round, distributions)
        if at < half:
            backwards.learn_scale(round)
        if shared is None:
            forwards.learn(round)
        else:
            forwards.learn_scale(round)
        replay.learn(round, distributions)
    return evidence, replay.same
