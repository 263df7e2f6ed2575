"""TiFL: the clients of a round come from one tier of speed.

Chai, Ali, Zawad, Truex, Anwar, Baracaldo, Zhou, Ludwig, Yan, Cheng, "TiFL: A Tier-based Federated Learning
System" (HPDC 2020), sections 4.2 and 4.3 and Table 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Array, Bools, Floats, Ints
from .. import checks
from ..base import Selector
from ..context import RoundContext
from ..power_of_choice.plain_mean import MeanSettings, PlainMeanSelector
from ..presence import Presence
from ..records import Feedback, Selection
from ..settings import setting

POLICIES = {
    "uniform": (0.2, 0.2, 0.2, 0.2, 0.2),
    "random": (0.7, 0.1, 0.1, 0.05, 0.05),
    "fast": (1.0, 0.0, 0.0, 0.0, 0.0),
    "slow": (0.0, 0.0, 0.0, 0.0, 1.0),
}
"""The probabilities of the five tiers, the fastest first (Table 1)."""
LONGEST = 1e7  # seconds; longer durations count as this


@dataclass(frozen=True)
class TiFLSettings(MeanSettings):
    """Settings of TiFL."""

    policy: str = setting("uniform", choices=tuple(POLICIES), doc="the probabilities of the tiers")


class TiFLSelector(PlainMeanSelector):
    """Draws a tier by the probabilities of the `policy`, and K clients of this tier uniformly.

    The available clients with known durations, ordered by their mean duration, are cut into five tiers of
    equal numbers. If the drawn tier has fewer than K clients, the rest come from the faster tiers, the
    nearest first, and then from the slower ones.

    Differences from the paper: TiFL first lets all clients train for some rounds to learn their durations.
    Here the clients without a duration form a sixth tier. The probability of drawing this tier is its share
    of the available clients. The paper leaves out clients that did not reply in those rounds. Here a client
    that did not reply counts with the longest duration of its round. The paper's weights are those of
    ``averaging="sizes"``. The adaptive policy (Algorithm 2) is missing, since it needs the accuracy of the
    model on test data of each tier's clients.

    The aggregate is biased: the probability of a client depends on the number of available clients in its
    tier, and with most policies on its speed.
    """

    name = "tifl"
    summary = "from one tier of similar speed"
    settings_type = TiFLSettings
    _settings: TiFLSettings
    state_axes = Selector.state_axes | {"total_seconds": ("clients",), "replies": ("clients",)}

    def _initial_state(self) -> dict[str, Array]:
        return super()._initial_state() | {
            "total_seconds": np.zeros(self.num_clients),  # the sum of each client's durations
            "replies": np.zeros(self.num_clients, dtype=np.int64),  # how many durations these are
        }

    def _tiers(self, available: Presence) -> tuple[list[Ints], Floats]:
        """Return the tiers, as positions among the available clients, and their probabilities."""
        known = available.of(self._array("replies")) > 0
        seconds = available.of(self._array("total_seconds")) / np.maximum(
            available.of(self._array("replies")), 1
        )
        timed, fresh = np.flatnonzero(known), np.flatnonzero(~known)
        ordered = timed[np.argsort(seconds[timed], kind="stable")]
        policy = POLICIES[self._settings.policy]
        tiers = np.array_split(ordered, len(policy))
        p = np.array([share * (tier.size > 0) for share, tier in zip(policy, tiers, strict=True)])
        if p.sum() == 0:  # all tiers with a probability > 0 are empty
            p = np.array([float(tier.size > 0) for tier in tiers])
        share = fresh.size / available.count
        p = np.append(p * (1 - share) / (p.sum() or 1.0), share)
        return [*tiers, fresh], p / p.sum()

    def _first_draw(self, available: Presence) -> Floats:
        tiers, p = self._tiers(available)
        first = np.zeros(available.count)
        for tier, share in zip(tiers, p.tolist(), strict=True):
            first[tier] = share / max(1, tier.size)
        return first

    def _choose(self, context: RoundContext) -> tuple[Ints, Floats]:
        rng, available = context.rng("select"), context.available
        if not available.count:
            return np.empty(0, dtype=np.int64), np.empty(0)
        tiers, p = self._tiers(available)
        drawn = int(rng.choice(p.size, p=p))
        order = [drawn, *range(drawn - 1, -1, -1), *range(drawn + 1, len(tiers))]
        chosen = np.concatenate([rng.permutation(tiers[tier]) for tier in order])[: context.k]
        return available.at(chosen), self._first_draw(available)[chosen]

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        if feedback.seconds is None or not selection.clients.size:
            return {}
        timed = feedback.responded & np.isfinite(feedback.seconds)
        if not timed.any():
            return {}
        seconds = np.clip(np.where(timed, feedback.seconds, 0.0), 0.0, LONGEST)
        seconds[~feedback.responded] = seconds.max()
        counted = (timed | ~feedback.responded) & self._registered[selection.clients]
        clients = selection.clients[counted]
        total, replies = self._array("total_seconds").copy(), self._array("replies").copy()
        total[clients] += seconds[counted]
        replies[clients] += 1
        return {"total_seconds": total, "replies": replies}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        return {name: self._extended(name, registered.size, 0) for name in ("total_seconds", "replies")}

    def _check_state(self, state: Mapping[str, Array]) -> None:
        super()._check_state(state)
        for name in ("total_seconds", "replies"):
            checks.not_negative(f"state[{name!r}]", np.asarray(state[name], dtype=np.float64))
