"""The practical forms of DELTA and FedIS, which learn probabilities from the participants alone."""

from abc import abstractmethod

import numpy as np

from ...numerics.arrays import Array, Bools, Floats
from ..base import Selector
from ..importance.importance import ImportanceSelector
from ..records import Feedback, Selection


class PracticalSelector(ImportanceSelector):
    """Divides the mass of a round's participants S anew among them; the others keep theirs.

    After each round::

        p_i <- λ_i s_i / (sum_{j in S} λ_j s_j) * (1 - sum_{j not in S} p_j),  i in S     (eqs. 15 and 16)

    s_i is a score of the participant's update, and p = λ at the start. The state is the level l_m in
    p ∝ λ_m l_m, 1 at the start, so p is always a distribution and follows the sizes when they change; the
    scale of the levels does not matter. Joiners get the mean level, that is p = λ; the mass of leavers is
    divided in proportion. Participants without a score do not count, and where all scores are 0 nothing
    changes. The unit of the scores does not matter.

    p is that of eqs. 15 and 16; the draws come from q, which has the floor. Without it a score of 0 would be
    absorbing. Scores of different rounds are never compared: a participant's level is relative to those of
    the other participants, so mass moves slowly where K is small.
    """

    state_axes = Selector.state_axes | {"levels": ("clients",)}

    @abstractmethod
    def _participant_scores(self, feedback: Feedback) -> Floats:
        """Return s (S,) >= 0; not finite where it is unknown."""

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
