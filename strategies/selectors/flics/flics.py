"""FLICS: groups of clients take part as evenly, over time, as their availability allows.

Ribero, Vikalo, de Veciana, "Federated Learning at Scale: Addressing Client Intermittency and Resource
Constraints", Algorithm 1 with problem Var (eqs. 5 and 6).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Array, Floats, Ints
from ...numerics.convex import fill_with_budgets, load_cvxpy
from ...numerics.water_filling import water_fill
from .. import checks
from ..base import Selector
from ..context import RoundContext
from ..records import Feedback, Selection
from ..settings import PerClient, setting
from .groups import GroupSelector, GroupSettings, group_numbers


@dataclass(frozen=True)
class FLICSSettings(GroupSettings):
    """Settings of FLICS; budgets of cost and energy need the extra ``optim``."""

    min_shares: tuple[float, ...] = group_numbers(
        low=0.0,
        high=1.0,
        doc="least share of each group among all participants so far (default: 0)",
    )
    cost_budget: float | None = setting(
        None, low=0.0, doc="limit of the mean total of the participants' `costs` in a round"
    )
    energy_budgets: tuple[float, ...] = group_numbers(
        low=0.0,
        high=1e100,
        doc="energy (`energies`) that may be spent per round, unused energy carries over: one number for all "
        "groups together, or one for each group",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(self.min_shares) > 1 + 1e-9:
            raise ValueError(f"min_shares = {self.min_shares}: must sum to 1 or less")


class FLICSSelector(GroupSelector):
    """Sets the number of participants of each group so that the variance of the estimate is least.

    With a_j available clients of group j, K the budget, and ŝ_j the mean number of participants per round::

        r    = argmin sum_j p_j²/ŝ_j(t),  ŝ(t) = ((t - 1) ŝ(t - 1) + r)/t,  0 <= r <= a,  sum r <= K    (5, 6)
        each available client of group j takes part with probability r_j/a_j       (so S may exceed K)
        ŝ(t) = ((t - 1) ŝ(t - 1) + r̂)/t,  r̂_j the number that took part
        Δ    = sum_{m in S} p_g(m)/ŝ_g(m)(t) u_m

    Δ is unbiased over time, not in each round: over its availability the mean weight of a group is p_j,
    within 2 % after some 60 rounds. Algorithm 1 as printed divides by t - 1 in its line 7, which is undefined
    at t = 1, scales twice (lines 12 and 14), and divides by the size of S: its step is too small by orders of
    magnitude, and where K follows the availability its direction is wrong, too.

    A group that never took part has no weight yet and is missing in Δ. A group that takes part for the first
    time after t rounds is made up for at once: its first weight is p_j t/r̂_j, which may be a large step. A
    group that joins late counts its rounds t from then. A round without participants is not counted.

    Further constraints are optional. `min_shares` lets groups catch up, as far as they are available, to a
    share of all participants; it is a lower bound of r_j and keeps the closed form. `cost_budget` limits the
    mean of the participants' total `costs` in a round. `energy_budgets` limits the `energies` spent up to
    each round, by all together or by group; what is left over, or overspent, carries over, and rounds count
    from 1. Where a budget binds besides K, r is found with cvxpy; minimum shares yield to budgets, all in the
    same proportion. Within a group, clients with high costs have the same probability as others, or the
    estimate would be biased.

    Examples
    --------
    Two groups of four clients; group 1 has a hundredth of the weight, and costs five times as much.

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
    unbiased = "long-run"
    data_independent = True
    settings_type = FLICSSettings
    _settings: FLICSSettings
    per_client = GroupSelector.per_client | {
        "costs": PerClient(1.0, 0.0, 1e100, False, "the cost of its taking part in a round"),
        "energies": PerClient(1.0, 0.0, 1e100, False, "the energy for its taking part in a round"),
    }
    state_axes = Selector.state_axes | {
        "participants": ("groups",),  # t ŝ(t), their number so far
        "rounds": ("groups",),  # t
        "energy_spent": ("groups",),
    }

    def _initial_state(self) -> dict[str, Array]:
        self._check_groups(self._array("groups"))
        if self._settings.cost_budget is not None or len(self._settings.energy_budgets) == 1:
            load_cvxpy()  # fails now if it is missing, not in the first round that needs it
        num_groups = self._num_groups()
        return {
            "participants": np.zeros(num_groups, dtype=np.int64),
            "rounds": np.zeros(num_groups, dtype=np.int64),
            "energy_spent": np.zeros(num_groups),
        }

    def rates(
        self,
        round: int,
        *,
        available: npt.ArrayLike | None = None,
        unavailable: npt.ArrayLike | None = None,
        budget: float | None = None,
    ) -> Floats:
        """Return r (G,), the mean number of participants of each group; the arguments are `select`'s."""
        return self._rates(self._context(round, available, unavailable, budget))

    def finalize(self, selection: Selection, responded: npt.ArrayLike) -> Floats:
        """Return p_j/ŝ_j for the clients that responded, ŝ counting only these, and 0 for the others.

        See `Selector.finalize`. It corrects for groups whose clients fail more often, too.
        """
        clients = checks.indexes("selection.clients", selection.clients, self.num_clients)
        answered = checks.bools("responded", responded, clients.size)
        weights = np.zeros(clients.size)
        weights[answered] = self._weights(clients[answered])
        return weights

    def _sample(self, context: RoundContext) -> tuple[Floats, Ints]:
        clients = context.available.clients
        inclusion = self._rates(context) / np.maximum(self._counted(clients), 1)
        coins = context.rng("select").random(clients.size)
        return inclusion, clients[coins < inclusion[self._array("groups")[clients]]]

    def _weights(self, clients: Ints) -> Floats:
        groups = self._array("groups")[clients]
        shares, _ = self._shares()
        participants = self._per_group("participants") + self._counted(clients)
        rounds = self._per_group("rounds") + 1
        weights: Floats = shares[groups] * rounds[groups] / participants[groups]
        return weights

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        changes: dict[str, Array] = {}
        chosen, groups = selection.clients, self._array("groups")
        _, members = self._shares()
        if self._settings.energy_budgets:  # all selected clients have spent it, also those that failed
            spent = np.bincount(groups[chosen], self._array("energies")[chosen], members.size)
            changes["energy_spent"] = self._per_group("energy_spent") + spent
        took_part = chosen[feedback.responded & self._registered[chosen]]
        if took_part.size:
            changes["participants"] = self._per_group("participants") + self._counted(took_part)
            changes["rounds"] = self._per_group("rounds") + (members > 0)
        return {key: self._per_group(key) for key in ("participants", "rounds", "energy_spent")} | changes

    def _check_groups(self, groups: Ints) -> None:
        super()._check_groups(groups)
        if len(self._settings.energy_budgets) > 1:
            self._check_numbered("energy_budgets", self._settings.energy_budgets, groups)

    def _per_group(self, key: str) -> Any:
        """Return a fresh array (G,) of the state, 0 for groups that joined since it was written."""
        array = self._array(key)
        return np.pad(array, (0, self._num_groups() - array.size))

    def _rates(self, context: RoundContext) -> Floats:
        """Return r (G,), the mean number of participants among the a_j available clients of each group."""
        given, k = self._settings, context.k
        a = self._counted(context.available.clients)
        n = self._per_group("participants").astype(np.float64)
        # In sum p_j² t_j/(n_j + r_j) the t_j differ only for groups that joined late.
        targets = self._shares()[0] * np.sqrt(self._per_group("rounds") + 1)
        upper: Floats = a.astype(np.float64)
        usage: list[Floats] = [np.ones(a.size)]
        budgets = [float(k)]
        if given.cost_budget is not None:
            usage.append(self._mean("costs", context, a))
            budgets.append(given.cost_budget)
        if given.energy_budgets:
            energies = self._mean("energies", context, a)
            spent = self._per_group("energy_spent")
            allowed = np.array(given.energy_budgets) * max(1, context.round)
            if allowed.size == 1:
                usage.append(energies)
                budgets.append(max(0.0, allowed[0] - spent.sum()))
            else:
                left = np.maximum(0.0, allowed[: a.size] - spent)
                np.divide(left, energies, out=upper, where=energies * upper > left)
        rows, limits = np.array(usage), np.array(budgets)

        shares = np.zeros(a.size)
        shares[: len(given.min_shares)] = given.min_shares[: a.size]
        lower = np.clip(shares * (n.sum() + min(k, upper.sum())) - n, 0, upper)
        taken = rows @ lower
        lower *= np.divide(limits, taken, out=np.ones(limits.size), where=taken > limits).min()

        rates = water_fill(targets, n, k, upper, lower)
        if (rows @ rates > limits * (1 + 1e-9)).any():
            rates = fill_with_budgets(targets, n, upper, lower, rows, limits)
        return rates

    def _mean(self, name: str, context: RoundContext, a: Ints) -> Floats:
        """Return (G,) the mean of a setting per client over the available clients of each group."""
        clients = context.available.clients
        values: Floats = self._array(name)[clients]
        return np.bincount(self._array("groups")[clients], values, a.size) / np.maximum(a, 1)
