"""Which Flower strategy goes with which selector, what it is shown of a round, and why others are refused.

``python -m strategies.server_steps.compatibility`` prints the table of all combinations.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import groupby
from typing import Any, NamedTuple

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from ..selectors import Selector, available, selector_type
from .votes import least_replies


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

    A subclass of a Flower strategy is shown what its parent is shown. If it overrides `aggregate_train`, only
    its author knows whether the aggregate alone is enough; the class attribute ``steps_from_average = True``
    says that it is.

    Raises
    ------
    TypeError
        If no view fits; the text says why.
    """
    kind = type(server_strategy)
    given = f"server_strategy = {kind.__name__}()"
    parent = next((each for each in kind.__mro__ if each in _VIEWS), None)
    if isinstance(server_strategy, type) or parent is None:
        names = ", ".join(each.__name__ for each in _VIEWS)
        shown = f"server_strategy = {getattr(server_strategy, '__name__', type(server_strategy).__name__)}"
        raise TypeError(f"{shown}: must be an object of one of {names}, or of a subclass")
    if isinstance(server_strategy, _TREES):
        raise TypeError(f"{given}: clients return trees, not updates that could be weighted")
    if parent is not kind and getattr(kind, "steps_from_average", False) and issubclass(kind, FedAvg):
        return View.AGGREGATE
    if kind.aggregate_train is not parent.aggregate_train:
        raise TypeError(
            f"{given}: overrides aggregate_train, so it is not known what it must be shown; if it takes one "
            "step from the average of the replies, set steps_from_average = True in its class"
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

    Strategies that step from the average go with every selector. The others see single replies:

    - *Robust* strategies treat a reply far from the others as an attack, and a weight of 1/p moves a reply
      far from the others. So they are shown replies as they came, which is right where every draw has the
      same weight: the median of draws in proportion to data is the median by data. Sizes matter in no other
      way, as in Flower. Rules that use distances see each client once, since its copy would support it:
      Krum's mean weights clients by draws, Bulyan's gives each client one vote.
    - *q-FedAvg* weights replies by their losses and divides by a sum of squared lengths: an update enlarged
      by its weight would enter with the square of the weight. Its paper has equal draws.
    - *Differential privacy*: noise hides one client among the others if nothing else depends on its data.
      Probabilities or weights learned from norms and losses do, in all later rounds, without noise. Sampling
      amplifies privacy only if it is uniform; Flower's accountant claims no amplification. Clipping after the
      rescaling cuts the updates that large weights enlarge; clipping before it makes the noise grow with the
      largest weight. Both are harmless only where weights are about equal. Sizes, groups and the identities
      of the clients that replied count as public.

    Parameters
    ----------
    server_strategy : Strategy
        A strategy with a view, see `view_of`.
    selector : type of Selector
        Its class.
    settings : mapping, optional
        The selector's own settings.
    clients_per_round : int, optional
        K, if known.
    variates : str, optional
        "fedvarp" or "scaffold", if the server keeps variates of clients.
    """
    view = view_of(server_strategy)
    # These clients rescale their updates: the server never sees the original ones.
    if variates and selector.clients_decide:
        return f"{variates} remembers each client's update, and these clients send theirs rescaled"
    if view is View.AGGREGATE:
        return ""
    if variates:
        return (
            f"{variates} steps from a sum of differences between updates; this strategy sees single replies"
            if view is not View.ESTIMATES
            else f"{variates} remembers updates without noise and sends their mean to other clients"
        )
    with_replacement = bool((settings or {}).get("replacement", True))
    equal = selector.equal_weight_draws == "always" or (
        selector.equal_weight_draws == "with replacement" and with_replacement
    )
    if view is View.ESTIMATES and not selector.data_independent:
        return (
            "the selector uses norms or losses without noise, so later selections reveal what the "
            "noise on the update hides"
        )
    if not equal:
        how = "; allowed with replacement" if selector.equal_weight_draws == "with replacement" else ""
        if view is View.ESTIMATES:
            return (
                "importance weights enlarge the updates of rarely drawn clients: clipping would reduce "
                f"exactly those, or the noise would have to grow with the largest weight{how}"
            )
        if isinstance(server_strategy, flower.QFedAvg):
            return (
                "q-FedAvg divides by squared update lengths, in which an importance weight would count "
                f"squared; without weights the result is biased{how}"
            )
        return (
            "importance weights enlarge the updates of rarely drawn clients, and the strategy would discard "
            f"exactly those as outliers{how}"
        )
    least = least_replies(server_strategy)
    if clients_per_round is not None and clients_per_round < least:
        malicious = server_strategy.num_malicious_nodes  # type: ignore[attr-defined]
        return (
            f"with num_malicious_nodes = {malicious} it needs {least} replies, but clients_per_round = "
            f"{clients_per_round}"
        )
    return ""


# --- the table -------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """One combination: the names, the selector's relevant settings, and why it is refused ("": it works)."""

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
    """Return `matrix` as a Markdown table; strategies and selectors with the same results share a line."""
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
