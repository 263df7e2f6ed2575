"""The base of practical DELTA and FedIS, which learn probabilities from the selected clients alone."""

from abc import abstractmethod

import numpy as np

from ...numerics.arrays import Array, Bools, Floats
from ..base import Selector
from ..importance.importance import ImportanceSelector
from ..records import Feedback, Selection


class PracticalSelector(ImportanceSelector):
    """Divides the total probability of a round's selected clients S anew among these clients.

    The probabilities of all other clients stay unchanged. After each round::

        p_i <- λ_i s_i / (sum_{j in S} λ_j s_j) * (1 - sum_{j not in S} p_j),  i in S     (eqs. 15 and 16)

    s_i is the score of the update of client i, in any unit. The paper has no λ in this formula. At the start
    p = λ (the paper: 1/m for m clients, which is the same for equal λ). The state holds a level l_m for each
    client, 1 at the start, and p ∝ λ_m l_m, so corrected sizes change p at once. A joining client gets the
    mean level, so its p is its λ. The probability of a removed client is divided among the others in
    proportion to their p. Selected clients without a score do not belong to S. If all scores are 0, p does
    not change.

    The draws come from q, which is p with the floor of `ImportanceSelector`. Scores are compared only with
    scores of the same round, so with a small K the distribution changes slowly.
    """

    state_axes = Selector.state_axes | {"levels": ("clients",)}

    @abstractmethod
    def _participant_scores(self, feedback: Feedback) -> Floats:
        """Return the scores s (S,) >= 0 of the selected clients; NaN or infinite if a score is unknown."""

    def _scores(self) -> Floats:
        levels: Floats = self._array("levels")
        return levels

    def _initial_state(self) -> dict[str, Array]:
        return {"levels": np.ones(self.num_clients)}

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, _, scores = self._usable(selection, feedback, self._participant_scores(feedback))
        if not scores.any():
            return {}
        levels, sizes = self._array("levels").copy(), self.client_sizes[clients]
        shares = scores / scores.max()
        levels[clients] = shares * ((sizes @ levels[clients]) / (sizes @ shares))
        return {"levels": levels}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        levels = self._array("levels")
        mean = 1.0
        if self._num_registered:
            mean = float(np.average(levels[self._registered], weights=self.client_sizes[self._registered]))
        return {"levels": self._extended("levels", registered.size, mean)}
