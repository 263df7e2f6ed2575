"""A Flower strategy as the simulator's server step: `ServerStep` on a grid with one node."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord

from strategies.flower.arrays import to_record
from strategies.server_steps.replies import contributions_of
from strategies.server_steps.step import ServerStep

from .grid import InProcessGrid

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy
    from numpy.typing import NDArray

    from strategies.rounds.stages import Outcome
    from tasks.base import Arrays


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the lines that Flower's strategies log in each round: a simulation has thousands of rounds."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)


class FlowerStep:
    """Lets a Flower strategy take the server step of a round. The arguments are those of `ServerStep`."""

    def __init__(
        self,
        server_strategy: Strategy,
        selector: str,
        settings: Mapping[str, Any],
        *,
        clients_per_round: int,
        variates: str | None,
    ) -> None:
        self._step = ServerStep(
            server_strategy, selector, settings, clients_per_round=clients_per_round, variates=variates
        )
        self._grid = InProcessGrid(lambda message, _: message, [{}])

    @property
    def is_private(self) -> bool:
        """Whether the strategy adds the noise of differential privacy."""
        return self._step.is_private

    @property
    def proximal_mu(self) -> float:
        """μ that the strategy sends to clients, as Flower's FedProx does; 0 if it sends none."""
        return float(getattr(self._step.base, "proximal_mu", 0.0))

    def step(self, round: int, arrays: Arrays, outcome: Outcome) -> tuple[Arrays | None, str]:
        """Return the new model and ""; or None and the reason why there is no new model.

        Parameters
        ----------
        round : int
            The round.
        arrays : Arrays
            w_t, the model before the step.
        outcome : Outcome
            The outcome of a round that is not skipped.
        """
        assert outcome.arrays is not None
        with _quiet():
            messages = self._step.configure(round, to_record(dict(arrays)), ConfigRecord(), self._grid)
            each = contributions_of(outcome)
            return self._step.step(round, arrays, outcome.arrays, each, messages)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of the arrays that the strategy keeps between rounds."""
        return self._step.state_dict()

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a state that `state_dict` returned."""
        self._step.load_state_dict(state)
