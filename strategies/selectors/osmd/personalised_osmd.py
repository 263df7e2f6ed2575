"""Personalised OSMD: two Adaptive-OSMD samplers, one for each part of a personalised objective's gradient.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback",
appendix H.1 (v1), D.1 (v2).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...designs import DESIGNS
from ...numerics.arrays import Array, Floats
from ..base import Selector
from ..context import RoundContext
from ..records import Feedback, Selection
from ..settings import setting
from .adaptive_osmd import AdaptiveOSMDSelector, AdaptiveOSMDSettings

ROUNDING = 1e-3
"""The relative error that is allowed when the norms of the parts are compared with the norm of the update."""


@dataclass(frozen=True)
class PersonalisedOSMDSettings(AdaptiveOSMDSettings):
    """Settings of both samplers, and the share of the draws that each sampler gets."""

    personal_share: float = setting(
        0.5, low=0.0, high=1.0, doc="share of the draws for the personal part; each part gets one at least"
    )

    design: str = setting(
        "own",
        choices=("own", *(name for name, each in DESIGNS.items() if not each.uses_features)),
        doc="how each sampler draws its clients; own: independently",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # `a_max` and `ask_norms` give one bound ā for whole updates; each sampler needs a bound for its part.
        if self.a_max is not None or self.ask_norms:
            value = f"a_max = {self.a_max}" if self.a_max is not None else "ask_norms = True"
            raise ValueError(f"{value}: must be left out, since each of the two samplers has its own bound")


class PersonalisedOSMDSelector(Selector):
    """Selects S_1 and S_2, drawn independently from p_1 and p_2, for an objective with personal models.

    The personal models β_m(w) depend on the model w, and F_m is the loss of client m. The gradient of
    h(w) = sum_m λ_m F_m(w, β_m(w)) has two parts, by eq. 47. (The factor 1/M in eq. 47 must be a misprint,
    because the λ sum to 1.) The aggregate g estimates this gradient::

        ∇h = sum_m λ_m g_1,m + sum_m λ_m g_2,m        g_1: with β_m fixed;  g_2: through β_m(w)
        g  = sum_(S_1) W_1,m λ_m g_1,m + sum_(S_2) W_2,m λ_m g_2,m,      W_j,m = N_j,m / (K_j p_j,m)

    For each part j, an Adaptive-OSMD sampler has the distribution p_j. The sampler learns from ||g_j,m|| of
    the clients that were drawn from p_j. K_2 is `personal_share` times K, rounded, and K_1 = K - K_2; both
    are at least 1, so K = 1 makes two draws, too. A client that is drawn from both p_1 and p_2 trains once.

    A selected client sends one update, u_m = s_1 g_1,m + s_2 g_2,m. ``Selection.parts`` holds the scales
    s_j = W_j,m / W_m, where W_m = max(W_1,m, W_2,m), and the client's weight is W_m λ_m. The client need not
    compute a part whose scale is 0. If only one scale is above 0, the norm of this part is the norm of the
    update divided by the scale. If both scales are above 0, the client reports the norms of both parts. The
    samplers learn from them only if the norm of the update is between the difference and the sum of the two
    scaled norms.
    """

    name = "personalised-osmd"
    summary = "by past norms, for personal models"
    unbiased = "round"
    part_names = ("model", "personal")
    settings_type = PersonalisedOSMDSettings
    _settings: PersonalisedOSMDSettings

    def __init__(self, num_clients: int, *, num_rounds: int | None = None, **arguments: Any) -> None:
        self._samplers: tuple[AdaptiveOSMDSelector, ...] = ()
        super().__init__(num_clients, num_rounds=num_rounds, **arguments)
        self._samplers = self._fresh()

    def _fresh(self) -> tuple[AdaptiveOSMDSelector, ...]:
        own = PersonalisedOSMDSettings.allowed().keys() - AdaptiveOSMDSettings.allowed().keys()
        settings = {
            name: getattr(self._settings, name)
            for name in PersonalisedOSMDSettings.allowed()
            if name not in own
        }
        return tuple(
            AdaptiveOSMDSelector(
                self.num_clients,
                client_sizes=self.client_sizes,
                clients_per_round=k,
                num_rounds=self._horizon(),
                **settings,
            )
            for k in self._shares(self._clients_per_round)
        )

    def _shares(self, k: int) -> tuple[int, int]:
        """Return (K_1, K_2) for K = `k` draws; both are at least 1, even if K is 1."""
        second = min(max(1, round(k * self._settings.personal_share)), max(1, k - 1))
        return max(1, k - second), second

    def add_clients(self, client_sizes: npt.ArrayLike, **per_client: npt.ArrayLike) -> None:
        super().add_clients(client_sizes, **per_client)
        for each in self._samplers:
            each.add_clients(client_sizes)

    def remove_clients(self, clients: npt.ArrayLike) -> None:
        super().remove_clients(clients)
        for each in self._samplers:
            each.remove_clients(clients)

    def set_sizes(self, clients: npt.ArrayLike, client_sizes: npt.ArrayLike) -> None:
        super().set_sizes(clients, client_sizes)
        for each in self._samplers:
            each.set_sizes(clients, client_sizes)

    def state_dict(self) -> dict[str, Array]:
        state = super().state_dict()
        for name, each in zip(self.part_names, self._samplers, strict=True):
            state |= {f"{name}/{key}": array for key, array in each.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        samplers = self._fresh()
        own = dict(state)
        for name, each in zip(self.part_names, samplers, strict=True):
            prefix = f"{name}/"
            each.load_state_dict(
                {key.removeprefix(prefix): own.pop(key) for key in state if key.startswith(prefix)}
            )
        super().load_state_dict(own)
        self._samplers = samplers

    def _distribution(self) -> Floats:
        (k_1, k_2), (p_1, p_2) = (
            self._shares(self._clients_per_round),
            (each.probabilities for each in self._samplers),
        )
        p: Floats = (k_1 * p_1 + k_2 * p_2) / (k_1 + k_2)
        return p

    def _select(self, context: RoundContext) -> Selection:
        drawn = [
            each._select(replace(context, seed=2 * self._seed + part, k=k))
            for part, (each, k) in enumerate(zip(self._samplers, self._shares(context.k), strict=True))
        ]
        both = np.concatenate([each.clients for each in drawn])
        clients = both[np.sort(np.unique(both, return_index=True)[1])]  # in the order of the draws
        position = {int(client): i for i, client in enumerate(clients)}
        importance, counts = np.zeros((clients.size, 2)), np.zeros(clients.size, dtype=np.int64)
        for part, each in enumerate(drawn):
            at = np.array([position[int(client)] for client in each.clients], dtype=np.int64)
            importance[at, part] = each.importance
            counts[at] += each.counts
        largest = importance.max(axis=1)
        p = self._distribution()
        here = context.available
        p = p[clients] / max(p[here.mask].sum(), p[clients].sum())
        shares = self.client_sizes[clients] / here.total_size
        return Selection(clients, counts, p, largest, largest * shares, parts=importance / largest[:, None])

    def update(self, round: int, selection: Selection, feedback: Feedback) -> None:
        super().update(round, selection, feedback)
        if selection.parts is None:
            return
        norms = part_norms(selection.parts, feedback)
        for part, each in enumerate(self._samplers):
            at = selection.parts[:, part] > 0
            if not at.any():
                continue
            importance = (selection.importance * selection.parts[:, part])[at]
            own = Selection(
                selection.clients[at],
                selection.counts[at],
                selection.probabilities[at],
                importance,
                selection.weights[at],
            )
            missing, responded = np.full(int(at.sum()), np.nan), feedback.responded[at]
            each.update(round, own, Feedback(norms[at, part], missing, missing, missing, responded))


def part_norms(parts: Floats, feedback: Feedback) -> Floats:
    """Return (S, 2) the norms ||g_j,m|| from which the samplers learn.

    `parts` (S, 2) holds the scales. A norm is NaN if the scale of its part is 0. If both scales are above 0,
    the norms are those that the client reported; they are NaN if it reported none, or if they contradict the
    norm of the update.
    """
    total, count = feedback.update_norms, np.count_nonzero(parts > 0, axis=1)
    norms = np.full(parts.shape, np.nan)
    reported = feedback.part_norms
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        alone = total[:, None] / parts
        norms = np.where((count == 1)[:, None] & (parts > 0), alone, norms)
        if reported is not None:
            scaled = parts * reported
            most, least = scaled.sum(axis=1), np.abs(scaled[:, 0] - scaled[:, 1])
            slack = ROUNDING * most
            fits = (count == 2) & (total <= most + slack) & (total >= least - slack)
            norms = np.where(fits[:, None], reported, norms)
    return norms
