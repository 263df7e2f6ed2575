"""Oort: prefers clients with large losses, and penalises clients that take long.

Lai, Zhu, Madhyastha, Chowdhury, "Oort: Efficient Federated Learning via Guided Participant Selection" (OSDI
2021), Algorithm 1 and section 4.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Array, Bools, Floats, Ints
from ...numerics.sampling import largest
from .. import checks
from ..base import Selector
from ..context import RoundContext
from ..power_of_choice.plain_mean import MeanSettings, PlainMeanSelector
from ..presence import Presence
from ..records import Feedback, Selection
from ..settings import setting

_TINY = 1e-300


@dataclass(frozen=True)
class OortSettings(MeanSettings):
    """Settings of Oort; the defaults are the paper's."""

    penalty: float = setting(2.0, low=0.0, high=10.0, doc="α, the exponent of the penalty for long durations")
    window: int = setting(20, low=1, high=10_000, doc="W, the rounds that the pacer compares")
    pace: float = setting(
        0.0,
        low=0.0,
        high=1.0,
        doc="share of the known durations over which a step of the pacer moves T; 0: W·K durations",
    )
    exploration: float = setting(0.9, low=0.0, high=1.0, doc="ε of round 1, the share of K that explores")
    decay: float = setting(0.98, low=0.0, high=1.0, doc="factor of ε after each round")
    least_exploration: float = setting(0.2, low=0.0, high=1.0, doc="the least ε")
    cut_off: float = setting(
        0.95, low=0.0, high=1.0, doc="c, the least utility, in units of the (1 - ε)K-th largest"
    )
    clip: float = setting(0.95, low=0.0, high=1.0, doc="the quantile at which the U_i are clipped")
    most_draws: int = setting(
        0, low=0, doc="clients with this many draws are selected only if no other is left; 0: no limit"
    )
    normalised: bool = setting(False, doc="scale the U_i to [0, 1] first, as the published code does")


