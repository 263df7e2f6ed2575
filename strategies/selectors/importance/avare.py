"""Avare: sampling in proportion to the last known norm of each client, above a floor that falls slowly.

El Hanchi, Stephens, "Adaptive Importance Sampling for Finite-Sum Optimization and Sampling with Decreasing
Step-Sizes" (NeurIPS 2020), Algorithm 1; a baseline of the OSMD paper (section F.2).
"""

import numpy as np

from ...numerics.arrays import Array, Floats
from ...numerics.projection import scale_above_floor
from ..base import Selector
from ..probability import ProbabilitySelector
from ..records import Feedback, Selection
from .last_norms import LastNormSelector


class AvareSelector(LastNormSelector, ProbabilitySelector):
    """The p of least variance for the last known norms, among those with a floor.

    With λ_m the weights and M the number of registered clients::

        p_m = max(ε_t, c λ_m ||g_m||),   c such that sum p = 1
        ε_t = (1 + t)^(-1/3) / M,        t = 0 in the first round: p is uniform then

    ||g_m|| is the last known norm of m. A client without one gets the largest of all ("cold start"), so that
    every client is soon drawn; ``update_norms`` given for all ("informed") save this exploration, which is
    worth more than anything learned later. t counts the rounds that taught something.

    One norm is all that is known of a client. Where norms are noisy, a norm that is small by chance leaves a
    client at the floor, its weight grows to W = (1 + t)^(1/3)/K, and training may diverge.
    """

    name = "avare"
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
        if not scores.max() > 0:  # nothing is known, or nothing but zeros
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
