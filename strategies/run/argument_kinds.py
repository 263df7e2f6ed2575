"""Checks that each argument of a strategy is of the right kind."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.serverapp.strategy import Strategy

from ..options import Buffered, Checkpoints, Deadlines, Faults, Overrides, Polling, check_kind

_SETTINGS = 'settings by name, such as {"alpha": 0.4}'
_KINDS: dict[str, tuple[Any, str]] = {  # argument -> its kind, and the kind in words
    "selector": (str, "the name of a selector, such as 'forecast'"),
    "selector_settings": (Mapping, _SETTINGS),
    "variates": (str, "'fedvarp', 'fedvarp-mean' or 'scaffold'"),
    "server_strategy": (Strategy, "a strategy of Flower, such as FedAdam()"),
    "deadlines": (Deadlines, "a Deadlines, such as Deadlines(round=60)"),
    "polling": (Polling, "a Polling, such as Polling(ask_status=True)"),
    "faults": (Faults, "a Faults, such as Faults(quorum=2)"),
    "overrides": (Overrides, 'an Overrides, such as Overrides(sizes={"client-1": 120})'),
    "checkpoints": (Checkpoints, 'a Checkpoints, such as Checkpoints("runs/1")'),
    "mode": (Buffered, "a Buffered, such as Buffered(concurrency=30)"),
    "stop": (Callable, "a function of the round and the metrics"),
    "on_round": (Callable, "a function of a RoundRecord"),
    "reporters": (Sequence, "a list of reporters, such as [JSONLines(path)]"),
}


def check_kinds(**given: Any) -> None:
    """Raise a TypeError if an argument (not None) has the wrong kind, or a setting's name is not a string."""
    for name, value in given.items():
        check_kind(name, value, *_KINDS[name])
        if name == "selector_settings":
            for each in value or ():
                check_kind(name, each, str, _SETTINGS)
