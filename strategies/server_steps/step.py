"""A Flower strategy as the server's step: it is copied, shown a round in its view, and its memory kept.

What goes with which selector is in `composition`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from ..selectors import selector_type
from .compatibility import SERVER_SIDE, View, least_replies, refusal, view_of

if TYPE_CHECKING:
    from flwr.serverapp import Grid
    from numpy.typing import NDArray

    from ..rounds.aggregation import Arrays
    from ..rounds.stages import Outcome

_NORM_BIT = "norm_bit"  # what Flower's adaptive clipping on clients calls its bit
_ROUNDING = 1e-3
"""By how much the length of an update that a client clipped to C may differ from C, as a share of it."""
_SMALLEST_MOVE = 1e-12  # of one entry, where Flower divides by the length of an update


@dataclass(frozen=True)
class Contribution:
    """What one client that answered contributes to a step.

    Attributes
    ----------
    arrays : mapping of str to array
        w_m. It may have been shortened, but not by what others sent where there is differential privacy.
    weight : float
        c_m, once it is known who answered.
    count : int
        How often it was drawn.
    loss : float
        Its mean training loss; NaN = not reported.
    """

    arrays: Mapping[str, NDArray[Any]]
    weight: float
    count: int = 1
    loss: float = nan


def contributions_of(outcome: Outcome) -> Iterator[Contribution]:
    """Yield what each client that is part of a round's step contributes, in selection order."""
    record = outcome.record
    for i, sent in outcome.client_models():
        counts, losses = record.selection.counts, record.feedback.losses
        yield Contribution(sent, float(record.weights[i]), int(counts[i]), float(losses[i]))


class Step(NamedTuple):
    """The new model, in the types of the old one; None and the reason if the model stays as it is."""

    arrays: Arrays | None
    skipped: str = ""


