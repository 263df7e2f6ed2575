"""The selectors by name. `create` makes a selector, and `available` lists the names.

To add a selector to this package, write its file and list its class below. Another package adds its selector
with `register`.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy.typing as npt

from .base import Selector
from .baselines import md, optimal, uniform
from .checks import did_you_mean
from .clustered import clustered
from .delta import cluster_is, delta, practical
from .divfl.divfl import DivFLSelector
from .durations import timed
from .flics import flics, flics_private, naive_group
from .forecast.forecast import ForecastSelector
from .importance import avare, importance, mabs, vrb
from .k_vib.k_vib import KVibSelector
from .oort.oort import OortSelector
from .osmd import adaptive_doubling_osmd, adaptive_osmd, osmd, personalised_osmd
from .power_of_choice import afl, pow_d
from .tifl.tifl import TiFLSelector

_Kind = TypeVar("_Kind", bound=type[Selector])
_SELECTORS: dict[str, type[Selector]] = {
    each.name: each
    for each in (
        uniform.UniformSelector,
        md.MultinomialSelector,
        uniform.FullSelector,
        optimal.OptimalSelector,
        osmd.OSMDSelector,
        adaptive_osmd.AdaptiveOSMDSelector,
        adaptive_doubling_osmd.AdaptiveDoublingOSMDSelector,
        personalised_osmd.PersonalisedOSMDSelector,
        mabs.MABSSelector,
        vrb.VRBSelector,
        avare.AvareSelector,
        KVibSelector,
        importance.LipschitzISSelector,
        clustered.ClusteredSizesSelector,
        clustered.ClusteredUpdatesSelector,
        delta.DeltaSelector,
        practical.PracDeltaSelector,
        delta.FedISSelector,
        practical.PracISSelector,
        cluster_is.ClusterISSelector,
        pow_d.PowDSelector,
        pow_d.CPowDSelector,
        pow_d.RPowDSelector,
        pow_d.AdaPowDSelector,
        afl.AFLSelector,
        DivFLSelector,
        flics.FLICSSelector,
        flics_private.FLICSPrivateSelector,
        naive_group.NaiveGroupSelector,
        OortSelector,
        TiFLSelector,
        ForecastSelector,
        timed.TimedMultinomialSelector,
        timed.TimedForecastSelector,
    )
}


def available() -> tuple[str, ...]:
    """Return the names of all selectors that `create` can make."""
    return tuple(_SELECTORS)


def register(kind: _Kind) -> _Kind:
    """Add a selector class to the registry under its ``name``; also usable as a decorator.

    Raises
    ------
    ValueError
        If another class has this name.

    Examples
    --------
    >>> import numpy as np
    >>> from strategies.selectors.probability import ProbabilitySelector
    >>> @register
    ... class BySquareRoot(ProbabilitySelector):
    ...     '''In proportion to the square root of the clients' sizes.'''
    ...
    ...     name = "by-square-root"
    ...
    ...     def _distribution(self):
    ...         p = np.where(self._registered, np.sqrt(self.client_sizes), 0.0)
    ...         return p / (p.sum() or 1.0)
    >>> create("by-square-root", 3, client_sizes=[1, 4, 25], clients_per_round=2).probabilities
    array([0.125, 0.25 , 0.625])
    """
    if _SELECTORS.setdefault(kind.name, kind) is not kind:
        raise ValueError(f"name = {kind.name!r}: is taken by {_SELECTORS[kind.name].__name__}")
    return kind


def selector_type(name: str) -> type[Selector]:
    """Return the class of the selector with this name."""
    if name not in _SELECTORS:
        hint = did_you_mean(name, _SELECTORS)
        allowed = f"no such selector{hint}" if hint else f"must be one of {', '.join(_SELECTORS)}"
        raise ValueError(f"selector = {name!r}: {allowed}")
    return _SELECTORS[name]


def settings_of_run(name: str, settings: Mapping[str, Any], local_steps: int) -> dict[str, Any]:
    """Return the given settings of a selector, and the settings that follow from the run.

    Selectors that compare updates with gradients of one step have the setting ``local_steps``. If it is not
    given, it is the number of local steps of the run.

    `local_steps` is 0 if clients differ in this number.
    """
    known = selector_type(name).settings_type.allowed()
    if local_steps and "local_steps" in known and "local_steps" not in settings:
        return {**settings, "local_steps": local_steps}
    return dict(settings)


def create(
    name: str,
    num_clients: int,
    *,
    client_sizes: npt.ArrayLike | None = None,
    clients_per_round: int,
    num_rounds: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Selector:
    """Make a selector.

    `name` is one of those in `available`. All other arguments are those of `Selector`.
    """
    return selector_type(name)(
        num_clients,
        client_sizes=client_sizes,
        clients_per_round=clients_per_round,
        num_rounds=num_rounds,
        seed=seed,
        **settings,
    )
