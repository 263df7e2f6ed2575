"""A Flower strategy as the server's step: what it is shown of a round, with which selectors, and its memory.

``python -m strategies.composition`` prints which strategy works with which selector, and why not.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from math import isfinite, nan, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from .selectors import Selector, available, selector_type

if TYPE_CHECKING:
    from flwr.serverapp import Grid
    from numpy.typing import NDArray

    from .aggregation import Arrays


class View(Enum):
    """What a strategy is shown of a round's replies."""

    AGGREGATE = "the aggregate w + Δ, as its only reply"
    DRAWS = "each reply as it came, as often as its client was drawn"
    CLIENTS = "each reply as it came; ``num-examples`` is how often its client was drawn"
    ESTIMATES = "w + S c_m (w_m - w) of each of S replies, whose plain mean is w + Δ"


_SERVER_SIDE = (
    flower.DifferentialPrivacyServerSideFixedClipping,
    flower.DifferentialPrivacyServerSideAdaptiveClipping,
)
_CLIENT_SIDE = (
    flower.DifferentialPrivacyClientSideFixedClipping,
    flower.DifferentialPrivacyClientSideAdaptiveClipping,
)
_KRUMS = (flower.Krum, flower.MultiKrum)
_VIEWS: dict[type[Strategy], View] = {
    FedAvg: View.AGGREGATE,
    flower.FedAvgM: View.AGGREGATE,
    flower.FedAdam: View.AGGREGATE,
    flower.FedYogi: View.AGGREGATE,
    flower.FedAdagrad: View.AGGREGATE,
    flower.FedProx: View.AGGREGATE,
    flower.FedMedian: View.DRAWS,
    flower.FedTrimmedAvg: View.DRAWS,
    flower.QFedAvg: View.DRAWS,
    flower.Krum: View.CLIENTS,
    flower.MultiKrum: View.CLIENTS,
    flower.Bulyan: View.CLIENTS,
    **dict.fromkeys((*_SERVER_SIDE, *_CLIENT_SIDE), View.ESTIMATES),
}
_TREES = (flower.FedXgbBagging, flower.FedXgbCyclic)
_NORM_BIT = "norm_bit"  # what Flower's adaptive clipping on clients calls its bit
_ROUNDING = 1e-3
"""By how much the length of an update that a client clipped to C may differ from C, as a share of it."""
_SMALLEST_MOVE = 1e-12  # of one entry, where Flower divides by the length of an update


# --- what works together ---------------------------------------------------------------------------------


def view_of(server_strategy: Strategy) -> View:
    """Return what a strategy is shown.

    One's own subclass of a Flower strategy is shown what its parent is. If it overrides `aggregate_train`,
    only its author knows whether it can do with the aggregate alone, and says so with a class attribute
    ``steps_from_average = True``.

    Raises
    ------
    TypeError
        If no view would do; the text says why.
    """
    kind = type(server_strategy)
    given = f"server_strategy = {kind.__name__}()"
    parent = next((each for each in kind.__mro__ if each in _VIEWS), None)
    if isinstance(server_strategy, type) or parent is None:
        names = ", ".join(each.__name__ for each in _VIEWS)
        shown = f"server_strategy = {getattr(server_strategy, '__name__', type(server_strategy).__name__)}"
        raise TypeError(f"{shown}: must be an object of one of {names}, or of a subclass")
    if isinstance(server_strategy, _TREES):
        raise TypeError(f"{given}: its replies are trees; there are no updates w_m - w that could be weighed")
    if parent is not kind and getattr(kind, "steps_from_average", False) and issubclass(kind, FedAvg):
        return View.AGGREGATE
    if kind.aggregate_train is not parent.aggregate_train:
        raise TypeError(
            f"{given}: overrides aggregate_train, so what it must see is not known; if it takes one step "
            "from the average of the replies, say steps_from_average = True in its class"
        )
    if _VIEWS[parent] is View.ESTIMATES:
        inner = type(server_strategy.strategy)  # type: ignore[attr-defined]
        if not issubclass(inner, FedAvg) or inner.aggregate_train is not FedAvg.aggregate_train:
            raise TypeError(
                f"{given} around {inner.__name__}(): must be around FedAvg() or FedProx(); the noise fits "
                "one client's share of a plain mean, and is added after the inner strategy's step"
            )
    return _VIEWS[parent]


