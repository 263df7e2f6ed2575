"""flics-private, the server's side: FLICS for clients that keep their groups private.

Ribero, Vikalo, de Veciana, "Federated Learning at Scale: Addressing Client Intermittency and Resource
Constraints", Algorithm 1 and Remark 4. The clients' side is `invitation.GroupMember`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Array, Bools, Floats, Ints
from ...numerics.budget_allocation import water_fill
from ...numerics.randomised_response import Counts, coin_privacy, estimate_counts
from .. import checks
from ..base import Selector
from ..context import RoundContext
from ..invitation import Invitation
from ..records import Feedback, Selection
from ..settings import setting
from .groups import GroupSettings


@dataclass(frozen=True)
class FLICSPrivateSettings(GroupSettings):
    """Settings of private FLICS. `group_shares` must be given; its length is the number of groups."""

    epsilon: float = setting(
        2.0, low=1e-3, high=50.0, doc="ε of the groups that clients report; the clients must have the same ε"
    )
    coin_epsilon: float | None = setting(
        None,
        low=1e-3,
        high=50.0,
        doc="ε of a client's yes or no in a round: limits how far rates differ (default: no limit)",
    )


@dataclass(frozen=True, eq=False)
class AcceptedSelection(Selection):
    """The clients that accepted the invitation, and the server's estimate of their groups."""

    answers: Ints  # (S,) the groups that these clients reported, by randomised response
    expected: Floats  # (G,) the estimated number of clients of each group that accepted
    variances: Floats  # (G,) the variances of these estimates


class Plan(NamedTuple):
    """The rates of an invitation, and how many clients are expected to accept."""

    versions: Ints  # (n,) which version of the rates each candidate is sent
    rates: Floats  # (V, G) the versions of r/a
    crowds: Floats  # (V,) how many clients are expected to accept each version


