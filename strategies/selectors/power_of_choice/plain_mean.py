"""The bases of the selectors that are biased on purpose: plain means as weights, and remembered losses."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Array, Bools, Floats, Ints
from .. import checks
from ..base import Selector
from ..context import RoundContext
from ..presence import Presence
from ..records import Feedback, Selection
from ..settings import Settings, setting


@dataclass(frozen=True)
class MeanSettings(Settings):
    """The setting for the averaging scheme (Cho et al. 2022, appendix E)."""

    averaging: str = setting(
        "plain",
        choices=("plain", "sizes", "scaled-sizes"),
        doc="c_m of a selected client: 1/S; λ_m divided by the sum of λ over the selected; or λ_m n/S, "
        "with n available clients",
    )


class PlainMeanSelector(Selector):
    """Weights the S selected clients by an averaging scheme, even if all available clients are selected.

    λ_m is a client's size divided by the sum of the n available clients' sizes. The averaging schemes of Cho
    et al. 2022 are::

        plain          c_m = 1/S                        eqs. 2 and 3
        sizes          c_m = λ_m / sum_{k in S} λ_k     appendix E; the weights sum to 1
        scaled-sizes   c_m = λ_m n/S                    appendix E, example (Li et al. 2020b); the sum of the
                                                        weights is 1 only on average, and only if all
                                                        clients are selected with equal probability

    ``Selection.importance`` is c_m/λ_m. Its expectation is not 1, so the aggregate is biased.
    ``Selection.probabilities`` holds the probability of each client in the first draw, or 1 if all available
    clients are selected.
    """

    settings_type = MeanSettings
    _settings: MeanSettings
    unbiased = "none"
    equal_weight_draws: ClassVar[Literal["always", "with replacement", "never"]] = "always"
    sum_to_one: ClassVar[frozenset[str]] = frozenset({"sizes"})
    """The averaging schemes whose weights sum to 1 again after missing replies."""

    def _distribution(self) -> Floats:
        p = np.zeros(self.num_clients)
        everyone = self._presence(None, None)
        if everyone.count:
            p[everyone.clients] = self._first_draw(everyone)
        return p

    def _select(self, context: RoundContext) -> Selection:
        available = context.available
        clients, p = self._choose(context)
        if clients.size == available.count:
            p = np.ones(clients.size)
        weights, shares = self._averaged(clients, available)
        importance = weights / shares
        return Selection(clients, np.ones(clients.size, dtype=np.int64), p, importance, weights)

    def _averaged(self, clients: Ints, available: Presence) -> tuple[Floats, Floats]:
        """Return the weights (S,) and the shares λ (S,) of selected clients."""
        shares = self.client_sizes[clients] / available.total_size
        weights = {
            "plain": np.full(clients.size, 1 / max(1, clients.size)),
            "sizes": shares / (shares.sum() or 1.0),
            "scaled-sizes": shares * (available.count / max(1, clients.size)),
        }[self._settings.averaging]
        return weights, shares

    def reweighted(
        self,
        selection: Selection,
        *,
        available: npt.ArrayLike | None = None,
        unavailable: npt.ArrayLike | None = None,
    ) -> Floats:
        if not selection.clients.size or self._settings.averaging not in ("sizes", "scaled-sizes"):
            return selection.weights
        return self._averaged(selection.clients, self._presence(available, unavailable))[0]

    def finalize(self, selection: Selection, responded: npt.ArrayLike) -> Floats:
        """Return (S,) the weights after the replies; 0 for the selected clients that did not respond.

        With the schemes in `sum_to_one`, the weights of the clients that responded are divided by their sum.
        With the others they are multiplied by S/S' for S' responses, see `Selector.finalize`; so "plain"
        gives 1/S'.
        """
        if self._settings.averaging not in self.sum_to_one:
            return super().finalize(selection, responded)
        answered = checks.bools("responded", responded, selection.clients.size)
        weights = np.where(answered, selection.weights, 0.0)
        return weights / (weights.sum() or 1.0)

    def _first_draw(self, available: Presence) -> Floats:
        """Return (n,) the probability of each available client in the first draw; by default by size."""
        sizes = available.of(self.client_sizes)
        p: Floats = sizes / sizes.sum()
        return p

    @abstractmethod
    def _choose(self, context: RoundContext) -> tuple[Ints, Floats]:
        """Return (at most K distinct available clients, their probabilities in the first draw)."""


_NOT_REPORTED = -np.inf  # instead of a loss: the client was selected, and has never reported a finite loss


class LastLossSelector(PlainMeanSelector):
    """Remembers the mean loss of each client's last local training.

    The loss of a client that was never selected is infinite. A client that was selected, and has never
    reported a finite loss, has the median of the known losses: with an infinite loss it would be selected in
    every round.

    The loss comes with the reply to a training message, so it costs no extra message. With dropout, such a
    training loss is larger than an evaluation loss, so do not compare the two.
    """

    report_used = "train-loss"
    state_axes = Selector.state_axes | {"losses": ("clients",)}

    def _initial_state(self) -> dict[str, Array]:
        return super()._initial_state() | {"losses": np.full(self.num_clients, np.inf)}

    def _last_losses(self) -> Floats:
        """Return (M,) the losses by which clients are selected."""
        return self._cached("last_losses", ("losses",), self._compute_last_losses)

    def _compute_last_losses(self) -> Floats:
        losses: Floats = self._array("losses")
        unknown = losses == _NOT_REPORTED
        if not unknown.any():
            return losses
        known = losses[np.isfinite(losses)]
        # The median of two numbers is half their sum, which must not overflow.
        return np.where(unknown, 2 * np.median(known / 2) if known.size else np.inf, losses)

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        clients, _, reported = self._usable(selection, feedback, feedback.losses)
        losses = self._array("losses").copy()
        losses[clients] = reported
        asked = selection.clients[self._registered[selection.clients]]
        losses[asked[losses[asked] == np.inf]] = _NOT_REPORTED
        return {"losses": losses}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        return {"losses": self._extended("losses", registered.size, np.inf)}
