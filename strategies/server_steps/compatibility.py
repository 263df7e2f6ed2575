"""Which Flower strategies go with which selectors, what each is shown of a round, and why others are refused.

``python -m strategies.server_steps.compatibility`` prints which strategy works with which selector, and why not.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from ..selectors import Selector, available, selector_type

if TYPE_CHECKING:
    pass


class View(Enum):
    """What a strategy is shown of a round's replies."""

    AGGREGATE = "the aggregate w + Δ, as its only reply"
    DRAWS = "each reply as it came, as often as its client was drawn"
    CLIENTS = "each reply as it came; ``num-examples`` is how often its client was drawn"
    ESTIMATES = "w + S c_m (w_m - w) of each of S replies, whose plain mean is w + Δ"


SERVER_SIDE = (
    flower.DifferentialPrivacyServerSideFixedClipping,
    flower.DifferentialPrivacyServerSideAdaptiveClipping,
)
CLIENT_SIDE = (
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
    **dict.fromkeys((*SERVER_SIDE, *CLIENT_SIDE), View.ESTIMATES),
}
_TREES = (flower.FedXgbBagging, flower.FedXgbCyclic)


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
    if variates and selector.clients_decide:
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
    equal = selector.equal_weight_draws == "always" or (
        selector.equal_weight_draws == "with replacement" and with_replacement
    )
    if view is View.ESTIMATES and not selector.data_independent:
        return (
            "whom it chooses depends on norms or losses that carry no noise: what hides a client's update "
            "does not hide its part in later choices"
        )
    if not equal:
        how = "; with replacement it would do" if selector.equal_weight_draws == "with replacement" else ""
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
    least = least_replies(server_strategy)
    if clients_per_round is not None and clients_per_round < least:
        liars = server_strategy.num_malicious_nodes  # type: ignore[attr-defined]
        return (
            f"with num_malicious_nodes = {liars} it needs {least} replies, and clients_per_round = "
            f"{clients_per_round}"
        )
    return ""


def least_replies(server_strategy: Strategy) -> int:
    """Return from how many replies on a strategy keeps what it promises."""
    if isinstance(server_strategy, _KRUMS):
        return 2 * server_strategy.num_malicious_nodes + 3
    if isinstance(server_strategy, flower.Bulyan):
        return 4 * server_strategy.num_malicious_nodes + 3
    return 1


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
    return {type(each).__name__: each for each in made}


def matrix(variates: str | None = None) -> list[Cell]:
    """Return every combination of Flower's strategies with the selectors, optionally with variates."""
    cells = []
    for name, server_strategy in examples().items():
        for selector in available():
            kind = selector_type(selector)
            both = kind.equal_weight_draws == "with replacement"
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
