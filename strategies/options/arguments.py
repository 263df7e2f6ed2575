"""Checks the arguments of a strategy. An error names the argument and what is expected instead."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec

from ..selectors.checks import did_you_mean
from .buffered import Buffered
from .checkpoints import Checkpoints
from .deadlines import Deadlines
from .faults import Faults
from .overrides import Overrides
from .polling import Polling

P = ParamSpec("P")
_SIZES = "overrides=Overrides(sizes={...})"
_BASE = "server_strategy=FedAvg({name}=...)"
_ELSEWHERE = {
    "fraction_train": "clients_per_round=... (a number, not a share)",
    "fraction_fit": "clients_per_round=... (a number, not a share)",
    "min_train_nodes": "clients_per_round=..., and faults=Faults(quorum=...) for the least number of replies",
    "min_fit_clients": "clients_per_round=..., and faults=Faults(quorum=...) for the least number of replies",
    "min_available_nodes": "min_available_clients=...",
    **dict.fromkeys(("fraction_evaluate", "evaluate_metrics_aggr_fn"), _BASE),
    "min_evaluate_nodes": "server_strategy=FedAvg(fraction_evaluate=...) (a share of the available clients)",
    **dict.fromkeys(("weighted_by_key", "arrayrecord_key", "configrecord_key"), _BASE),
    "train_metrics_aggr_fn": _BASE,
    "eta": "server_strategy=FedAdam(eta=...)",
    "proximal_mu": "server_strategy=FedProx(proximal_mu=...)",
    "evaluate_fn": "start(..., evaluate_fn=...)",
    "initial_parameters": "start(grid, initial_arrays)",
    "client_sizes": _SIZES,
    **{
        each.name: f"{group.__name__.lower()}={group.__name__}({each.name}=...)"
        for group in (Checkpoints, Deadlines, Faults, Overrides, Polling)
        for each in fields(group)
        if each.init and each.name != "settings"
    },
    **{each.name: f"mode=Buffered({each.name}=...)" for each in fields(Buffered)},
    "groups": 'overrides=Overrides(settings={"groups": {...}})',
}
"""What replaces an argument of Flower's FedAvg, or an option that belongs to a group of options."""


def refuse_unknown(
    strategy: str, unknown: Mapping[str, Any], known: Iterable[str], of_selector: Collection[str] = ()
) -> None:
    """Raise a TypeError if there is an unknown argument; the message names what to use instead.

    ``strategy``: the name of the strategy. ``unknown``: the unknown arguments, by name. ``known``: the names
    of the strategy's arguments. ``of_selector`` (default: empty): the names of the selector's settings, if
    the strategy takes them in the argument ``selector_settings``.
    """
    for name, value in unknown.items():
        if name in _ELSEWHERE:
            raise TypeError(
                f"{name} = {value!r:.100}: {strategy} has {_ELSEWHERE[name].replace('{name}', name)} instead"
            )
        if name in of_selector:
            raise TypeError(
                f"{name} = {value!r:.100}: is a setting of the selector; use "
                f"selector_settings={{{name!r}: {value!r:.100}}}"
            )
        hint = did_you_mean(name, [each for each in known if each not in ("self", "options", "unknown")])
        raise TypeError(f"{name} = {value!r:.100}: {strategy} has no such argument{hint}")


def names_replacements(init: Callable[P, None]) -> Callable[P, None]:
    """Decorate a strategy's ``__init__``: refuse unknown arguments before Python reports missing ones.

    A user who replaces only the class name ``FedAvg`` writes ``Forecast(fraction_train=0.1)``. Python would
    report that ``clients_per_round`` is missing, and not that this argument replaces ``fraction_train``.
    """

    @wraps(init)
    def checked(*given: P.args, **named: P.kwargs) -> None:
        try:
            signature(init).bind(*given, **named)
        except TypeError:
            kind = type(given[0])
            known = arguments_of(kind)
            refuse_unknown(kind.__name__, {n: v for n, v in named.items() if n not in known}, known)
        init(*given, **named)

    return checked


def arguments_of(kind: type) -> set[str]:
    """Return the names of a strategy's arguments, including those of the strategies that it extends."""
    made = [vars(each)["__init__"] for each in kind.__mro__[:-1] if "__init__" in vars(each)]
    return {name for each in made for name in signature(each).parameters}


def check_kind(name: str, value: Any, kind: Any, expected: str) -> None:
    """Raise a TypeError if a value that is not None is of the wrong kind.

    ``name``, ``value``: the argument. ``kind``: the allowed kinds. ``expected``: the allowed kinds in words,
    after "must be".
    """
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} = {value!r:.200}: must be {expected}")
