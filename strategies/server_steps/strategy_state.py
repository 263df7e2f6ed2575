"""Saves and restores what a Flower strategy remembers: momentum, moments, clipping norm, accountant.

The state consists of arrays by name. Momentum is ``momentum_vector/NUMBER``. Adam's moments are
``m_t/PARAMETER`` and ``v_t/PARAMETER``. The adaptive ``clipping_norm`` is a number. The state of a privacy
accountant is JSON. If a strategy has a method `state_dict`, the arrays that it returns are ``own/NAME``.

The state holds no noise of differential privacy, because the noise would reveal the updates that it hides. A
resumed run draws new noise.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.serverapp import strategy as flower
from numpy.typing import NDArray


class Remembered(NamedTuple):
    """What a Flower strategy remembered before a step, without the accountant."""

    values: dict[str, Any]
    """The result of the function `values`: each remembered value, by the name of its attribute."""
    own: dict[str, NDArray[Any]] | None
    """What the strategy's method `state_dict` returned; None if it has no such method."""


def remembered(strategy: Any) -> Remembered:
    """Return what a strategy remembers now, for `restore`."""
    own = strategy.state_dict() if _has_own_state(strategy) else None
    return Remembered(values(strategy), own and {name: np.array(array) for name, array in own.items()})


def restore(strategy: Any, before: Remembered) -> None:
    """Let a strategy remember what it did before a step: no copies, since steps replace these objects."""
    for name, value in before.values.items():
        setattr(strategy, name, value)
    if before.own is not None:
        strategy.load_state_dict(before.own)


def values(strategy: Any) -> dict[str, Any]:
    """Return what a Flower strategy remembers, by attribute, without `Remembered.own` and the accountant."""
    if isinstance(strategy, flower.FedAvgM):
        names: tuple[str, ...] = ("momentum_vector",)
    elif hasattr(strategy, "m_t"):  # FedOpt and its descendants
        names = ("m_t", "v_t")
    elif hasattr(strategy, "clip_norm_lr"):  # adaptive clipping
        names = ("clipping_norm",)
    else:
        names = ()
    return {name: getattr(strategy, name) for name in names}


def state_dict(strategy: Any) -> dict[str, NDArray[Any]]:
    """Return copies of everything that a strategy remembers, as arrays by name."""
    state = {"server_strategy": _text(type(strategy).__name__)}
    for name, value in values(strategy).items():
        if isinstance(value, dict):
            state |= {f"{name}/{key}": np.array(array) for key, array in value.items()}
        elif isinstance(value, list):
            state |= {f"{name}/{i}": np.array(array) for i, array in enumerate(value)}
        elif value is not None:
            state[name] = np.array(value)
    accountant = getattr(strategy, "accountant", None)
    if accountant is not None:
        state["accountant"] = _text(json.dumps(accountant.state_dict()))
    if _has_own_state(strategy):
        state |= {f"own/{name}": np.array(array) for name, array in strategy.state_dict().items()}
    return state


def load_state_dict(strategy: Any, state: Mapping[str, NDArray[Any]]) -> None:
    """Restore what `state_dict` returned."""
    saved = np.asarray(state.get("server_strategy", np.empty(0, np.uint8))).tobytes().decode()
    if saved != type(strategy).__name__:
        raise ValueError(f"state['server_strategy'] = {saved!r}: must be {type(strategy).__name__!r}")
    names = values(strategy)
    accountant = getattr(strategy, "accountant", None)
    known = {"server_strategy", *names}
    known |= {"accountant"} if accountant is not None else set()
    known |= {"own"} if _has_own_state(strategy) else set()
    for key in state:
        if key.split("/")[0] not in known:
            raise ValueError(f"state has {key!r}: must be one of {', '.join(sorted(known))}")
    if accountant is not None:
        accountant.load_state_dict(json.loads(np.asarray(state["accountant"]).tobytes()))
    for name in names:
        parts = _below(state, name)
        if name == "momentum_vector":
            value: Any = [parts[str(i)] for i in range(len(parts))] or None
        else:
            value = float(state[name]) if name in state else parts or None
        setattr(strategy, name, value)
    if "own" in known:
        strategy.load_state_dict(_below(state, "own"))


def _has_own_state(strategy: Any) -> bool:
    return hasattr(strategy, "state_dict") and hasattr(strategy, "load_state_dict")


def _text(text: str) -> NDArray[Any]:
    """Return text as an array of bytes, which every array format can hold."""
    return np.frombuffer(text.encode(), dtype=np.uint8).copy()


def _below(state: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    """Return copies of the arrays whose keys begin with ``name/``, by their keys without this prefix."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): np.array(a) for key, a in state.items() if key.startswith(prefix)}
