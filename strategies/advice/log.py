"""The log of a run: what an estimate needs to know about each round."""

from dataclasses import dataclass

import numpy as np

from ..numerics.arrays import Floats, Ints
from ..selectors import Feedback, Selection


@dataclass(frozen=True, eq=False)
class LoggedRound:
    """A round that changed the model, and the clients in it whose norm is known."""

    number: int  #: >= 1
    sizes: Floats  #: (M,) of all known clients, > 0. A later round may have more clients, which come last.
    absent: Ints  #: the known clients that could not be selected
    everyone: bool  #: whether all clients that could be selected were selected
    clients: Ints  #: (S,) the selected clients whose norm is known
    counts: Ints  #: (S,) how often each of them was drawn
    probabilities: Floats  #: (S,) see `Selection`
    #: (S,) W_m, corrected for the clients whose norm is not known: for any fixed x, sum_m W_m x_m is an
    #: unbiased estimate of the sum of x_m over the selectable clients
    importance: Floats
    norms: Floats  #: (S,) ||g_m||, finite

    @classmethod
    def of(
        cls, number: int, sizes: Floats, selection: Selection, norms: Floats, absent: Ints
    ) -> "LoggedRound":
        """Return the round of a selection; `norms` (S,) are NaN for the clients that did not reply."""
        known = np.isfinite(norms)
        scale = known.size / max(1, int(np.count_nonzero(known)))
        return cls(
            number,
            sizes,
            absent,
            selection.clients.size == sizes.size - absent.size,
            selection.clients[known],
            selection.counts[known],
            selection.probabilities[known],
            selection.importance[known] * scale,
            norms[known],
        )

    @property
    def shares(self) -> Floats:
        """(M,) λ: each selectable client's share of the selectable clients' data; 0 for absent clients."""
        sizes = self.sizes.copy()
        sizes[self.absent] = 0
        shares: Floats = sizes / sizes.sum()
        return shares

    def restricted(self, p: Floats) -> Floats:
        """Return the distribution p (M,), restricted to the selectable clients and renormalised."""
        p = p.copy()
        p[self.absent] = 0
        restricted: Floats = p / p.sum()
        return restricted

    def observed(self) -> tuple[Selection, Feedback]:
        """Return the selection and the feedback for `Selector.update`; the feedback holds only norms."""
        weights = self.importance * self.shares[self.clients]
        selection = Selection(self.clients, self.counts, self.probabilities, self.importance, weights)
        return selection, feedback_of(self.norms)

    def dense_norms(self) -> Floats:
        """Return (M,) the norms of all clients; NaN for unknown ones."""
        norms = np.full(self.sizes.size, np.nan)
        norms[self.clients] = self.norms
        return norms


def feedback_of(norms: Floats) -> Feedback:
    """Return feedback that holds only the norms (S,); they are NaN for clients that did not reply."""
    missing = np.full(norms.size, np.nan)
    return Feedback(norms, missing, missing, missing, np.isfinite(norms))
