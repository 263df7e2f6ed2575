"""Buffered rounds: decides which clients are asked, and computes the weights of their updates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Array, Floats, Ints
from ...options import Buffered
from ...selectors import Selection, checks
from ..stages import Opened

TRIES = 20
"""After this many empty selections in a row, the free places stay free until a client replies or loses its
place."""


_COUNTS = 2
"""A client's share of the arrivals that count towards the ends of rounds is at most this many times the mean
share."""


class State(IntEnum):
    """The state of a drawn client."""

    WAITING = 0  # it is drawn, and no place is free for it
    TRAINING = 1  # it holds a place
    OVERDUE = 2  # it has been asked and no longer holds a place, but its update is still used if it comes
    ARRIVED = 3  # its update waits in the buffer for the end of the round
    FAILED = 4  # it has no usable update in this round


@dataclass
class _Drawn:
    """A drawn client, and its sums over the selections since its last update was used."""

    count: int  # how often it was drawn while it was idle
    probability: float  # the probability of its first draw, among the clients that were idle then
    # The sum over the selections, each with a budget n: n W if the selection drew the client with the
    # importance W, and n if the client was busy.
    importance: float
    weight: float  # the sum of its credits, see `Buffer`
    state: State = State.WAITING
    version: int = 0  # the round in which it was asked; 0: not asked yet


class Buffer:
    """Decides which clients buffered rounds ask, and computes the weights of their updates.

    Let λ_m be the target shares of the selectable clients, and Λ their sum over the idle clients.

    **Weights.** When n places are free, the selector draws among the idle clients with a budget of n.

    - A drawn client gets the *credit* ``n Λ v_m``, where v_m is the weight that the selector returns.
    - A busy client gets the credit ``n λ_m`` for the update that it is working on. If the client could be
      drawn, this would be its expected credit.

    A step of S updates has the weights ``c_m = credit_m / (S N/A) · (1 + τ_m)^-power``, where τ_m is the
    staleness, power is `Buffered.staleness_power`, N the number of draws so far (the sum of n), and A how
    many times clients were asked so far. So without the staleness factor, the weights of a step have the sum
    1 on average. If replies are missing or rejected, `Selector.finalize` multiplies the weights of the S'
    usable updates by S/S'. This correction is nearly unbiased if all clients fail equally often. A small bias
    remains: the last reply of a round is always an arrival, so failed clients have collected a little more
    credit than clients that arrived. If a quarter of the trainings fail, the sum of the weights is 0.98 on
    average, and the shares of clients are up to 6 % off. ``Selection.importance`` is computed in the same way
    from the importance in each draw.

    **Why the aggregate is unbiased.** Without credits for busy clients, as in FedBuff, slow clients would
    have too small a share of the aggregate, since they are idle at fewer of the draws. Let u_m be fixed
    updates. A selector that is unbiased in every round has E[Σ v_m u_m] = Σ λ_m/Λ u_m over the idle clients.
    So over all selectable clients, each selection gives E[Σ credit_m u_m] = n Σ λ_m u_m. Since n and the busy
    clients are known before the selection, the sum over the selections of (Σ credit_m u_m - n Σ λ_m u_m) is a
    martingale. By optional stopping, its mean is 0 at the end of every round, even if durations depend on the
    clients and on u. The credits of updates that have not arrived are missing, but their sum does not grow
    with the run. So after N draws, the shares of the clients in the sum of all aggregates are λ, up to
    O(1/N). This does not hold if a client's update depends on how long this one training took: then long
    trainings count more.

    **What is biased.** With a staleness power above 0, the mean weight of a client is λ_m s_m, where s_m is
    the mean of the client's (1 + τ)^-power; s_m is smaller for slow clients. A division by s_m would not
    help: a client's τ hardly varies, so the division would cancel the staleness factor. If updates are
    rejected because of `max_staleness`, their credits are lost. A client that fails more often than others
    loses more credit than others. With ``credits_busy=False``, busy clients get no credit. Selectors that are
    biased on purpose stay biased.

    **Clients that reply at once** would fill most buffers before the updates of other clients arrive, and the
    first buffers before any norm or direction is known. So the first round of a run ends only after C
    arrivals (C is `Buffered.concurrency`), if C is more than K. And in t rounds with R selectable clients, at
    most 2 + 2 K t/R arrivals of a client count towards K. The other arrivals are used in the step of their
    round. With ``mode.count_busy=False``, every K arrivals end a round, as in FedBuff.

    **Each client is used at most once in a round.** While its update waits in the buffer, or after it has
    failed, it counts as busy until the round ends. So memory is bounded by the number of clients that were
    asked.

    ``mode``: the settings. ``size``: K, the number of arrivals that end a round, >= 1. ``credits_busy``
    (default: True): whether each selection also gives credit to busy clients. If so, the selector must be
    unbiased in every round.
    """

    def __init__(self, mode: Buffered, size: int, *, credits_busy: bool = True) -> None:
        self.mode, self.size, self.credits_busy = mode, size, credits_busy
        self.num_draws, self.num_asked = 0.0, 0
        self._drawn: dict[int, _Drawn] = {}  # in the order of the first draw
        self._ended: list[int] = []  # the clients whose training has ended in this round, in order
        self._round, self._draws_in_round = 0, 0
        self._available = 0  # how many clients were selectable at the last draw
        self._counted: set[int] = set()  # the clients in `_ended` whose arrivals count
        self._counts_from: dict[int, float] = {}  # the round from which a client's arrivals count again

    def begin(self, round: int) -> None:
        self._round, self._draws_in_round = round, 0

    # --- asking -----------------------------------------------------------------------------------------

    def fill(
        self, opened: Opened, choose: Callable[[Opened], Selection], shares: Callable[[Ints], Floats]
    ) -> list[int]:
        """Draw clients for the free places, and return the clients to ask now, in the order of asking.

        `begin` must have been called for the round. ``choose`` selects among the idle clients, for an
        `Opened` whose ``budget`` is the number of free places. The ``draw`` of this `Opened` numbers the
        selections of this round, so that no two selections use the same random numbers. ``shares`` returns
        (n,) the shares λ_m of clients (n,) in the data of all selectable clients.
        """
        asked: list[int] = []
        tries = 0
        self._available = opened.num_available
        while (free := self.mode.concurrency - self.num_training) > 0:
            waiting = [client for client, each in self._drawn.items() if each.state is State.WAITING]
            for client in waiting[:free]:
                self._drawn[client].state = State.TRAINING
                self._drawn[client].version = opened.number
                self.num_asked += 1
                asked.append(client)
            if waiting:
                tries = 0
                continue
            idle = self._idle(opened)
            if tries == TRIES or idle is None:
                break
            tries += 1
            part = 1.0  # Λ
            if self.credits_busy:
                busy = np.fromiter(self._drawn, dtype=np.int64, count=len(self._drawn))
                held = shares(busy)
                for each, share in zip(self._drawn.values(), held.tolist(), strict=True):
                    each.importance += free * (share > 0)
                    each.weight += free * share
                part = max(0.0, 1 - float(held.sum()))
            self._credit(choose(replace(idle, budget=float(free), draw=self._draws_in_round)), free, part)
            self._draws_in_round += 1
        return asked

    def _idle(self, opened: Opened) -> Opened | None:
        """Return the round as if only its idle clients were selectable; None if no client is idle."""
        busy = np.sort(np.fromiter(self._drawn, dtype=np.int64, count=len(self._drawn)))
        if opened.available is None:
            away = np.empty(0, dtype=np.int64) if opened.unavailable is None else opened.unavailable
            union = np.union1d(away, busy)
            number = opened.num_available - (union.size - away.size)
            idle = replace(opened, unavailable=union, num_available=number)
        else:
            at = np.searchsorted(opened.available, busy)
            inside = at < opened.available.size
            at = at[inside][opened.available[at[inside]] == busy[inside]]
            number = opened.num_available - at.size
            idle = replace(opened, available=np.delete(opened.available, at), num_available=number)
        return idle if number > 0 else None

    def _credit(self, selection: Selection, draws: int, part: float) -> None:
        """Add the credits of a selection with the budget ``draws``; ``part`` is Λ, the idle share."""
        self.num_draws += draws
        for client, count, probability, importance, weight in zip(
            selection.clients.tolist(),
            selection.counts.tolist(),
            selection.probabilities.tolist(),
            selection.importance.tolist(),
            selection.weights.tolist(),
            strict=True,
        ):
            each = self._drawn.setdefault(client, _Drawn(0, probability, 0.0, 0.0))
            each.count += count
            each.importance += draws * importance
            each.weight += draws * part * weight

    @property
    def _pause(self) -> float:
        """The least number of rounds, on average, from an arrival of a client that counts to the next one."""
        return self._available / (_COUNTS * self.size)

    @property
    def enough(self) -> int:
        """The number of arrivals that end the round: K; in round 1 with `count_busy`, max(K, C)."""
        if self._round > 1 or not self.mode.count_busy:
            return self.size
        return max(self.size, self.mode.concurrency)

    # --- the replies ------------------------------------------------------------------------------------

    @property
    def num_training(self) -> int:
        return sum(each.state is State.TRAINING for each in self._drawn.values())

    @property
    def is_full(self) -> bool:
        """Whether the number of arrivals that count has reached `enough`."""
        return len(self._counted) >= self.enough

    @property
    def in_flight(self) -> dict[int, int]:
        """The clients whose training has not ended -> the round in which each was asked, in drawn order."""
        return {
            client: each.version
            for client, each in self._drawn.items()
            if each.state in (State.TRAINING, State.OVERDUE)
        }

    def staleness(self, client: int) -> int:
        """Return how many rounds ended since an asked client was asked."""
        return self._round - self._drawn[client].version

    def is_too_stale(self, client: int) -> bool:
        """Return whether an update of an asked client would be rejected now."""
        return self.staleness(client) > self.mode.max_staleness

    def why_too_stale(self, client: int) -> str:
        """Return the failure of a client whose update is rejected as too stale."""
        most = self.mode.max_staleness
        return f"staleness {self.staleness(client)}: must be at most {most} (max_staleness)"

    def kept_versions(self, round: int) -> set[int]:
        """Return the rounds whose models are kept: at most 2 C models from which clients in flight train.

        These are the models of the clients that hold a place, and then the newest models of overdue clients.
        A model is kept only if updates that are trained from it can still be used in ``round``. So clients
        that never answer take bounded memory.
        """
        oldest = round - self.mode.max_staleness
        found: dict[State, set[int]] = {State.TRAINING: set(), State.OVERDUE: set()}
        for each in self._drawn.values():
            if each.state in found and each.version >= oldest:
                found[each.state].add(each.version)
        kept = found[State.TRAINING]
        late = sorted(found[State.OVERDUE] - kept, reverse=True)
        return kept | set(late[: 2 * self.mode.concurrency - len(kept)])

    def free_place(self, client: int) -> None:
        """Let a client that does not answer in time lose its place. Its update is used if it comes later."""
        self._drawn[client].state = State.OVERDUE

    def end(self, client: int, usable: bool) -> None:
        """End the training of a client. ``usable`` states whether its update is an arrival."""
        self._drawn[client].state = State.ARRIVED if usable else State.FAILED
        self._ended.append(client)
        since = self._counts_from.get(client, -inf)
        if usable and (since <= self._round or not self.mode.count_busy):
            self._counted.add(client)
            self._counts_from[client] = max(since + self._pause, self._round)

    def scale_weights(self, factors: Floats) -> None:
        """Multiply the credits of drawn clients by ``factors`` (M,): their shares of the data changed."""
        for client, each in self._drawn.items():
            each.weight *= float(factors[client])

    def forget(self, clients: npt.ArrayLike) -> None:
        """Drop clients that left the run for good."""
        for client in np.asarray(clients).tolist():
            self._drawn.pop(client, None)
            self._counts_from.pop(client, None)
        self._ended = [client for client in self._ended if client in self._drawn]
        self._counted.intersection_update(self._ended)

    def take(self) -> tuple[Selection, Ints]:
        """End the round: return who ended, in that order, with weights, and (S,) the staleness of each."""
        ended = [self._drawn[client] for client in self._ended]
        staleness = np.array([self.staleness(client) for client in self._ended], dtype=np.int64)
        scale = max(1, len(ended)) * self.num_draws / max(1, self.num_asked)
        selection = Selection(
            np.array(self._ended, dtype=np.int64),
            np.array([each.count for each in ended], dtype=np.int64),
            np.array([each.probability for each in ended], dtype=np.float64),
            np.array([each.importance for each in ended], dtype=np.float64) / (scale or 1.0),
            np.array([each.weight for each in ended], dtype=np.float64) / (scale or 1.0),
        )
        for client in self._ended:
            del self._drawn[client]
        self._ended = []
        self._counted.clear()
        self._counts_from = {
            client: since for client, since in self._counts_from.items() if since + self._pause > self._round
        }
        return selection, staleness

    def factors(self, staleness: Ints) -> Floats:
        """Return (S,) the staleness factors (1 + τ)^-power of updates with the staleness τ (S,)."""
        factors: Floats = np.power(1.0 + staleness, -self.mode.staleness_power)
        return factors

    # --- the state --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        drawn = list(self._drawn.values())
        return {
            "totals": np.array([self.num_draws, float(self.num_asked)]),
            "clients": np.array(list(self._drawn), dtype=np.int64),
            "counts": np.array([each.count for each in drawn], dtype=np.int64),
            "states": np.array([int(each.state) for each in drawn], dtype=np.int64),
            "versions": np.array([each.version for each in drawn], dtype=np.int64),
            "credits": np.array(
                [[each.probability, each.importance, each.weight] for each in drawn], dtype=np.float64
            ).reshape(-1, 3),
            "counted": np.array(list(self._counts_from), dtype=np.int64),
            "counts_from": np.array(list(self._counts_from.values()), dtype=np.float64),
        }

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        per_client = ("clients", "counts", "states", "versions")
        axes: dict[str, tuple[str | int, ...]] = dict.fromkeys(per_client, ("drawn",))
        axes |= {"credits": ("drawn", 3), "counted": ("counted",), "counts_from": ("counted",)}
        arrays: dict[str, Any] = checks.state(state, self.state_dict(), axes)
        between = (State.WAITING, State.TRAINING, State.OVERDUE)
        if (
            not np.isin(arrays["states"], between).all()
            or np.unique(arrays["clients"]).size < arrays["clients"].size
        ):
            raise ValueError("state['states'], state['clients']: must be of distinct drawn clients")
        if (arrays["counts"] < 1).any() or not (arrays["credits"] >= 0).all() or (arrays["totals"] < 0).any():
            raise ValueError("state['counts'], state['credits'], state['totals']: must be positive")
        self.num_draws, self.num_asked = float(arrays["totals"][0]), int(arrays["totals"][1])
        self._drawn = {
            client: _Drawn(count, probability, importance, weight, State(now), version)
            for client, count, (probability, importance, weight), now, version in zip(
                arrays["clients"].tolist(),
                arrays["counts"].tolist(),
                arrays["credits"].tolist(),
                arrays["states"].tolist(),
                arrays["versions"].tolist(),
                strict=True,
            )
        }
        self._counts_from = dict(zip(arrays["counted"].tolist(), arrays["counts_from"].tolist(), strict=True))
        self._ended, self._counted = [], set()