def refusal(
    server_strategy: Strategy,
    selector: type[Selector],
    settings: Mapping[str, Any] | None = None,
    *,
    clients_per_round: int | None = None,
    variates: str | None = None,
) -> str:
    """Return why a strategy does not go with a selector, "" if it does.

    Strategies that step from the average go with all of them. The others see single replies:

    - *Robust* ones take the reply that is far from the others for a liar's. What a weight of 1/p enlarges is
      far from the others. So they are shown replies as they came, which is right where every draw has the
      same weight: the median of draws that are in proportion to data is the median by data. Sizes have no
      other part in it, as in Flower. Rules that go by distance see each client once, since its copy would
      vouch for it: Krum's mean weighs by draws, Bulyan's has one vote for each.
    - *q-FedAvg* weighs replies by their losses and divides by a sum of squared lengths: an update enlarged by
      its weight would enter with the weight's square. Equal draws are what its paper has.
    - *Differential privacy*: noise hides one client among the others if nothing else depends on its data.
      Chances or weights learned from norms and losses do, in all later rounds, and no noise is on those. Nor
      can sampling be claimed to amplify privacy unless it is uniform; Flower's accountant claims nothing.
      And a clip after the rescaling cuts off what large weights enlarge, one before it makes the noise grow
      with the largest weight: both are harmless only where weights are about equal. Sizes, groups and who
      answered count as public.

    Parameters
    ----------
    server_strategy : Strategy
        A strategy with a view, see `view_of`.
    selector : type of Selector
        Its class.
    settings : mapping, optional
        The selector's own.
    clients_per_round : int, optional
        K, where known.
    variates : str, optional
        "fedvarp" or "scaffold", if the server keeps variates of clients.
    """
    view = view_of(server_strategy)
    # These clients scale their own updates: the server never sees what they learned.
    if variates and selector.name == "flics-private":
        return f"{variates} remembers each client's own update, and here clients send it rescaled"
    if view is View.AGGREGATE:
        return ""
    if variates:
        return (
            f"{variates} steps from the sum of what clients changed since their last update, "
            "and this strategy takes no sums"
            if view is not View.ESTIMATES
            else f"what {variates} remembers of a client has no noise, and other clients would be sent it"
        )
    with_replacement = bool((settings or {}).get("replacement", True))
    equal = selector.equal_votes == "always" or (
        selector.equal_votes == "with replacement" and with_replacement
    )
    if view is View.ESTIMATES and not selector.blind:
        return (
            "whom it chooses depends on norms or losses that carry no noise: what hides a client's update "
            "does not hide its part in later choices"
        )
    if not equal:
        how = "; with replacement it would do" if selector.equal_votes == "with replacement" else ""
        if view is View.ESTIMATES:
            return (
                "importance weights enlarge the replies of rarely drawn clients: the clip would cut off just "
                f"those, or the noise grow with the largest weight{how}"
            )
        if isinstance(server_strategy, flower.QFedAvg):
            return (
                "an importance weight would enter the squared lengths that q-FedAvg divides by as its "
                f"square, and replies without their weights are biased{how}"
            )
        return (
            "importance weights enlarge the replies of rarely drawn clients, and it would throw away just "
            f"those as outliers{how}"
        )
    least = _least_replies(server_strategy)
    if clients_per_round is not None and clients_per_round < least:
        liars = server_strategy.num_malicious_nodes  # type: ignore[attr-defined]
        return (
            f"with num_malicious_nodes = {liars} it needs {least} replies, and clients_per_round = "
            f"{clients_per_round}"
        )
    return ""


def _least_replies(server_strategy: Strategy) -> int:
    """Return from how many replies on a strategy keeps what it promises."""
    if isinstance(server_strategy, _KRUMS):
        return 2 * server_strategy.num_malicious_nodes + 3
    if isinstance(server_strategy, flower.Bulyan):
        return 4 * server_strategy.num_malicious_nodes + 3
    return 1


