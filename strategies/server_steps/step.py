"""ServerStep: lets a copy of a Flower strategy take the server step of each round.

This module handles strategies that step from the average. `robust_aggregation` and `differential_privacy`
handle strategies that see single replies. `compatibility` determines which strategy may be used with which
selector.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy
from numpy.typing import NDArray

from ..rounds.aggregation import Arrays
from ..selectors import selector_type
from . import differential_privacy, robust_aggregation, strategy_state
from .compatibility import View, refusal, view_of
from .replies import Asked, Contribution


class Step(NamedTuple):
    """The new model, in the dtypes of the old model; or None, and the reason why the model is unchanged."""

    arrays: Arrays | None
    skipped: str = ""


class ServerStep:
    """Lets a Flower strategy take the step of each round.

    A copy of the strategy takes the steps. Its sampling settings are ignored, except ``fraction_evaluate``,
    and so is the ``num_sampled_clients`` of differential privacy. The other arguments are those of `refusal`,
    and refused combinations raise an error.

    ``view``: the form in which the strategy sees the replies of a round. ``settings``: the strategy's
    settings as given, by attribute. A resume must not change them. ``strategy``: the copy that takes the
    steps. ``base``: the strategy that builds the messages: the inner strategy if ``strategy`` is one of
    differential privacy, and otherwise ``strategy`` itself. ``fraction_evaluate``: the share of the available
    clients that evaluate the model, from 0 to 1. ``train_metrics_aggr_fn``: the function that averages the
    clients' metrics. `step` does not call it, because the replies that `step` makes have no metrics of
    clients.
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
        # Clients are selected elsewhere. The strategy uses all nodes of the grid and waits for no other node.
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

        ``arrays`` is w_t, which some strategies remember. The grid holds only the nodes of the selected
        clients.

        Raises a RuntimeError if the strategy does not make exactly one message for each of these nodes.
        Raises a PrivacyBudgetExhausted if the ``max_epsilon`` of the strategy's privacy accountant would be
        exceeded.
        """
        nodes = sorted(grid.get_node_ids())
        if not nodes:
            return []
        if isinstance(self.strategy, flower.FedAvgM):
            self.strategy.current_arrays = arrays  # otherwise it would step from its own, unrounded model
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
        """Let the strategy take its step.

        If the strategy sees single replies, all S models are in memory at once, because Flower's strategies
        need all replies at the same time.

        ``arrays`` is w_t, and ``aggregate`` is w_t + Δ. ``contributions`` (S,) are those of the clients with
        a usable reply, in the order of the selection; they are not used if the view is the aggregate. The
        replies for the strategy are made as answers to the first of the ``messages`` of this round. If the
        result has no arrays, what the strategy remembers has not changed either
        (`strategy_state.Remembered`), except for a privacy accountant.
        """
        if type(self.strategy) in (FedAvg, flower.FedProx):
            return Step(aggregate)  # these strategies take the mean, and the mean of one reply is this reply
        before = strategy_state.remembered(self.strategy)
        asked = Asked(self.strategy, self.base)
        if self.view is View.AGGREGATE:
            stepped = asked.step(round, [asked.reply(messages[0], aggregate)])
        else:
            shown = robust_aggregation.usable(self.strategy, list(contributions))
            least = robust_aggregation.least_replies(self.strategy)
            if len(shown) < least:
                return Step(None, f"{len(shown)} replies that {_name(self.strategy)} can use: needs {least}")
            if self.view is View.ESTIMATES:
                stepped = differential_privacy.step(asked, round, arrays, shown, messages[0])
            else:
                stepped = robust_aggregation.step(
                    asked, round, shown, messages[0], copies=self.view is View.DRAWS
                )
        moved = None if stepped is None else _as_types_of(arrays, stepped)
        if moved is None:
            strategy_state.restore(self.strategy, before)
            return Step(None, f"the step of {_name(self.strategy)} is not finite")
        return Step(moved)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return strategy_state.state_dict(self.strategy)

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        strategy_state.load_state_dict(self.strategy, state)


def _settings_of(server_strategy: Strategy) -> dict[str, Any]:
    """Return the settings that affect the steps, without the settings of sampling and evaluation."""
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
    """Return the new model in the dtypes of the old model `arrays`; None if it is not finite."""
    moved = {}
    for name, array in arrays.items():
        new = stepped[name].reshape(array.shape)
        if not np.isfinite(new).all():
            return None
        with np.errstate(over="ignore"):  # an overflow is detected below
            # Averaging turned integer arrays into floats. These floats are rounded, not truncated.
            moved[name] = (np.rint(new) if array.dtype.kind in "iub" else new).astype(array.dtype)
        if not np.isfinite(moved[name]).all():
            return None
    return moved