class ServerStep:
    """Lets a Flower strategy take the step of each round.

    Parameters
    ----------
    server_strategy : Strategy
        It is copied; all sampling settings but ``fraction_evaluate`` are overruled, and so is the
        ``num_sampled_clients`` of differential privacy.
    selector : str
        The selector's name.
    settings : mapping, optional
        The selector's own.
    clients_per_round : int, optional
        K.
    variates : str, optional
        "fedvarp" or "scaffold", if the server keeps variates of clients.

    Raises
    ------
    TypeError
        If the strategy is of a kind that cannot be the step.
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
        """Its numbers and names as they were given, by attribute: what a resumed run must not change."""
        strategy: Any = copy.copy(server_strategy)
        base = strategy
        if self.view is View.ESTIMATES:
            base = strategy.strategy = copy.copy(strategy.strategy)
        self.strategy: Any = strategy
        self.base: FedAvg = base
        """The strategy that builds the messages: the inner one of differential privacy."""
        self.fraction_evaluate = self.base.fraction_evaluate
        self.train_metrics_aggr_fn = self.base.train_metrics_aggr_fn
        """Averages what clients measured; not asked in `step`, where there may be no clients' metrics."""
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

    @property
    def needs_each(self) -> bool:
        """Whether `step` needs the contributions of single clients; else the aggregate is enough."""
        return self.view is not View.AGGREGATE

    def configure(self, round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """Return the strategy's TRAIN messages, one to each node of the grid.

        Parameters
        ----------
        round : int
            The round.
        arrays : ArrayRecord
            w_t, which some strategies remember.
        config : ConfigRecord
            Of the caller; stays as it is.
        grid : Grid
            Shows the chosen nodes only.

        Raises
        ------
        RuntimeError
            If the strategy, one's own, does not send one message to each of them.
        PrivacyBudgetExhausted
            If an accountant's ``max_epsilon`` would be exceeded.
        """
        nodes = sorted(grid.get_node_ids())
        if not nodes:
            return []
        if isinstance(self.strategy, flower.FedAvgM):
            self.strategy.current_arrays = arrays  # it would go on from its own, unrounded ones
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
            (S,) of those who answered, in selection order; looked at if `needs_each`.
        messages : sequence of Message
            What was sent out in this round, at least one: its replies are answers to them.

        Returns
        -------
        Step
            If its arrays are None, the strategy's memory is as before, too.
        """
        memory = self._memory()
        if type(self.strategy) in (FedAvg, flower.FedProx):
            return Step(aggregate)  # their average of one reply is that reply
        if self.view is View.AGGREGATE:
            stepped = self._ask(round, [self._reply(messages[0], aggregate)])
        else:
            shown = list(contributions)
            least = least_replies(self.strategy)
            if isinstance(self.strategy, flower.QFedAvg):
                shown = [each for each in shown if isfinite(each.loss) and each.loss >= 0]
            if len(shown) < least:
                return Step(None, f"{len(shown)} replies that {_name(self.strategy)} can use: needs {least}")
            if self.view is View.ESTIMATES:
                stepped = self._private(round, arrays, shown, messages)
            else:
                copies = self.view is View.DRAWS
                replies = [
                    self._reply(messages[0], each.arrays, weight=1 if copies else each.count, loss=each.loss)
                    for each in shown
                    for _ in range(each.count if copies else 1)
                ]
                stepped = self._ask(round, replies)
        moved = None if stepped is None else _as_types_of(arrays, stepped)
        if moved is None:
            for name, value in memory.items():  # replaced in a step, never written into
                setattr(self.strategy, name, value)
            return Step(None, f"the step of {_name(self.strategy)} is not finite")
        return Step(moved)

    def _ask(self, round: int, replies: list[Message]) -> dict[str, NDArray[Any]] | None:
        stepped, _ = self.strategy.aggregate_train(round, replies)
        return None if stepped is None else {name: array.numpy() for name, array in stepped.items()}

    def _reply(
        self, message: Message, arrays: Mapping[str, NDArray[Any]], *, weight: int = 1, **metrics: float
    ) -> Message:
        """Return a reply as a client would send it; some strategies take its records apart."""
        said: dict[str, Any] = {self.base.weighted_by_key: weight}
        if isinstance(self.strategy, flower.QFedAvg):
            said[self.strategy.train_loss_key] = metrics["loss"]
        elif _NORM_BIT in metrics:
            said[_NORM_BIT] = int(metrics[_NORM_BIT])
        content = RecordDict({self.base.arrayrecord_key: _record(arrays), "metrics": MetricRecord(said)})
        return Message(content, reply_to=message)

    # --- differential privacy ----------------------------------------------------------------------------

    def _private(
        self, round: int, arrays: Arrays, shown: list[Contribution], messages: Sequence[Message]
    ) -> dict[str, NDArray[Any]] | None:
        """Step with noise for what one client can change: z C times its largest share of the sum.

        Clipped on the server, that is each one's length after the rescaling: a share of 1/S. Clipped on
        clients, the rescaling comes after: the share is c_m. Flower's noise is for 1/S, and for the C that
        its adaptive clipping chose for the *next* round; what lacks is added here. A client that says it
        clipped is not believed: its update is clipped again.

        The noise is the operating system's, not a function of the seed: who knows the seed must not know it.
        """
        clips_here = isinstance(self.strategy, SERVER_SIDE)
        # Flower clips in place, which leaves arrays without dimensions as they are: they get one.
        arrays = {name: np.atleast_1d(array) for name, array in arrays.items()}
        if clips_here:
            self.strategy.current_arrays = _record(arrays)
        bound = float(self.strategy.clipping_norm)
        size = len(shown)
        largest_share = 1 / size if clips_here else max(each.weight for each in shown)
        replies = []
        for each in shown:
            update = {
                name: np.subtract(each.arrays[name], array, dtype=np.result_type(array, np.float32))
                for name, array in arrays.items()
            }
            scale, length = size * each.weight, _length(update)
            if not clips_here and length > bound:
                scale *= bound / length
            estimate = {name: array + scale * update[name] for name, array in arrays.items()}
            if clips_here:
                _move_apart(estimate, arrays)
            clipped = length >= bound * (1 - _ROUNDING)
            replies.append(self._reply(messages[0], estimate, **{_NORM_BIT: clipped}))
        self.strategy.num_sampled_clients = size
        stepped = self._ask(round, replies)
        if stepped is None:
            return None
        noise = self.strategy.noise_multiplier
        due = noise * bound * largest_share
        added = noise * self.strategy.clipping_norm / size
        if due > added * (1 + 1e-9):
            rng = np.random.default_rng()
            lacking = sqrt(due**2 - added**2)
            stepped = {
                name: (array + rng.normal(0, lacking, array.shape)).astype(array.dtype)
                for name, array in stepped.items()
            }
        return stepped

    # --- what the strategy remembers -----------------------------------------------------------------------

    def _memory(self) -> dict[str, Any]:
        """Return what a strategy goes on from in the next round besides the model, by attribute."""
        if isinstance(self.strategy, flower.FedAvgM):
            names: tuple[str, ...] = ("momentum_vector",)
        elif hasattr(self.strategy, "m_t"):  # FedOpt and what descends from it
            names = ("m_t", "v_t")
        elif hasattr(self.strategy, "clip_norm_lr"):  # adaptive clipping
            names = ("clipping_norm",)
        else:
            names = ()
        return {name: getattr(self.strategy, name) for name in names}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of all that the strategy remembers from round to round, as arrays by name.

        Momentum is ``momentum_vector/NUMBER``, Adam's moments ``m_t/PARAMETER`` and ``v_t/PARAMETER``, the
        adaptive ``clipping_norm`` a number, what an accountant counted JSON. One's own strategy that has a
        `state_dict` adds ``own/…``. The model is not in it: a strategy is given it anew in each round.

        The noise of differential privacy is drawn anew after a resume, since a file that tells it would tell
        what it hides.
        """
        state = {"server_strategy": _text(_name(self.strategy))}
        for name, value in self._memory().items():
            if isinstance(value, dict):
                state |= {f"{name}/{key}": np.array(array) for key, array in value.items()}
            elif isinstance(value, list):
                state |= {f"{name}/{i}": np.array(array) for i, array in enumerate(value)}
            elif value is not None:
                state[name] = np.array(value)
        accountant = getattr(self.strategy, "accountant", None)
        if accountant is not None:
            state["accountant"] = _text(json.dumps(accountant.state_dict()))
        if hasattr(self.strategy, "state_dict"):
            own = self.strategy.state_dict()
            state |= {f"own/{name}": np.array(array) for name, array in own.items()}
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a saved state.

        Raises
        ------
        ValueError
            If it is another strategy's.
        """
        saved = np.asarray(state.get("server_strategy", np.empty(0, np.uint8))).tobytes().decode()
        if saved != _name(self.strategy):
            raise ValueError(f"state['server_strategy'] = {saved!r}: must be {_name(self.strategy)!r}")
        memory = self._memory()
        accountant = getattr(self.strategy, "accountant", None)
        known = {"server_strategy", *memory}
        known |= {"accountant"} if accountant is not None else set()
        known |= {"own"} if hasattr(self.strategy, "load_state_dict") else set()
        for key in state:
            if key.split("/")[0] not in known:
                raise ValueError(f"state has {key!r}: must be one of {', '.join(sorted(known))}")
        if accountant is not None:
            accountant.load_state_dict(json.loads(np.asarray(state["accountant"]).tobytes()))
        for name in memory:
            parts = _below(state, name)
            if name == "momentum_vector":
                value: Any = [parts[str(i)] for i in range(len(parts))] or None
            else:
                value = float(state[name]) if name in state else parts or None
            setattr(self.strategy, name, value)
        if "own" in known:
            self.strategy.load_state_dict(_below(state, "own"))


def _settings_of(server_strategy: Strategy) -> dict[str, Any]:
    """Return what decides the steps; whom to sample and to evaluate is not among it."""
    settings: dict[str, Any] = {}
    for name, value in vars(server_strategy).items():
        if isinstance(value, Strategy):
            settings |= {f"{name}.{inner}": each for inner, each in _settings_of(value).items()}
        elif isinstance(value, bool | int | float | str) and not name.startswith(("_", "fraction_", "min_")):
            settings[name] = value
    return settings


def _name(server_strategy: Strategy) -> str:
    return type(server_strategy).__name__


def _record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def _text(text: str) -> NDArray[Any]:
    """Return text as bytes, which every array format can hold."""
    return np.frombuffer(text.encode(), dtype=np.uint8).copy()


def _below(state: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    """Return copies of the arrays whose key begins with ``name/``, by the rest of it."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): np.array(a) for key, a in state.items() if key.startswith(prefix)}


def _length(update: Mapping[str, NDArray[Any]]) -> float:
    """Return the L2 norm over all arrays."""
    return sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in update.values()))


def _move_apart(estimate: Arrays, arrays: Arrays) -> None:
    """See to it that a reply differs from w: Flower divides by the length of the difference.

    The length is taken as Flower does, in the array's own type, in which squares of small numbers vanish.
    """
    if any(float(np.linalg.norm((estimate[name] - array).ravel())) ** 2 for name, array in arrays.items()):
        return
    name = next((name for name, array in arrays.items() if array.size), None)
    if name is not None:
        entry = estimate[name].reshape(-1)[:1]  # a view
        entry += max(_SMALLEST_MOVE, 4 * float(np.finfo(entry.dtype).eps) * abs(float(entry[0])))


def _as_types_of(arrays: Arrays, stepped: Mapping[str, NDArray[Any]]) -> Arrays | None:
    """Return the new model in the old one's types; None if it is not finite."""
    moved = {}
    for name, array in arrays.items():
        new = stepped[name].reshape(array.shape)
        if not np.isfinite(new).all():
            return None
        with np.errstate(over="ignore"):  # looked at below
            # Averaging made floats of counters; they are rounded, not cut off.
            moved[name] = (np.rint(new) if array.dtype.kind in "iub" else new).astype(array.dtype)
        if not np.isfinite(moved[name]).all():
            return None
    return moved