class OortSelector(PlainMeanSelector):
    """Selects explored clients by their utility, and unexplored clients at random.

    Explored clients are those that have been selected, whether they replied or failed. Algorithm 1, in round
    R, for each explored client i::

        statistical utility  U_i = |B_i| sqrt(mean over samples of loss²)
        utility              Util_i = min(U_i, quantile `clip` of U) + sqrt(0.1 log R / L_i)
                             times (T/D_i)^α if D_i > T
        exploit              (1 - ε)K clients, in proportion to Util, among those with at least
                             c times the (1 - ε)K-th largest utility
        explore              εK unexplored clients
        pacer                every W rounds: T makes a step if the U of the last W rounds' participants
                             sum to less than those of the W rounds before

    B_i are the samples of client i, L_i the last round in which the client was selected, and D_i the client's
    last known duration by the server's clock (`Feedback.seconds`). T is the duration above which a client is
    penalised. R and L_i count only rounds in which clients were selected. Without durations there is no
    penalty. By section 7.1 of the paper, each step of the pacer moves T over the durations of W·K clients:
    after n steps, T is the ``(1 + n) W K``-th shortest of the known durations, or infinite if there are no
    more durations than that. So with W·K clients or fewer, no client is penalised. The setting `pace`
    replaces W·K by a share of the clients with known durations.

    Differences from the paper: U_i is size · |mean training loss|, since clients report a mean loss and not a
    sum of squares. If a client's loss is not known, because the client failed or reported none, its U_i is
    the median of the known ones. Unexplored clients are drawn uniformly, since their speed is not known (the
    paper prefers fast clients if it knows on which kind of device they run). If there are fewer than εK
    unexplored clients, explored clients take the rest of these places, and vice versa.

    The published code (``oort/oort.py``) differs from the paper in three points. U is scaled to [0, 1] before
    sqrt(0.1 log R / L_i) is added (setting `normalised`). T is a percentile of the durations. The percentile
    grows by 5 points (`pace=0.05`) if the sum of U changed by less than 10 %, and shrinks by 5 points if it
    changed by more than 500 %. The code prefers large clients when it explores.

    The aggregate is biased towards fast clients and large losses: weights follow the setting `averaging`, by
    default the plain mean. In `probabilities`, the explored clients whose utility reaches the limit of the
    line "exploit" share 1 - ε in proportion to Util, and the unexplored clients share ε equally.
    """

    name = "oort"
    summary = "with large losses and fast replies"
    report_used = "train-loss"
    settings_type = OortSettings
    _settings: OortSettings
    state_axes = Selector.state_axes | {
        "utilities": ("clients",),
        "durations": ("clients",),
        "last_rounds": ("clients",),
        "draws": ("clients",),
        "sums": ("window",),
        "rounds": (),
        "steps": (),
    }

    def _initial_state(self) -> dict[str, Array]:
        return super()._initial_state() | {
            "utilities": np.full(self.num_clients, np.nan),  # U_i; NaN: not explored, failed, or no loss
            "durations": np.full(self.num_clients, np.nan),  # D_i, seconds; NaN: not known
            "last_rounds": np.zeros(self.num_clients, dtype=np.int64),  # L_i; 0: never selected
            "draws": np.zeros(self.num_clients, dtype=np.int64),  # how often client i was selected
            "sums": np.zeros(2 * self._settings.window),  # the sum of U in each of the last 2W rounds
            "rounds": np.array(0),  # the number of rounds in which clients were selected
            "steps": np.array(0),  # n, the steps of the pacer
        }

    def _first_draw(self, available: Presence) -> Floats:
        explored, fresh = self._parts(available)
        p = np.zeros(available.count)
        if explored.size:
            admitted, utilities = self._admitted(available, explored, self._exploited(explored, fresh))
            p[admitted] = (1 - self._epsilon()) * utilities / utilities.sum()
        p[fresh] = self._epsilon() / max(1, fresh.size)
        if not p.sum() > 0:  # only left-out clients are available, or ε is 0 and none is explored
            p[fresh if fresh.size else slice(None)] = 1.0
        p /= p.sum()
        return p

    def _choose(self, context: RoundContext) -> tuple[Ints, Floats]:
        rng, available = context.rng("select"), context.available
        k = min(context.k, available.count)
        explored, fresh = self._parts(available)
        number = min(self._exploited(explored, fresh, k), k)
        chosen = np.empty(0, dtype=np.int64)
        if number:
            admitted, utilities = self._admitted(available, explored, number)
            # Gumbel top-k: draws one after another, without replacement, in proportion to the utilities
            chosen = admitted[largest(np.log(utilities) + rng.gumbel(size=admitted.size), number, rng)]
        chosen = np.concatenate([chosen, rng.permutation(fresh)[: k - number]])
        if chosen.size < k:  # the clients that were selected too often take the places that are left
            rest = np.setdiff1d(np.arange(available.count), chosen)
            chosen = np.concatenate([chosen, rng.permutation(rest)[: k - chosen.size]])
        return available.at(chosen), self._first_draw(available)[chosen]

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        if not selection.clients.size:
            return {}
        replied = feedback.responded & self._registered[selection.clients]
        clients = selection.clients[replied]
        utilities, durations = self._array("utilities").copy(), self._array("durations").copy()
        losses = np.clip(np.abs(feedback.losses[replied]), 0, 1e150)
        utilities[clients] = np.where(np.isfinite(losses), self.client_sizes[clients] * losses, np.nan)
        if feedback.seconds is not None:
            seconds = feedback.seconds[replied]
            known = np.isfinite(seconds)
            durations[clients[known]] = seconds[known]
        last_rounds, draws = self._array("last_rounds").copy(), self._array("draws").copy()
        rounds, sums = int(self._array("rounds")) + 1, self._array("sums").copy()
        last_rounds[selection.clients] = rounds  # a failed exploration is an exploration, too
        draws[selection.clients] += 1
        sums[rounds % sums.size] = np.nansum(utilities[clients])
        return {
            "utilities": utilities,
            "durations": durations,
            "last_rounds": last_rounds,
            "draws": draws,
            "sums": sums,
            "rounds": np.array(rounds),
            "steps": np.array(int(self._array("steps")) + self._slackens(rounds, sums)),
        }

    def _joined(self, registered: Bools) -> dict[str, Array]:
        count = registered.size
        return {
            "utilities": self._extended("utilities", count, np.nan),
            "durations": self._extended("durations", count, np.nan),
            "last_rounds": self._extended("last_rounds", count, 0),
            "draws": self._extended("draws", count, 0),
        }

    def _check_state(self, state: Mapping[str, Array]) -> None:
        super()._check_state(state)
        for name in ("utilities", "durations", "last_rounds", "draws", "sums", "rounds", "steps"):
            checks.not_negative(f"state[{name!r}]", np.atleast_1d(np.asarray(state[name], dtype=np.float64)))
        if len(state["sums"]) != 2 * self._settings.window:
            raise ValueError(
                f"state['sums'] has {len(state['sums'])} rounds: must have {2 * self._settings.window}"
            )

    def _epsilon(self) -> float:
        """Return ε of the next round."""
        decayed = self._settings.exploration * self._settings.decay ** int(self._array("rounds"))
        return max(decayed, min(self._settings.least_exploration, self._settings.exploration))

    def _slackens(self, rounds: int, sums: Floats) -> bool:
        """Return whether the pacer makes a step after a round."""
        window = self._settings.window
        if rounds < 2 * window or rounds % window:
            return False
        last = np.arange(rounds - window + 1, rounds + 1) % sums.size
        return bool(sums[last].sum() < np.delete(sums, last).sum())

    def _parts(self, available: Presence) -> tuple[Ints, Ints]:
        """Return the positions of explored and unexplored clients; those over `most_draws` are in neither."""
        draws = available.of(self._array("draws"))
        kept = draws < (self._settings.most_draws or np.inf)
        explored = available.of(self._array("last_rounds")) > 0
        return np.flatnonzero(explored & kept), np.flatnonzero(~explored & kept)

    def _exploited(self, explored: Ints, fresh: Ints, k: int | None = None) -> int:
        """Return how many of the explored clients are selected: (1 - ε)K, or more if few are unexplored."""
        k = self._clients_per_round if k is None else k
        wanted = max(math.floor((1 - self._epsilon()) * k), k - fresh.size)
        return min(wanted, explored.size)

    def _admitted(self, available: Presence, explored: Ints, number: int) -> tuple[Ints, Floats]:
        """Return (positions, utilities) of the explored with >= `cut_off` times the ``number``-th largest."""
        utilities = self._utilities(available, explored)
        rank = min(max(number, 1), utilities.size) - 1
        cut = self._settings.cut_off * np.partition(utilities, utilities.size - 1 - rank)[-1 - rank]
        kept = utilities >= cut
        return explored[kept], utilities[kept]

    def _utilities(self, available: Presence, explored: Ints) -> Floats:
        """Return Util > 0 of the explored clients, given by their positions among the available clients."""
        values = available.of(self._array("utilities"))[explored]
        known = values[np.isfinite(values)]
        # A client whose loss is not known counts with the median.
        values = np.where(np.isfinite(values), values, np.median(known) if known.size else 0.0)
        values = np.minimum(values, np.quantile(values, self._settings.clip))
        if self._settings.normalised:
            spread = float(np.ptp(values))
            values = (values - values.min()) / spread if spread > 0 else np.ones(values.size)
        last = available.of(self._array("last_rounds"))[explored]
        values = values + np.sqrt(0.1 * math.log(int(self._array("rounds")) + 1) / last)
        durations, preferred = available.of(self._array("durations"))[explored], self._preferred()
        late = durations > preferred
        values[late] *= (preferred / durations[late]) ** self._settings.penalty
        positive: Floats = np.maximum(values, _TINY)
        return positive

    def _preferred(self) -> float:
        """Return T in seconds, or infinity if the rank of T is at least the number of known durations."""
        durations = self._array("durations")
        known = durations[np.isfinite(durations) & self._registered]
        step = self._settings.pace * known.size or self._settings.window * self._clients_per_round
        rank = math.ceil((1 + int(self._array("steps"))) * step)
        return float(np.partition(known, rank - 1)[rank - 1]) if rank < known.size else math.inf
