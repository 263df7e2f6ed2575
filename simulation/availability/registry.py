"""All availability processes, by name."""

from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt

from .base import Always, Availability, Once
from .groups import COUNTS, GroupCounts
from .markov import Markov
from .poisson import Cyclic, Diurnal, Poisson, Uniform
from .trace import Trace

_PROCESSES: dict[str, type[Availability]] = {
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
    """Return the names that `create` accepts."""
    return tuple(_PROCESSES)


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
    """Return an availability process by name.

    Parameters
    ----------
    name : str
        One of `available`.
    num_clients : int
        M.
    seed : int (default: 0)
        Seed of all draws, >= 0.
    rates : float or array_like, shape (M,), optional
        Share of the rounds in which each client is available, in [0, 1] (default: the process's default).
    groups, means : array_like, shapes (M,) and (G,), optional
        Instead of rates, for all processes except "always" and "trace": the group of each client, and the
        mean number of available clients of each group; see `GroupCounts`.
    **settings
        The process's own settings, such as ``memory`` or ``recording``.

    Raises
    ------
    ValueError
        If a setting is invalid; the message names the setting, its value and the valid range.

    Examples
    --------
    >>> create("markov", 8, seed=1, rates=0.25, memory=0.9).available(round=3)
    array([5, 6])
    >>> create("poisson", 8, groups=[0] * 6 + [1] * 2, means=[3, 1]).available(round=3)
    array([1, 2, 3, 5, 6])
    """
    if name not in _PROCESSES:
        raise ValueError(f"name = {name!r}: must be one of {', '.join(available())}")
    if groups is None:
        if means is not None:
            raise ValueError("groups = None: must be given with means")
        if rates is not None:
            settings["rates"] = rates
        _check_settings(name, _PROCESSES[name], settings)
        return _PROCESSES[name](num_clients, seed, **settings)
    if means is None or rates is not None:
        raise ValueError("groups: must be given with means and without rates")
    if np.shape(groups) != (num_clients,):
        raise ValueError(f"groups of shape {np.shape(groups)}: must be ({num_clients},)")
    if name == "once":
        name, settings["returning"] = "poisson", False
    if name not in COUNTS:
        raise ValueError(f"name = {name!r}: takes no groups")
    _check_settings(name, GroupCounts, settings)
    return GroupCounts(name, groups, means, seed, **settings)


def _check_settings(name: str, process: type[Availability], settings: dict[str, Any]) -> None:
    known = [each.name for each in signature(process).parameters.values() if each.kind is each.KEYWORD_ONLY]
    for field in settings.keys() - known:
        raise ValueError(f"{field}: is not a setting of {name!r}; valid are {', '.join(known) or 'none'}")