# --- the step --------------------------------------------------------------------------------------------


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


class Step(NamedTuple):
    """The new model, in the types of the old one; None and the reason if the model stays as it is."""

    arrays: Arrays | None
    void: str = ""


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
            least = _least_replies(self.strategy)
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
        clips_here = isinstance(self.strategy, _SERVER_SIDE)
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


# --- the table -------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """One combination: the names, the selector's settings that matter, and why it is refused ("": works)."""

    server_strategy: str
    selector: str
    settings: Mapping[str, Any]
    reason: str


def examples() -> dict[str, Strategy]:
    """Return one object of each Flower strategy, by name."""
    private = {"noise_multiplier": 1.0, "num_sampled_clients": 100}
    made: tuple[Strategy, ...] = (
        FedAvg(),
        flower.FedAvgM(server_momentum=0.9),
        flower.FedAdam(),
        flower.FedYogi(),
        flower.FedAdagrad(),
        flower.FedProx(proximal_mu=0.1),
        flower.FedMedian(),
        flower.FedTrimmedAvg(),
        flower.QFedAvg(client_learning_rate=0.1),
        flower.Krum(),
        flower.MultiKrum(num_nodes_to_select=2),
        flower.Bulyan(),
        flower.DifferentialPrivacyServerSideFixedClipping(FedAvg(), clipping_norm=1.0, **private),  # type: ignore[arg-type]
        flower.DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), **private),  # type: ignore[arg-type]
        flower.DifferentialPrivacyClientSideFixedClipping(FedAvg(), clipping_norm=1.0, **private),  # type: ignore[arg-type]
        flower.DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(), **private),  # type: ignore[arg-type]
        flower.FedXgbBagging(),
        flower.FedXgbCyclic(),
    )
    return {_name(each): each for each in made}


def matrix(variates: str | None = None) -> list[Cell]:
    """Return every combination of Flower's strategies with the selectors, optionally with variates."""
    cells = []
    for name, server_strategy in examples().items():
        for selector in available():
            kind = selector_type(selector)
            both = kind.equal_votes == "with replacement"
            for settings in ({}, {"replacement": False}) if both else ({},):
                try:
                    reason = refusal(server_strategy, kind, settings, variates=variates)
                except TypeError as error:
                    reason = str(error).partition(": ")[2]
                cells.append(Cell(name, selector, settings, reason))
    return cells


def table(variates: str | None = None) -> str:
    """Return `matrix` as a table in Markdown; strategies and selectors that fare alike share a line."""
    cells = matrix(variates)
    columns: dict[str, dict[str, str]] = {}  # selector -> strategy -> reason
    for each in cells:
        columns.setdefault(_label(each.selector, each.settings), {})[each.server_strategy] = each.reason
    names = list(dict.fromkeys(each.server_strategy for each in cells))
    fates = {name: [column[name] for column in columns.values()] for name in names}
    groups = [list(group) for _, group in groupby(names, key=fates.__getitem__)]
    alike: dict[tuple[str, ...], list[str]] = {}
    for selector, column in columns.items():
        alike.setdefault(tuple(column[group[0]] for group in groups), []).append(selector)
    reasons = list(dict.fromkeys(reason for fate in alike for reason in fate if reason))
    lines = [
        "| selector | " + " | ".join(", ".join(group) for group in groups) + " |",
        "|---" * (1 + len(groups)) + "|",
    ]
    for fate, selectors in alike.items():
        marks = [f"no ({reasons.index(reason) + 1})" if reason else "yes" for reason in fate]
        lines.append(f"| {', '.join(f'`{each}`' for each in selectors)} | " + " | ".join(marks) + " |")
    return "\n".join([*lines, "", *(f"{i}. {reason}." for i, reason in enumerate(reasons, 1))])


def _label(selector: str, settings: Mapping[str, Any]) -> str:
    return selector + "".join(f", {name}={value}" for name, value in settings.items())


if __name__ == "__main__":
    print(table())
    for kind in ("fedvarp", "scaffold"):
        print(f"\nWith variates = {kind!r}:\n\n{table(kind)}")
