"""Which Flower strategies work with which selectors, and in which form a strategy sees a round's replies.

``python -m strategies.server_steps.compatibility`` prints the table of all combinations.
"""

from collections.abc import Mapping
from enum import Enum
from itertools import groupby
from typing import Any, NamedTuple

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from ..designs import DESIGNS
from ..options import Buffered, Faults
from ..selectors import Selector, available, selector_type
from .robust_aggregation import least_replies


class View(Enum):
    """The form in which a strategy sees a round's replies."""

    AGGREGATE = "the aggregate w + Δ, as its only reply"
    DRAWS = "each reply as it came, as often as its client was drawn"
    CLIENTS = "each reply as it came; ``num-examples`` is how often its client was drawn"
    ESTIMATES = "for each of the S replies, w + S c_m (w_m - w); the plain mean of these is w + Δ"


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
_EQUAL_DRAWS = ("own", "independent", "stratified")
"""The designs whose draws have equal weights, if clients are drawn in proportion to their shares."""
_TREES = (flower.FedXgbBagging, flower.FedXgbCyclic)


# --- what works together ---------------------------------------------------------------------------------


def view_of(server_strategy: Strategy) -> View:
    """Return the form in which a strategy sees the replies.

    A subclass of a Flower strategy has the view of its parent. A subclass that overrides `aggregate_train` is
    refused, unless it has the class attribute ``steps_from_average = True``: then its view is the aggregate.

    Raises a TypeError if there is no view for this strategy. The message says why.
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
            f"{given}: its class overrides aggregate_train, so Cohort cannot know which replies the strategy "
            "needs; if the strategy takes one step from the average of the replies, set steps_from_average = "
            "True in the class"
        )
    if _VIEWS[parent] is View.ESTIMATES:
        inner = type(server_strategy.strategy)  # type: ignore[attr-defined]
        if not issubclass(inner, FedAvg) or inner.aggregate_train is not FedAvg.aggregate_train:
            raise TypeError(
                f"{given} around {inner.__name__}(): must be around FedAvg() or FedProx(), since the "
                "noise is added after the inner strategy's step and is right only for a plain mean"
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
    """Return why a strategy cannot be used with a selector; "" if it can be used.

    Strategies that step from the average can be used with every selector. Other strategies see single
    replies:

    - *Robust* strategies treat a reply that is far from all others as an attack. A weight of 1/p would move
      an honest reply far from all others. So these strategies see unscaled replies, which is correct only if
      all draws have equal weights. For example, `md` draws clients in proportion to their data and gives all
      draws the same weight. So the median of its draws estimates the median weighted by data. Strategies that
      use distances between replies see each client once, because copies of a reply would support each other.
      Krum and MultiKrum take a mean weighted by the number of draws; Bulyan gives each client one vote.
    - *q-FedAvg* weights replies by their losses and divides by a sum of squared lengths. If an update were
      multiplied by its weight, the divisor would contain the square of the weight. The paper of q-FedAvg
      assumes draws with equal weights.
    - *Differential privacy*: noise hides a client's data only if nothing else depends on these data. But
      probabilities or weights that are learned from norms and losses depend on these data in all later
      rounds, and without noise. Sampling amplifies privacy only if it is uniform; Flower's accountant assumes
      no amplification. If updates are multiplied by their weights and then clipped, clipping reduces the
      updates with large weights. If updates are clipped first, the noise must grow with the largest weight.
      In both orders, the harm is small if all weights are about equal. Sizes, groups and the identities of
      the clients that replied count as public.

    ``settings`` are those that only this selector has. ``clients_per_round`` is the smallest budget of a
    round, if it is known. ``variates`` is given if the server remembers updates of clients.
    """
    view = view_of(server_strategy)
    # Clients of these selectors rescale their updates, so the server never sees the original updates.
    if variates and (selector.clients_decide or selector.part_names):
        return (
            f"with variates = {variates!r} the server remembers each client's update, but this selector's "
            "clients send rescaled updates; leave variates out"
        )
    if view is View.AGGREGATE:
        return ""
    if variates:
        return (
            f"with variates = {variates!r} the step is a sum of differences between updates, but this "
            "strategy needs single replies; leave variates out"
            if view is not View.ESTIMATES
            else f"with variates = {variates!r} the server remembers updates without noise, and uses "
            "their mean in later rounds; leave variates out"
        )
    design = str((settings or {}).get("design", "own"))
    with_replacement = bool((settings or {}).get("replacement", True)) and design in _EQUAL_DRAWS
    equal = selector.equal_weight_draws == "always" or (
        selector.equal_weight_draws == "with replacement" and with_replacement
    )
    if view is View.ESTIMATES and not selector.data_independent:
        return (
            "the selector learns from norms or losses without noise, so later selections reveal what the "
            "noise on the update hides; use a selector that learns nothing from clients' data, such as md"
        )
    if view is View.ESTIMATES and _uses_features(design):
        return (
            f"design = {design!r} draws by what it remembers of updates without noise, so later selections "
            f"reveal what the noise on the update hides; use a design of {_without_features()}"
        )
    averaging = (settings or {}).get("averaging", "plain")
    if averaging != "plain":
        return (
            f"averaging = {averaging!r} weights replies by data, but the strategy gives each reply one vote; "
            "use averaging=plain"
        )
    if not equal:
        how = (
            "set replacement=True, and leave the design at own, independent or stratified"
            if selector.equal_weight_draws == "with replacement"
            else "use a selector whose draws have equal weights, such as md"
        )
        if view is View.ESTIMATES:
            return (
                "importance weights enlarge the updates of rarely drawn clients, so either clipping would "
                f"reduce these updates, or the noise would have to grow with the largest weight; {how}"
            )
        if isinstance(server_strategy, flower.QFedAvg):
            return (
                "q-FedAvg divides by the squared lengths of updates, so it would square importance weights, "
                f"and without these weights the result is biased; {how}"
            )
        return (
            "importance weights enlarge the updates of rarely drawn clients, so the strategy would discard "
            f"these updates as outliers; {how}"
        )
    least = least_replies(server_strategy)
    if clients_per_round is not None and clients_per_round < least:
        malicious = server_strategy.num_malicious_nodes  # type: ignore[attr-defined]
        return (
            f"with num_malicious_nodes = {malicious} the strategy needs {least} replies, but the budget of a "
            f"round (clients_per_round or its schedule) may be {clients_per_round} clients"
        )
    return ""


def _uses_features(design: str) -> bool:
    return design in DESIGNS and DESIGNS[design].uses_features


def _without_features() -> str:
    return ", ".join(name for name in ("own", *DESIGNS) if not _uses_features(name))


def check_masked(
    selector: type[Selector],
    settings: Mapping[str, Any],
    server_strategy: Strategy | None,
    variates: str | None,
    faults: Faults,
) -> None:
    """Check a run with masked updates, of which the server sees the sum; ``settings``: the selector's own."""
    masked = "with masked_updates = True"
    if _uses_features(design := str(settings.get("design", "own"))):
        raise ValueError(
            f"design = {design!r} {masked}: must be one of {_without_features()}, since single updates, by "
            "which the other designs draw, are hidden"
        )
    if selector.compares_updates:
        raise ValueError(
            f"selector = {selector.name!r} {masked}: must not compare single updates, which are hidden; use "
            "clustered-sizes, md or forecast"
        )
    if variates:
        raise ValueError(
            f"variates = {variates!r} {masked}: must be left out, since variates need single updates, which "
            "are hidden"
        )
    if faults.over_selection > 1:
        raise ValueError(
            f"faults.over_selection = {faults.over_selection:g} {masked}: must be 1, since the masks cancel "
            "only if every selected client replies"
        )
    if faults.correction != "equal":
        raise ValueError(
            f"faults.correction = {faults.correction!r} {masked}: must be 'equal', since a round with a "
            "missing reply is skipped and needs no correction"
        )
    if faults.guard_settings is not None and faults.guard_settings.level == "strict":
        raise ValueError(
            f"faults.guard = 'strict' {masked}: must be 'sane' or False, since the strict guard judges "
            "single updates, which are hidden"
        )
    if "diversity" in selector.feedback_used | selector.polls_for:
        raise ValueError(
            f"selector = {selector.name!r} {masked}: must not use diversities, the distances of single "
            "updates from their mean, since single updates are hidden; use adaptive-osmd or forecast"
        )
    if server_strategy is not None and view_of(server_strategy) is not View.AGGREGATE:
        raise ValueError(
            f"server_strategy = {type(server_strategy).__name__}() {masked}: must step from the average, "
            "since single updates are hidden"
        )


