"""Importance sampling in which all available clients are polled for their scores before each selection."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...numerics.arrays import Floats
from .. import checks
from ..context import RoundContext
from ..records import Selection
from .importance import ImportanceSelector


class ReportedSelector(ImportanceSelector):
    """Draws from the available clients that answer the poll; their reports give the scores. For experiments.

    All available clients train to make their reports. The selected clients then train again, so a round costs
    more than a round of `full`.

    A client that does not answer the poll counts as unavailable. The selector remembers no reports, so
    `probabilities` is the distribution without reports: p = λ with the floor.
    """

    @abstractmethod
    def _reported_scores(self, reports: Mapping[str, Floats]) -> Floats:
        """Return (n,) the candidates' scores; NaN or infinite for a candidate that did not answer."""

    def _select(self, context: RoundContext) -> Selection:
        clients, scores = context.answered(self._reported_scores(context.reports))
        if not checks.ascending(clients):  # so that the order of the poll has no effect
            order = np.argsort(clients)
            clients, scores = clients[order], scores[order]
        if clients.size <= context.k:
            return super()._select(replace(context, available=self._presence(clients, None)))
        sizes = self.client_sizes if clients.size == self.num_clients else self.client_sizes[clients]
        q, rng = self._floored(sizes, scores), context.rng("select")
        draw = self._drawn(q, clients.__getitem__, context.k, rng)
        return Selection.of_draw(draw, draw.importance * (self.client_sizes[draw.clients] / sizes.sum()))

    def _scores(self) -> Floats:
        return np.ones(self.num_clients)
