"""Who is here in which round: ``create`` makes a process by name, ``available`` lists the names.

Either each client comes and goes by itself, at its own rate, or `GroupCounts` says how many of each group are
here, as the FLICS paper does. The rounds are numbered from 1.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrival import InOrderOfArrival
from .base import Always, Availability
from .cyclic import Cyclic
from .diurnal import Diurnal
from .groups import PROCESSES, GroupCounts
from .markov import Markov
from .once import Once
from .poisson import Poisson, Uniform
from .trace import Trace

__all__ = [
    "Always",
    "Availability",
    "Cyclic",
    "Diurnal",
    "GroupCounts",
    "InOrderOfArrival",
    "Markov",
    "Once",
    "Poisson",
    "Trace",
    "Uniform",
    "available",
    "create",
]

_OF_CLIENTS: dict[str, type[Availability]] = {
    "always": Always,
    "uniform": Uniform,
    "poisson": Poisson,
    "cyclic": Cyclic,
    "markov": Markov,
    "diurnal": Diurnal,
    "trace": Trace,
    "once": Once,
}


def available() -> tuple[str, ...]:
    """Return the names that `create` takes."""
    return tuple(_OF_CLIENTS)


def create(
    name: str,
    num_clients: int,
    *,
    seed: int = 0,
    rates: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    means: npt.ArrayLike | None = None,
    **settings: Any,
) -> Availability:
    """Return an availability process by its name.

    Parameters
    ----------
    name : str
        One of `available`.
    num_clients : int
        M.
    seed : int (default: 0)
        Of all draws, >= 0.
    rates : float or array_like, shape (M,), optional
        How often each client is here, in [0, 1].
    groups, means : array_like, shapes (M,) and (G,), optional
        In the place of rates, for all but "always" and "trace": the group of each client, and how many of
        each are here on average; see `GroupCounts`.
    **settings
        The process's own, such as ``memory`` or ``recording``.

    Raises
    ------
    ValueError
        If a setting is wrong; the message names it, its value and what is allowed.

    Examples
    --------
    >>> create("markov", 8, seed=1, rates=0.25, memory=0.9).here(round=3)
    array([5, 6])
    >>> create("poisson", 8, groups=[0] * 6 + [1] * 2, means=[3, 1]).here(round=3)
    array([1, 2, 3, 5, 6])
    """
    if name not in _OF_CLIENTS:
        raise ValueError(f"name = {name!r}: must be one of {', '.join(available())}")
    if groups is None:
        if means is not None:
            raise ValueError("groups = None: must be given with means")
        if rates is not None:
            settings["rates"] = rates
        _check_settings(name, _OF_CLIENTS[name], settings)
        return _OF_CLIENTS[name](num_clients, seed, **settings)
    if means is None or rates is not None:
        raise ValueError("groups: must come with means, and without rates")
    if np.shape(groups) != (num_clients,):
        raise ValueError(f"groups of shape {np.shape(groups)}: must be ({num_clients},)")
    if name == "once":
        name, settings["returning"] = "poisson", False
    if name not in PROCESSES:
        raise ValueError(f"name = {name!r}: takes no groups")
    _check_settings(name, GroupCounts, settings)
    return GroupCounts(name, groups, means, seed, **settings)


def _check_settings(name: str, process: type[Availability], settings: dict[str, Any]) -> None:
    takes = [each.name for each in signature(process).parameters.values() if each.kind is each.KEYWORD_ONLY]
    for field in settings.keys() - takes:
        raise ValueError(f"{field}: is no setting of {name!r}, which takes {', '.join(takes) or 'none'}")
