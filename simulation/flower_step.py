"""A Flower strategy as the simulator's server step; the one of `strategies.server_step`, shown one node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord

from strategies.server_step import Contribution, ServerStep
from strategies.wire import to_record

from .grid import InProcessGrid

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy
    from numpy.typing import NDArray

    from strategies.round import Outcome
    from tasks.base import Arrays


class FlowerStep:
    """Lets a Flower strategy step from a round's aggregate; arguments are those of `ServerStep`."""

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

    def step(self, round: int, arrays: Arrays, outcome: Outcome) -> tuple[Arrays | None, str]:
        """Return the new model and ""; or None, and why there is none.

        Parameters
        ----------
        round : int
            The round.
        arrays : Arrays
            w_t.
        outcome : Outcome
            What the round came to; it is not void.
        """
        assert outcome.arrays is not None
        messages = self._step.configure(round, to_record(dict(arrays)), ConfigRecord(), self._grid)
        record = outcome.record
        contributions = (
            Contribution(
                model,
                float(record.weights[i]),
                int(record.selection.counts[i]),
                float(record.feedback.losses[i]),
            )
            for i, model in outcome.answers()
        )
        return self._step.step(round, arrays, outcome.arrays, contributions, messages)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what the strategy remembers from round to round."""
        return self._step.state_dict()

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from it."""
        self._step.load_state_dict(state)
