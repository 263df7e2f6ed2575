"""A Flower strategy as the server step: a copy of it is shown each round in its view, and its memory kept.

Strategies that step from the average are served here; those that see single replies in `votes` and `private`.
`compatibility` says which strategy goes with which selector.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from ..selectors import selector_type
from . import memory, private, votes
from .compatibility import View, refusal, view_of
from .replies import Asked, Contribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flwr.app import ArrayRecord, Message
    from flwr.serverapp import Grid
    from numpy.typing import NDArray

    from ..rounds.aggregation import Arrays


class Step(NamedTuple):
    """The new model, in the types of the old one; or None and the reason why the model stays as it is."""

    arrays: Arrays | None
    skipped: str = ""


class ServerStep:
    """Lets a Flower strategy take the step of each round.

    Parameters
    ----------
    server_strategy : Strategy
        It is copied. Its sampling settings are ignored, except ``fraction_evaluate``, and so is the
        ``num_sampled_clients`` of differential privacy.
    selector : str
        The selector's name.
    settings : mapping, optional
        The selector's own settings.
    clients_per_round : int, optional
        K.
    variates : str, optional
        "fedvarp" or "scaffold", if the server keeps variates of clients.

    Attributes
    ----------
    view : View
        What the strategy is shown.
    settings : dict
        The strategy's numbers and names as given, by attribute: what a resumed run must not change.
    strategy : Strategy
        The copy that takes the steps.
    base : FedAvg
        The strategy that builds the messages: the inner one of differential privacy, else ``strategy``.
    fraction_evaluate : float
        The share of clients that evaluate.
    train_metrics_aggr_fn : callable
        Averages the clients' metrics. `step` does not call it, since the replies there may hold none.

    Raises
    ------
    TypeError
        If the strategy is of a kind that cannot take the step.
    ValueError
        If it does not go with the selector; the text says why, see `refusal`.
    """

    def __init__(
        self,
        server_strategy: Strategy,
        selector: str,
        settings: Mapping[str, Any] | None = None,
        *,
        clients_per_round: int | None = None,
        variates: str | None = None,
    ) -> None:
        self.view = view_of(server_strategy)
        reason = refusal(
            server_strategy,
            selector_type(selector),
            settings,
            clients_per_round=clients_per_round,
            variates=variates,
        )
        if reason:
            raise ValueError(
                f"server_strategy = {_name(server_strategy)}() with selector = {selector!r}: {reason}"
            )
        self.settings = _settings_of(server_strategy)
        strategy: Any = copy.copy(server_strategy)
        base = strategy
        if self.view is View.ESTIMATES:
            base = strategy.strategy = copy.copy(strategy.strategy)
        self.strategy: Any = strategy
        self.base: FedAvg = base
        self.fraction_evaluate = self.base.fraction_evaluate
        self.train_metrics_aggr_fn = self.base.train_metrics_aggr_fn
        # All sampling is done elsewhere; the strategy takes every node that it is shown and waits for none.
        self.base.train_metrics_aggr_fn = lambda contents, key: MetricRecord()
        self.base.fraction_train = 1.0
        self.base.fraction_evaluate = 1.0 if self.fraction_evaluate else 0.0
        self.base.min_train_nodes = 0
        self.base.min_evaluate_nodes = 0
        self.base.min_available_nodes = 0

    @property
    def is_private(self) -> bool:
        """Whether the strategy adds the noise of differential privacy."""
        return self.view is View.ESTIMATES

    def configure(self, round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """Return the strategy's TRAIN messages, one to each node of the grid.

        Parameters
        ----------
        round : int
            The round.
        arrays : ArrayRecord
            w_t, which some strategies remember.
        config : ConfigRecord
            Of the caller; not changed.
        grid : Grid
            Shows the selected nodes only.

        Raises
        ------
        RuntimeError
            If an own strategy does not send exactly one message to each of them.
        PrivacyBudgetExhausted
            If an accountant's ``max_epsilon`` would be exceeded.
        """
        nodes = sorted(grid.get_node_ids())
        if not nodes:
            return []
        if isinstance(self.strategy, flower.FedAvgM):
            self.strategy.current_arrays = arrays  # else it continues from its own, unrounded ones
        if self.view is View.ESTIMATES:
            self.strategy.num_sampled_clients = len(nodes)
        messages = list(self.strategy.configure_train(round, arrays, ConfigRecord(dict(config)), grid))
        addressed = sorted(message.metadata.dst_node_id for message in messages)
        if addressed != nodes:
            raise RuntimeError(
                f"{_name(self.strategy)}.configure_train wrote to {len(addressed)} nodes: must write once to "
                f"each of the {len(nodes)} nodes that it was shown"
            )
        return messages

    def step(
        self,
        round: int,
        arrays: Arrays,
        aggregate: Arrays,
        contributions: Iterable[Contribution],
        messages: Sequence[Message],
    ) -> Step:
        """Let the strategy step.

        Strategies that see single replies hold all of them at once, S models: none of Flower's folds them one
        after another.

        Parameters
        ----------
        round : int
            The round, as in `configure`.
        arrays : dict of arrays
            w_t.
        aggregate : dict of arrays
            w_t + Δ.
        contributions : iterable of Contribution
            (S,) of the clients that replied, in selection order; used unless the view is the aggregate.
        messages : sequence of Message
            The messages of this round, at least one: made-up replies answer them.

        Returns
        -------
        Step
            If its arrays are None, the strategy's memory is as before, too.
        """
        if type(self.strategy) in (FedAvg, flower.FedProx):
            return Step(aggregate)  # their average of one reply is that reply
        remembered = memory.values(self.strategy)
        asked = Asked(self.strategy, self.base)
        if self.view is View.AGGREGATE:
            stepped = asked.step(round, [asked.reply(messages[0], aggregate)])
        else:
            shown = votes.usable(self.strategy, list(contributions))
            least = votes.least_replies(self.strategy)
            if len(shown) < least:
                return Step(None, f"{len(shown)} replies that {_name(self.strategy)} can use: needs {least}")
            if self.view is View.ESTIMATES:
                stepped = private.step(asked, round, arrays, shown, messages[0])
            else:
                stepped = votes.step(asked, round, shown, messages[0], copies=self.view is View.DRAWS)
        moved = None if stepped is None else _as_types_of(arrays, stepped)
        if moved is None:
            memory.restore(self.strategy, remembered)
            return Step(None, f"the step of {_name(self.strategy)} is not finite")
        return Step(moved)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of everything that the strategy remembers, see `memory`."""
        return memory.state_dict(self.strategy)

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a saved state.

        Raises
        ------
        ValueError
            If it is another strategy's.
        """
        memory.load_state_dict(self.strategy, state)


def _settings_of(server_strategy: Strategy) -> dict[str, Any]:
    """Return the settings that decide the steps; those of sampling and evaluation are left out."""
    settings: dict[str, Any] = {}
    for name, value in vars(server_strategy).items():
        if isinstance(value, Strategy):
            settings |= {f"{name}.{inner}": each for inner, each in _settings_of(value).items()}
        elif isinstance(value, bool | int | float | str) and not name.startswith(("_", "fraction_", "min_")):
            settings[name] = value
    return settings


def _name(server_strategy: Strategy) -> str:
    return type(server_strategy).__name__


def _as_types_of(arrays: Arrays, stepped: Mapping[str, NDArray[Any]]) -> Arrays | None:
    """Return the new model in the old one's types; None if it is not finite."""
    moved = {}
    for name, array in arrays.items():
        new = stepped[name].reshape(array.shape)
        if not np.isfinite(new).all():
            return None
        with np.errstate(over="ignore"):  # checked below
            # Averaging turned counters into floats; they are rounded, not truncated.
            moved[name] = (np.rint(new) if array.dtype.kind in "iub" else new).astype(array.dtype)
        if not np.isfinite(moved[name]).all():
            return None
    return moved