class FLICSPrivateSelector(Selector):
    """FLICS in which the server does not learn any client's group.

    Before the server sends the model, a round has two exchanges of messages: the poll and the `invitation`::

        1. each available client reports its group by randomised response (ε);  â = the estimated counts
           (in the paper, Remark 5(ii), a client reports only with a small probability)
        2. the server computes r as in FLICS with a = â, and sends r/a and p/ŝ to the clients that reported;
           each of them accepts with the probability in r/a for its group, and answers yes or no
        3. clients that answered yes train and multiply their own update by p/ŝ;  Δ = the sum of the replies

    Because clients scale their own updates, ``Selection.weights`` are 1, and `finalize` does not change them.
    `probabilities` is uniform. ``Selection.probabilities`` holds the expected share of clients that answer
    yes, and ``Selection.importance`` its inverse. Both are correct only on average over clients.

    **Counting participants.** The server computes both r/a and ŝ from the reports. If the same reports gave
    both, ŝ would be biased: groups that are counted too low would be invited too often, and the server would
    not notice. Therefore the candidates are split at random into two halves, and the rates of each half are
    computed from the reports of the other half. Each half then has two unbiased estimates of the number of
    participants of group j::

        rate_j times â_j of the half's n candidates       variance rate_j² n c    (c: see `estimate_counts`)
        â_j of the S candidates that answered yes         variance S c

    The server averages the two estimates, weighted by the inverses of their variances, and subtracts the â_j
    of selected clients that fail later. p/ŝ is computed before clients answer the invitation. So in the ŝ of
    a round, the first estimate alone stands for the participants of this round. (Line 7 of the paper's
    algorithm uses their actual number.) ŝ is the mean over all rounds with an invitation, without the paper's
    β, and at least its standard error. If clients randomise their reports anew in each round, p/ŝ becomes
    exact in the long run. With permanent reports (`GroupMember.permanent`), a relative error of about
    √(c N)/N_j remains for a group of N_j among N clients.

    The cost was measured with K = 20 and 10^4 clients in 10 groups; half of the clients were available. The
    table shows the variance of a group's weight in Δ, divided by its variance if the groups are known::

        ε                                                     4     2     1    .5
        sizes of groups differ by a factor of up to thirty   1.0   1.4   3.3  7.2
        equal sizes, groups absent up to 70 % of the time    1.0   1.05  1.4  1.8

    In r/a, â_j is replaced by its standard error if that is larger. So clients of rare groups are invited too
    rarely, which ŝ corrects. If groups are often absent, fewer than K clients take part, because part of K
    goes to groups that only seem to be available.

    **Privacy.** ε limits what a report reveals about the group, and `coin_epsilon` limits what a yes or no
    reveals in one round. `coin_epsilon` increases the variance and causes no bias. Without it, an answer has
    ε = ln 100 = 4.6 if r_j/a_j of two groups differ by a factor of a hundred. The privacy losses of reports
    and answers add up, also over rounds. The update itself reveals more than both, unless secure aggregation
    sums the updates.
    """

    name = "flics-private"
    summary = "as flics, without knowing their groups"
    unbiased = "long-run"
    fixed_size = False
    data_independent = True
    clients_decide = True
    polls_for = frozenset({"group"})
    settings_type = FLICSPrivateSettings
    _settings: FLICSPrivateSettings
    state_axes = Selector.state_axes | {
        "participants": ("groups",),  # the estimate of t ŝ(t)
        "variances": ("groups",),  # the variance of this estimate
        "rounds": (),  # t
    }

    @property
    def poll_settings(self) -> Mapping[str, int | float]:
        return {"num-groups": self._shares.size, "epsilon": self._settings.epsilon}

    def _distribution(self) -> Floats:
        return self._uniform()

    def _invite(self, context: RoundContext) -> Invitation:
        """Return r/a and p/ŝ for the candidates that reported a group."""
        clients, answers, _ = self._answers(context)
        plan = self._plan(context, answers)
        counted, variances = self._array("participants").copy(), self._array("variances").copy()
        for version, rates in enumerate(plan.rates):
            half = self._count(answers[plan.versions == version])
            counted += rates * half.values
            variances += rates**2 * half.variances
        counted = np.maximum(counted, np.sqrt(variances))
        scales = np.divide(
            self._shares * (self._array("rounds") + 1), counted, out=np.zeros(counted.size), where=counted > 0
        )
        return Invitation(clients, plan.rates, plan.versions, scales)

    def _select(self, context: RoundContext) -> Selection:
        """Select the candidates that accepted, see `Selector.invitation`."""
        clients, answers, reported = self._answers(context)
        accepts = context.reports["accepts"][reported]
        known = np.isfinite(accepts) & context.available.mask[clients]
        yes = known & (accepts == 1)
        if (known & (accepts != 0) & ~yes).any():
            raise ValueError("reports['accepts'] must hold 1 (yes), 0 (no) or NaN (no answer)")
        plan = self._plan(context, answers)
        num_groups = self._shares.size
        expected, variances = np.zeros(num_groups), np.zeros(num_groups)
        for version, rates in enumerate(plan.rates):
            half = known & (plan.versions == version)
            everybody, willing = self._count(answers[half]), self._count(answers[half & yes])
            spread = rates**2 * half.sum()
            # The inverse-variance weight of the estimate from the clients that answered yes.
            share = spread / np.maximum(spread + plan.crowds[version], 1e-300)
            expected += share * willing.values + (1 - share) * rates * everybody.values
            variances += share**2 * willing.variances + ((1 - share) * rates) ** 2 * everybody.variances
        chosen = clients[yes]
        chance = min(1.0, plan.crowds.sum() / max(1, clients.size))
        ones = np.ones(chosen.size)
        return AcceptedSelection(
            clients=chosen,
            counts=ones.astype(np.int64),
            probabilities=ones * chance,
            importance=ones / max(chance, 1e-300),
            weights=ones,
            answers=answers[yes],
            expected=expected,
            variances=variances,
        )

    def finalize(self, selection: Selection, responded: npt.ArrayLike) -> Floats:
        """Return 1 for the clients that responded, which scale their own updates, and 0 for the others."""
        return checks.bools("responded", responded, selection.clients.size).astype(np.float64)

    def _initial_state(self) -> dict[str, Array]:
        shares = np.array(self._settings.group_shares.numbers)
        if not shares.size:
            raise ValueError(f"group_shares = (): must be given, {self.name} does not know the groups' data")
        self._shares: Floats = shares / shares.sum()
        zeros = np.zeros(shares.size)
        return {"participants": zeros, "variances": zeros.copy(), "rounds": np.array(0)}

    def _check_state(self, state: Mapping[str, Array]) -> None:
        super()._check_state(state)
        if state["participants"].size != self._shares.size:
            raise ValueError(
                f"state['participants'] has {state['participants'].size} groups: must be {self._shares.size}"
            )

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        if not isinstance(selection, AcceptedSelection):
            if selection.clients.size:
                raise TypeError(f"selection = {selection}: must be what {self.name} selected")
            return {}  # no client was available
        if not selection.variances.any() and not selection.expected.any():
            return {}  # no client was invited
        failed = self._count(selection.answers[~feedback.responded])
        return {
            "participants": self._array("participants") + selection.expected - failed.values,
            "variances": self._array("variances") + selection.variances + failed.variances,
            "rounds": np.array(self._array("rounds") + 1),
        }

    def _answers(self, context: RoundContext) -> tuple[Ints, Ints, Bools]:
        """Return the registered candidates that reported a group, their reports, and (n,) their mask."""
        answers = context.reports["group"]
        reported = np.isfinite(answers) & self._registered[context.candidates]
        last = self._shares.size - 1
        wrong = reported & ~((answers >= 0) & (answers <= last) & (answers == np.floor(answers)))
        if wrong.any():
            raise ValueError(f"reports['group'] holds {answers[wrong][0]}: must be a group from 0 to {last}")
        return context.candidates[reported], answers[reported].astype(np.int64), reported

    def _plan(self, context: RoundContext, answers: Ints) -> Plan:
        n, k, num_groups = answers.size, context.k, self._shares.size
        if n <= k or k == 0:
            everybody = float(k > 0)
            rates = np.full((1, num_groups), everybody)
            return Plan(np.zeros(n, dtype=np.int64), rates, np.array([n * everybody]))
        rng = context.rng("halves")
        versions = rng.integers(0, 2, n)
        versions[rng.choice(n, 2, replace=False)] = [0, 1]  # so neither half is empty
        targets, counts = self._shares, np.maximum(self._array("participants"), 0)
        rates, crowds = np.empty((2, num_groups)), np.empty(2)
        for version in (0, 1):
            others = answers[versions != version]
            estimate, variances = self._count(others)
            present = np.maximum(estimate, 0) * (n / others.size)
            a = np.maximum(estimate, np.sqrt(variances)) * (n / others.size)
            r = water_fill(targets, counts, k, present)
            rates[version] = np.divide(r, a, out=np.zeros(num_groups), where=a > 0)
            if self._settings.coin_epsilon is not None:
                rates[version] = alike(rates[version], present, k, self._settings.coin_epsilon)
            crowds[version] = rates[version] @ present * (1 - others.size / n)
        return Plan(versions, np.minimum(rates, 1.0), crowds)

    def _count(self, answers: Ints) -> Counts:
        return estimate_counts(answers, self._shares.size, self._settings.epsilon)


def alike(rates: npt.ArrayLike, available: npt.ArrayLike, budget: float, epsilon: float) -> Floats:
    """Return the rates (G,), clipped to a range in which a yes or no reveals at most ε about a group.

    The range is chosen so that the expected number of clients that answer yes does not change, or is the
    budget if the budget is less. If the rates already reveal at most ε, they are returned unchanged.

    `rates` (G,) are the probabilities with which the clients of each group answer yes, and `available` (G,)
    is a_j >= 0, the number of available clients. `budget` is the largest allowed expected number of clients
    that answer yes, the sum of a_j times the rate. `epsilon` is ε > 0.
    """
    q, a = np.asarray(rates, dtype=np.float64), np.asarray(available, dtype=np.float64)
    if coin_privacy(q) <= epsilon:
        return q
    total = min(budget, float(a @ q))

    def clipped(least: float) -> Floats:
        clipped: Floats = np.clip(q, least, min(least * np.exp(epsilon), 1 - (1 - least) * np.exp(-epsilon)))
        return clipped

    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if a @ clipped(middle) <= total else (low, middle)
    return clipped(low)
