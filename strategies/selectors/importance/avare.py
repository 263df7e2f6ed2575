"""Avare: sampling in proportion to the last known norm of each client, above a floor that falls slowly.

El Hanchi, Stephens, "Adaptive Importance Sampling for Finite-Sum Optimization and Sampling with Decreasing
Step-Sizes" (NeurIPS 2020), Algorithm 1; a baseline of the OSMD paper (section F.2).
"""

import numpy as np

from ...numerics.arrays import Array, Floats
from ...numerics.projection import scale_above_floor
from ..base import Selector
from ..probability import AskingSettings, ProbabilitySelector
from ..records import Feedback, Selection
from .last_norms import LastNormSelector


class AvareSelector(LastNormSelector, ProbabilitySelector):
    """Samples from the p with the least variance for the last known norms, among all p above a floor.

    λ_m is the client's share of the data, and M the number of registered clients::

        p_m = max(ε_t, c λ_m ||g_m||),   with c such that sum p = 1
        ε_t = (1 + t)^(-1/3) / M,        with t = 0 in the first round, where p is therefore uniform

    ||g_m|| is the last known norm of client m. For a client without a known norm, the largest known norm of
    all clients is used ("cold start"), so that every client is soon drawn. This exploration is not needed if
    all norms are known at the start ("informed": ``update_norms``, or ``ask_norms=True``). t counts the
    rounds with at least one usable norm.

    Only the last norm of each client is remembered. If norms are noisy, a norm that is small by chance keeps
    the client at the floor. When the client is next drawn, its importance is W = M (1 + t)^(1/3)/K, which
    grows with t, and training may diverge.
    """

    name = "avare"
    summary = "by the last known norms"
    settings_type = AskingSettings
    _settings: AskingSettings
    state_axes = Selector.state_axes | {"rounds": ()}  # t

    def _initial_state(self) -> dict[str, Array]:
        return {"rounds": np.array(0)}

    def _distribution(self) -> Floats:
        if not self._num_registered:
            return np.zeros(self.num_clients)
        registered, sizes = self._registered, self.client_sizes
        largest = self._norms.max(where=registered, initial=-1.0)
        scores: Floats = np.where(self._norms < 0, largest, self._norms)
        scores *= sizes
        scores *= registered
        if not scores.max() > 0:  # no norm is known, or all known norms are 0
            scores = sizes * registered
        everyone = self._num_registered == self.num_clients
        floor = (1 + float(self._array("rounds"))) ** (-1 / 3) / self._num_registered
        p = scale_above_floor((scores if everyone else scores[registered]) / scores.max(), floor)
        if everyone:
            return p
        scores[registered] = p
        return scores

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        changes = super()._learn(round, selection, feedback)
        return changes and {**changes, "rounds": np.array(self._array("rounds") + 1)}
