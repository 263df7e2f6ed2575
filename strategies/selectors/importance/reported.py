"""Importance sampling with full information: all available clients report their scores before each round."""

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
    """Draws among the available clients that report, by scores made of their reports; for experiments.

    A client that does not answer is not available. Nothing is remembered, so `probabilities` holds what is
    known before the reports, p = λ with the floor.
    """

    @abstractmethod
    def _reported_scores(self, reports: Mapping[str, Floats]) -> Floats:
        """Return (n,) the candidates' scores; not finite where a client did not answer."""

    def _select(self, context: RoundContext) -> Selection:
        clients, scores = context.answered(self._reported_scores(context.reports))
        if not checks.ascending(clients):  # the order of the poll does not matter
            order = np.argsort(clients)
            clients, scores = clients[order], scores[order]
        if clients.size <= context.k:
            return super()._select(replace(context, available=self._presence(clients, None)))
        sizes = self.client_sizes if clients.size == self.num_clients else self.client_sizes[clients]
        draw = self._draw(self._floored(sizes, scores), context.k, context.rng("select"))
        weights = draw.importance * (sizes[draw.clients] / sizes.sum())
        return Selection.of_draw(draw._replace(clients=clients[draw.clients]), weights)

    def _scores(self) -> Floats:
        return np.ones(self.num_clients)