def check_buffered(
    mode: Buffered,
    selector: type[Selector],
    settings: Mapping[str, Any],
    server_strategy: Strategy | None,
    faults: Faults,
    *,
    size: int,
    variates: str | None = None,
    masked_updates: bool = False,
    budget: object = None,
) -> None:
    """Check the parameters of a run with buffered rounds, in which updates of several rounds meet.

    ``settings`` are those that only this selector has, and ``size`` is K, the number of arrivals in a round.
    All others are arguments of `SelectionStrategy`.
    """
    name = f"selector = {selector.name!r} with mode = Buffered(...)"
    if selector.polls_for or selector.clients_decide:
        raise ValueError(
            f"{name}: must not poll candidates before each selection, since buffered rounds select clients "
            "whenever a place is free; use forecast, or rpow-d instead of pow-d"
        )
    if selector.unbiased == "long-run":
        raise ValueError(
            f"{name}: must not compute weights from the clients that take part in each whole round; use "
            "cluster-is, md or forecast"
        )
    if not selector.fixed_size:
        raise ValueError(
            f"{name}: must not select a random number of clients, since buffered rounds fill as many places "
            "as are free; use vrb, md or forecast"
        )
    if selector.part_names:
        raise ValueError(
            f"{name}: must not scale parts of updates, since a busy client receives no new scales; use "
            "adaptive-osmd"
        )
    if settings.get("averaging") == "sizes":
        raise ValueError(
            f"averaging = 'sizes' with {name}: must be 'plain' or 'scaled-sizes', since 'sizes' divides by "
            "the sizes of the clients of one round"
        )
    if masked_updates:
        raise ValueError(
            "masked_updates = True with mode = Buffered(...): the masks cancel only in the sum over "
            "all clients of one round; use rounds that are not buffered (mode=None)"
        )
    if variates:
        raise ValueError(
            f"variates = {variates!r} with mode = Buffered(...): the variates of a client are outdated "
            "when its update arrives; use FedProx against client drift, or mode=None"
        )
    if budget is not None:
        raise ValueError(
            f"budget = {budget!r} with mode = Buffered(...): must be left out, since concurrency is the "
            "number of clients that train"
        )
    if faults.over_selection > 1:
        raise ValueError(
            f"faults.over_selection = {faults.over_selection:g} with mode = Buffered(...): must be 1; use "
            "a mode.concurrency above mode.size instead"
        )
    if faults.correction != "equal":
        raise ValueError(
            f"faults.correction = {faults.correction!r} with mode = Buffered(...): must be 'equal', since a "
            "slow reply is not a missing reply"
        )
    if size > mode.concurrency:
        raise ValueError(
            f"mode.concurrency = {mode.concurrency}: must be at least {size}, the number of arrivals in a "
            "round"
        )
    if faults.quorum > size:
        raise ValueError(
            f"faults.quorum = {faults.quorum}: must be at most {size}, the number of arrivals in a round"
        )
    if server_strategy is not None and view_of(server_strategy) is not View.AGGREGATE:
        raise ValueError(
            f"server_strategy = {type(server_strategy).__name__}() with mode = Buffered(...): must not need "
            "single replies of one round; use FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad or FedProx"
        )


# --- the table -------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A combination: the two names, the selector's relevant settings, and the reason of a refusal or ""."""

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
    """Return all combinations of Flower's strategies with the selectors, with `variates` if given."""
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
    """Return `matrix` as a Markdown table; strategies with equal results share a column, selectors a row."""
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
