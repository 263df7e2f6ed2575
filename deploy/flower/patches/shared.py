"""Names and functions that the patches of several of Flower's programs use."""

import importlib
import time
from collections.abc import Callable
from functools import wraps
from logging import getLogger
from types import SimpleNamespace
from typing import Any

LOOK = 1.0  # s between two checks for a change, in case nothing announces the change
MOST_CACHED = 10_000  # the most results of a function that are cached
FAILING = 60.0  # s of errors from the SuperLink, after which a request is given up

RUNTIME_CLIENT = "flwr.supercore.runtime"
INFLATABLE = "flwr.supercore.inflatable.inflatable_utils"


def replace(module: str, **replaced: Any) -> None:
    """Replace names in the namespace of one of Flower's modules. Raises AttributeError if it has none."""
    found = importlib.import_module(module)
    for name, value in replaced.items():
        getattr(found, name)
        setattr(found, name, value)


def like(module: Any, **changed: Any) -> SimpleNamespace:
    """Return an object with the attributes of a module, some of them with other values."""
    return SimpleNamespace(**{**vars(module), **changed})


def skip_unseen_lines() -> None:
    """Let Flower's logger skip at once the lines that none of its handlers writes.

    Flower logs each request at the level DEBUG, and makes a record of the line before the handlers drop it.
    """
    logger = getLogger("flwr")
    logger.setLevel(max(logger.level, min((each.level for each in logger.handlers), default=0)))


def remembered(
    function: Callable[..., Any], *, by: int = 0, but: object = ..., seconds: float = LOOK
) -> Callable[..., Any]:
    """Return a function that caches the results of another function for some `seconds`.

    `function`: the other function. Its result depends on one of its arguments only. `by`: the position of the
    argument on which the result depends. (default: the first argument) `but`: a result that is not cached.
    (default: all results are cached)
    """
    known: dict[Any, tuple[float, Any]] = {}

    @wraps(function)
    def cached(*arguments: Any) -> Any:
        now, key = time.monotonic(), arguments[by]
        asked, answer = known.get(key, (-seconds, None))
        if now - asked >= seconds:
            answer = function(*arguments)
            if answer is but:
                known.pop(key, None)
            else:
                if len(known) >= MOST_CACHED:  # clients choose the arguments, and could fill the memory
                    known.clear()
                known[key] = now, answer
        return answer

    return cached
