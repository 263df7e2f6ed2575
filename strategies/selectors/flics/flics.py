"""FLICS: over time, each group's participation is as close to its share as availability allows.

Ribero, Vikalo, de Veciana, "Federated Learning at Scale: Addressing Client Intermittency and Resource
Constraints", Algorithm 1 with problem Var (eqs. 5 and 6).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Array, Bools, Floats, Ints
from ...numerics.budget_allocation import round_to_total, water_fill
from ...numerics.convex_allocation import fill_with_budgets, load_cvxpy
from .. import checks
from ..base import Selector
from ..context import RoundContext
from ..records import Feedback, Selection
from ..settings import PerClient, setting
from .groups import ByGroup, GroupSelector, GroupSettings, group_numbers


@dataclass(frozen=True)
class FLICSSettings(GroupSettings):
    """Settings of FLICS.

    `cost_budget`, and `energy_budgets` given as one number, need cvxpy (install the extra ``optim``).
    """

    min_shares: ByGroup = group_numbers(
        low=0.0, high=1.0, doc="least share of each group among all participants so far (default: 0)"
    )
    beta: float = setting(
        0.0,
        low=0.0,
        high=1e6,
        doc="β, the number of participants that is added to each group's count (small in the paper)",
    )
    design: str = setting(
        "coins",
        choices=("coins", "numbers"),
        doc="coins: each client is selected independently; numbers: the number of clients of each group is "
        "drawn first, which is the expected number rounded up or down at random (Remark 4)",
    )
    lone_groups: str = setting(
        "clients",
        choices=("clients", "groups"),
        doc="clients: without `group_shares`, a group of one client has its share only for the rounds in "
        "which the client is available; groups: missed rounds are made up for, as in the paper",
    )
    cost_budget: float | None = setting(
        None, low=0.0, doc="limit of the expected total of the selected clients' `costs` in a round"
    )
    energy_budgets: ByGroup | float | None = group_numbers(
        low=0.0,
        high=1e100,
        or_one=True,
        doc="energy (`energies`) that may be spent per round (unused energy carries over): one number for "
        "all groups together, or one for each group",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(self.min_shares.numbers) > 1 + 1e-9:
            raise ValueError(f"min_shares = {self.min_shares.numbers}: must sum to 1 or less")
        if self.only_named_groups:
            where = "group_shares" if self.group_shares else "energy_budgets"
            known = ", ".join(map(repr, self.group_names))
            for name in self.min_shares.names:
                if name not in self.group_names:
                    raise ValueError(f"min_shares names {name!r}: must be one of {known}, as in {where}")
            each = self.energies_by_group
            if each and set(each.names) != set(self.group_names):
                raise ValueError(
                    f"energy_budgets names {', '.join(map(repr, each.names))}: must name {known}, as {where}"
                )

    @property
    def needs_per_client(self) -> frozenset[str]:
        given = {"costs": self.cost_budget, "energies": self.energy_budgets}
        return frozenset(name for name, budget in given.items() if budget is not None)

    @property
    def needs_solver(self) -> bool:
        """Whether a budget may need the solver cvxpy; K and energy budgets of single groups do not."""
        return self.cost_budget is not None or isinstance(self.energy_budgets, float)

    @property
    def energies_by_group(self) -> ByGroup:
        """The energy budgets of single groups; empty if there are none."""
        return self.energy_budgets if isinstance(self.energy_budgets, ByGroup) else ByGroup()

    @property
    def group_names(self) -> tuple[str, ...]:
        return self.group_shares.names or self.energies_by_group.names or self.min_shares.names

    @property
    def only_named_groups(self) -> bool:
        # `min_shares` may leave out groups: their least share is 0.
        return bool(self.group_shares or self.energies_by_group)


@dataclass(frozen=True, eq=False)
class GroupSelection(Selection):
    """A selection of FLICS."""

    present: Bools  # (G,) which groups have available clients


class FLICSSelector(GroupSelector):
    """Chooses the mean number of participants of each group so that the aggregate has the least variance.

    A participant is a selected client that responds. a_j is the number of available clients of group j, K the
    budget, rounded down (in the paper it may be fractional), p_j the target share of group j, ŝ_j the mean
    number of participants of group j per round, g(m) the group of client m, and S the set of selected
    clients. In round t::

        r    = argmin sum_j p_j²/ŝ_j(t),  ŝ(t) = ((t - 1) ŝ(t - 1) + r)/t,  0 <= r <= a,  sum r <= K    (5, 6)
        each available client of group j is selected with probability r_j/a_j      (so |S| may exceed K)
        ŝ(t) = ((t - 1) ŝ(t - 1) + r̂)/t,  where r̂_j is the number of participants of group j in this round
        Δ    = sum_{m in S} p_g(m)/ŝ_g(m)(t) u_m

    With ``design="numbers"`` the server rounds r_j up or down at random, and selects this number of clients
    of group j uniformly (Remark 4). The probability of each client stays r_j/a_j, and |S| is at most K.

    Δ is unbiased over time, not in each round: the mean weight of a group over the rounds tends to p_j. Even
    after 2000 rounds, the mean weight of a group that is often absent may be off by a quarter. Three errors
    of the paper's Algorithm 1 are corrected: line 7 divides by t - 1, which is 0 at t = 1; lines 12 and 14
    apply the same scaling twice; line 14 also divides by |S|.

    The first r̂_j participants of a group, in round t, make up for all missed rounds at once: each has the
    weight p_j t/r̂_j, so the step of this round may be large. For a group that joins late, t counts the
    rounds since it joined. Rounds without participants are not counted, since they leave the model as it is.
    The paper counts them in t: all weights of the later rounds would be larger by one common factor. The
    setting `beta` reduces the weight p_j t/r̂_j to p_j t/(β + r̂_j), since ``ŝ(t) = (β + r̂(1) + ... +
    r̂(t))/t``, and causes a bias that goes to 0 as 1/t. (The paper's ŝ(0) = β has the factor t - 1 = 0 in eq.
    6, and so no effect.)

    **Groups of one client.** Without `group_shares`, p_j is the group's share of the data. The paper makes up
    for the missed rounds of every group. A client that names a group of its own and stays away for most of a
    run would then get far more than its share of the weight, and all of it in a few steps. So here, p_j of a
    group with one client is multiplied by the share of the rounds in which the client was available (this
    round included), and then p is normalised again: the client counts as it does in selectors without
    groups. For clients that are always available this changes nothing. With ``lone_groups="groups"`` or
    declared `group_shares`, such groups are groups as in the paper. Two clients that agree on a name escape
    this rule: declare the shares if strangers can join.

    Cohort adds three optional constraints. `min_shares` is the least share of each group among all
    participants so far: r_j gets a lower bound with which the group catches up as far as its clients are
    available. `cost_budget` limits the expected total `costs` of the selected clients in a round.
    `energy_budgets` limits the `energies` spent since the first round, by all clients together or by each
    group; unused energy may be spent in later rounds. If `cost_budget` or the energy budget of all clients is
    a tighter limit than K, r is computed with cvxpy; otherwise in closed form. If the budgets do not allow
    all minimum shares, one factor reduces all lower bounds.

    Examples
    --------
    There are two groups of four clients, and group 1 has a hundredth of the weight. By the list ``each``, a
    client of group 1 costs five times as much, or uses five times as much energy, as a client of group 0.

    >>> def flics(**settings):
    ...     return FLICSSelector(8, groups=[0] * 4 + [1] * 4, clients_per_round=4, **settings)
    >>> flics(group_shares="99/1").rates(1)
    array([3.96, 0.04])
    >>> flics(group_shares="99/1", min_shares="0/0.25").rates(1)
    array([3., 1.])
    >>> each = [1, 1, 1, 1, 5, 5, 5, 5]
    >>> flics(costs=each, cost_budget=10).rates(1).round(3)
    array([2.5, 1.5])
    >>> flics(energies=each, energy_budgets="2/5").rates(1)  # a budget for each group
    array([2., 1.])
    >>> flics(energies=each, energy_budgets="2/5").rates(3)  # with the energy left over in rounds 1 and 2
    array([2., 2.])
    >>> flics(energies=each, energy_budgets=6).rates(1).round(3)  # one for all
    array([1.854, 0.829])
    >>> flics(costs=[5] * 4 + [1] * 4, cost_budget=10, energies=each, energy_budgets=10).rates(1).round(3)
    array([1.667, 1.667])
    """

    name = "flics"
    summary = "so that groups get their shares"
    unbiased = "long-run"
    fixed_size = False
    data_independent = True
    settings_type = FLICSSettings
    _settings: FLICSSettings
    per_client = GroupSelector.per_client | {
        "costs": PerClient(1.0, 0.0, 1e100, False, "the client's cost of a round"),
        "energies": PerClient(1.0, 0.0, 1e100, False, "the client's energy for a round"),
    }
    state_axes = Selector.state_axes | {
        "participants": ("groups",),  # the number of participants so far: t ŝ(t) without β
        "rounds": ("groups",),  # t
        "present": ("groups",),  # the rounds of t in which a client of the group was available
        "energy_spent": ("groups",),
    }

    def _initial_state(self) -> dict[str, Array]:
        self._check_groups(self._array("groups"))
        if self._settings.needs_solver:
            load_cvxpy()  # fails now if cvxpy is missing, not in the first round that needs it
        num_groups = self._num_groups()
        return {
            "participants": np.zeros(num_groups, dtype=np.int64),
            "rounds": np.zeros(num_groups, dtype=np.int64),
            "present": np.zeros(num_groups, dtype=np.int64),
            "energy_spent": np.zeros(num_groups),
        }

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        if "present" not in state and "rounds" in state:  # checkpoints of 2026-11-28 and before
            state = {**state, "present": state["rounds"]}
        super().load_state_dict(state)

    def rates(
        self,
        round: int,
        *,
        available: npt.ArrayLike | None = None,
        unavailable: npt.ArrayLike | None = None,
        budget: float | None = None,
    ) -> Floats:
        """Return r (G,), the expected number of selected clients of each group; arguments as of `select`."""
        context = self._context(round, available, unavailable, budget)
        return self._rates(context, self._counted(self._available_groups(context)))

    def finalize(self, selection: Selection, responded: npt.ArrayLike) -> Floats:
        """Return p_j/ŝ_j for those that responded, else 0: corrects for groups that fail more often."""
        clients = checks.indexes("selection.clients", selection.clients, self.num_clients)
        answered = checks.bools("responded", responded, clients.size)
        weights = np.zeros(clients.size)
        weights[answered] = self._weights(clients[answered])
        return weights

    def _select(self, context: RoundContext) -> Selection:
        made = super()._select(context)
        present = self._counted(self._available_groups(context)) > 0
        return GroupSelection(
            made.clients, made.counts, made.probabilities, made.importance, made.weights, present
        )

    def _sample(self, context: RoundContext) -> tuple[Floats, Ints]:
        groups = self._available_groups(context)
        a = self._counted(groups)
        inclusion = self._rates(context, a) / np.maximum(a, 1)
        rng = context.rng("select")
        if self._settings.design == "numbers":
            numbers = np.minimum(_round_at_random(inclusion * a, rng), a)
            return inclusion, self._draw(context, groups, numbers, rng)
        coins = rng.random(groups.size)
        return inclusion, context.available.at(np.flatnonzero(coins < inclusion[groups]))

    def _weights(self, clients: Ints) -> Floats:
        groups = self._array("groups")[clients]
        shares, _ = self._shares()
        participants = self._settings.beta + self._per_group("participants") + self._counted(groups)
        rounds = self._per_group("rounds") + 1
        weights: Floats = shares[groups] * rounds[groups] / participants[groups]
        return weights

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        changes: dict[str, Array] = {}
        chosen, groups = selection.clients, self._array("groups")
        _, members = self._shares()
        if self._settings.energy_budgets is not None:  # clients that failed have spent energy, too
            spent = np.bincount(groups[chosen], self._array("energies")[chosen], members.size)
            changes["energy_spent"] = self._per_group("energy_spent") + spent
        took_part = chosen[feedback.responded & self._registered[chosen]]
        if took_part.size:
            changes["participants"] = self._per_group("participants") + self._counted(groups[took_part])
            here = selection.present if isinstance(selection, GroupSelection) else members > 0
            here = np.pad(here, (0, members.size - here.size))  # groups that joined since the selection
            changes["rounds"] = self._per_group("rounds") + (members > 0)
            changes["present"] = self._per_group("present") + (here & (members > 0))
        return {
            key: self._per_group(key) for key in ("participants", "rounds", "present", "energy_spent")
        } | changes

    def _shares(self) -> tuple[Floats, Ints]:
        keys = ("groups", "registered", "client_sizes", "rounds", "present")
        return self._cached("present_shares", keys, self._present_shares)

    def _present_shares(self) -> tuple[Floats, Ints]:
        """Return the result of `_shares`, with the shares of lone groups reduced by their absences."""
        shares, members = super()._shares()
        lone = members == 1
        missed = self._per_group("rounds") - self._per_group("present")
        if self._settings.group_shares or self._settings.lone_groups == "groups" or not missed[lone].any():
            return shares, members
        reduced = np.where(lone, shares * (1 - missed / (self._per_group("rounds") + 1)), shares)
        return reduced / (reduced.sum() or 1.0), members

    def _per_group(self, key: str) -> Any:
        """Return a copy (G,) of an array of the state, with 0 for groups that are newer than the array."""
        array = self._array(key)
        return np.pad(array, (0, self._num_groups() - array.size))

    def _rates(self, context: RoundContext, a: Ints) -> Floats:
        """Return r (G,), see `rates`; `a` (G,) holds the number of available clients of each group."""
        given, k = self._settings, context.k
        n = self._per_group("participants").astype(np.float64)
        # r minimises the sum of p_j² t_j/(n_j + r_j), where n_j participants took part so far, and t_j counts
        # the rounds so far and this one. t_j is the same for all groups except groups that joined late.
        targets = self._shares()[0] * np.sqrt(self._per_group("rounds") + 1)
        upper: Floats = a.astype(np.float64)
        usage: list[Floats] = [np.ones(a.size)]
        budgets = [float(k)]
        if given.cost_budget is not None:
            usage.append(self._mean("costs", context, a))
            budgets.append(given.cost_budget)
        if given.energy_budgets is not None:
            energies, rounds = self._mean("energies", context, a), max(1, context.round)
            spent = self._per_group("energy_spent")
            if isinstance(given.energy_budgets, float):
                usage.append(energies)
                budgets.append(max(0.0, given.energy_budgets * rounds - spent.sum()))
            else:
                allowed = given.energy_budgets.aligned(given.group_names, 0.0) * rounds
                left = np.maximum(0.0, allowed[: a.size] - spent)
                np.divide(left, energies, out=upper, where=energies * upper > left)
        rows, limits = np.array(usage), np.array(budgets)

        shares = np.zeros(a.size)
        least = given.min_shares.aligned(given.group_names, 0.0)[: a.size]
        shares[: least.size] = least
        lower = np.clip(shares * (n.sum() + min(k, upper.sum())) - n, 0, upper)
        taken = rows @ lower
        lower *= np.divide(limits, taken, out=np.ones(limits.size), where=taken > limits).min()

        rates = water_fill(targets, n + given.beta, k, upper, lower)
        if (rows @ rates > limits * (1 + 1e-9)).any():
            try:
                rates = fill_with_budgets(targets, n + given.beta, upper, lower, rows, limits)
            except RuntimeError:  # The solver failed: costs differ too much. Reduce r until all budgets hold.
                more = rates - lower
                taken, left = rows @ more, np.maximum(0.0, limits - rows @ lower)
                rates = (
                    lower + more * np.divide(left, taken, out=np.ones(left.size), where=taken > left).min()
                )
        return rates

    def _mean(self, name: str, context: RoundContext, a: Ints) -> Floats:
        """Return (G,) the mean of a setting over each group's available clients; 0 for a group without."""
        values: Floats = context.available.of(self._array(name))
        return np.bincount(self._available_groups(context), values, a.size) / np.maximum(a, 1)


def _round_at_random(rates: Floats, rng: np.random.Generator) -> Ints:
    """Return the rates (G,), rounded up or down at random without bias; their sum changes by less than 1."""
    total = float(rates.sum())
    rest = np.ceil(total - 1e-9) - total  # budgets of costs and energies may leave a fraction of a client
    return round_to_total(np.append(rates, max(0.0, rest)), rng)[:-1]
