"""The base of the bandit baselines of the OSMD paper, which need the number of rounds in advance."""

from abc import abstractmethod

import numpy as np

from ...numerics.arrays import Array, Bools
from ..base import Selector
from ..probability import ProbabilitySelector
from ..records import Feedback, Selection

LARGEST_RATIO = 1e30
"""The limit of sqrt(a_m) / sqrt(reference), where a_m = λ_m² ||g_m||². The quotient may exceed 1 if the
reference is a setting or a mean over clients."""


class BanditSelector(ProbabilitySelector):
    """A selector that requires `num_rounds` T, which is in its state: no resume, no later round changes T."""

    state_axes = Selector.state_axes | {
        "num_rounds": (),  # T
        # The largest product of a size and a norm so far, or sqrt(L) in the same unit if VRB's `bound` L is
        # given; 0 before the first norm.
        "largest": (),
    }

    def _initial_state(self) -> dict[str, Array]:
        return {"num_rounds": np.array(self._horizon()), "largest": np.array(0.0)}


class CumulatedSelector(BanditSelector):
    """A selector that follows the regularised leader: it cumulates the estimated squares of all rounds.

    After each round, w_m <- w_m + W_m a_m for each client m with a usable norm, with a_m = λ_m² ||g_m||² and
    the importance W_m. w is stored as a multiple of the bound of all a, so the unit of norms has no effect.
    Joining clients get the mean w.
    """

    state_axes = BanditSelector.state_axes | {"totals": ("clients",)}  # w, in units of the bound

    @property
    @abstractmethod
    def _bound(self) -> float | None:
        """The given bound of all a; None: the largest a so far."""

    def _initial_state(self) -> dict[str, Array]:
        return super()._initial_state() | {"totals": np.zeros(self.num_clients)}

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, importance, roots = self._roots(selection, feedback)
        if not roots.any():
            return {}
        before, given = float(self._array("largest")), self._bound
        largest = max(before, roots.max()) if given is None else np.sqrt(given) * self._registered_size
        totals = self._array("totals") * (before / largest) ** 2
        totals[clients] += importance * np.minimum(roots / largest, LARGEST_RATIO) ** 2
        return {"totals": totals, "largest": np.array(largest)}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        totals = self._array("totals")
        mean = float(totals[self._registered].mean()) if self._num_registered else 0.0
        return {"totals": self._extended("totals", registered.size, mean)}
