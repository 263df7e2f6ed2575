"""Selectors that are biased on purpose: they choose whom they like and take the plain mean."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Array, Bools, Floats, Ints
from .. import checks
from ..base import Selector
from ..presence import Presence
from ..records import Feedback, Selection


class PlainMeanSelector(Selector):
    """Weighs each of the S chosen with c_m = 1/S, also when everybody who is here is chosen.

    ``Selection.importance`` is c_m/λ_m, λ being the share of the data of who is here: how many times its due
    weight a client gets. Its expectation is not 1, which is the bias.
    """

    unbiased: ClassVar[Literal["round", "long-run", "none"]] = "none"
    equal_weight_draws: ClassVar[Literal["always", "with replacement", "never"]] = "always"

    @property
    def probabilities(self) -> Floats:
        """(M,) the distribution of the first draw if all were here; sums to 1, 0 for the removed."""
        p = np.zeros(self.num_clients)
        here = self._presence(None, None)
        if here.count:
            p[here.clients] = self._distribution(here)
        p.flags.writeable = False
        return p

    def select(
        self,
        round: int,
        *,
        available: npt.ArrayLike | None = None,
        unavailable: npt.ArrayLike | None = None,
        candidates: npt.ArrayLike | None = None,
        reports: Mapping[str, Floats] | None = None,
        budget: float | None = None,
    ) -> Selection:
        """Choose K of who is here, see `Selector.select`.

        ``Selection.probabilities`` holds the probability of each at the first draw, or 1 if all are taken.
        """
        round = checks.integer("round", round, low=0)
        here = self._presence(available, unavailable)
        k = self._cohort_size(budget)
        chosen, p = np.empty(0, dtype=np.int64), np.empty(0)
        if here.count and k:  # with nobody here there is nobody to ask
            chosen, p = self._choose(round, here, k, candidates, reports)
        if chosen.size == here.count:
            p = np.ones(chosen.size)
        weights = np.full(chosen.size, 1 / max(1, chosen.size))
        importance = weights * (here.total_size / self.client_sizes[chosen])
        return Selection(chosen, np.ones(chosen.size, dtype=np.int64), p, importance, weights)

    def _distribution(self, here: Presence) -> Floats:
        """Return (n,) the probability of each who is here, n >= 1, at the first draw: its data's share."""
        sizes = here.of(self.client_sizes)
        p: Floats = sizes / sizes.sum()
        return p

    @abstractmethod
    def _choose(
        self,
        round: int,
        here: Presence,
        k: int,
        candidates: npt.ArrayLike | None,
        reports: Mapping[str, Floats] | None,
    ) -> tuple[Ints, Floats]:
        """Return (clients, their `_distribution`): at most k distinct ones of who is here; k >= 1."""


_NEVER_ANSWERED = -np.inf  # in the place of a loss


class LastLossSelector(PlainMeanSelector):
    """Remembers the mean loss of each client's last local training; infinite until it was chosen once.

    Who was chosen and has never answered counts as typical: if its loss stayed infinite, it would be chosen
    for ever.

    It comes with the update and costs no message. It is a training loss: where the model has dropout, it is
    larger than an evaluation loss, so the two are not to be compared.
    """

    state_axes: ClassVar[Mapping[str, tuple[str, ...]]] = {**Selector.state_axes, "losses": ("clients",)}

    def _initial_state(self) -> dict[str, Array]:
        return super()._initial_state() | {"losses": np.full(self.num_clients, np.inf)}

    def _last_losses(self) -> Floats:
        """Return (M,) the losses to choose by."""
        return self._cached("last_losses", ("losses",), self._compute_last_losses)

    def _compute_last_losses(self) -> Floats:
        losses: Floats = self._array("losses")
        never = losses == _NEVER_ANSWERED
        if not never.any():
            return losses
        known = losses[np.isfinite(losses)]
        return np.where(never, np.median(known) if known.size else np.inf, losses)

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, _, seen = self._reported(selection, feedback, feedback.losses)
        losses = self._array("losses").copy()
        losses[clients] = seen
        silent = selection.clients[~feedback.responded]
        losses[silent[losses[silent] == np.inf]] = _NEVER_ANSWERED
        return {"losses": losses}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        losses = self._array("losses")
        return {"losses": np.concatenate([losses, np.full(registered.size - losses.size, np.inf)])}


def largest(values: Floats, k: int, rng: np.random.Generator) -> Ints:
    """Return the positions of the k >= 0 largest of values (n,), all if n <= k; ties at random."""
    if values.size <= k or k == 0:
        return np.arange(min(k, values.size))
    threshold = np.partition(values, values.size - k)[values.size - k]
    above = np.flatnonzero(values > threshold)
    tied = rng.choice(np.flatnonzero(values == threshold), k - above.size, replace=False)
    return np.concatenate([above, tied])
