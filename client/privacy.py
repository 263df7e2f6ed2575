"""The privacy of a client: noise on its reported numbers, and a group that the server does not learn.

docs/privacy.md lists the keys of the node's config that set them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context

from strategies.clients.report_noise import GaussianMechanism
from strategies.selectors.invitation import GroupMember

from .local_data import Group, group_of, partition_group

_SECRET = "cohort-secret"
_SECRET_BITS = 128


@dataclass(frozen=True)
class Noise:
    """The noise and bounds that are applied to a loss and a norm before they are reported.

    Raises
    ------
    ValueError
        If there is noise and one of these numbers is out of range.
    """

    epsilon: float  # of each reported number; 0: no noise
    delta: float
    loss_bound: float | None  # a loss is clipped to it; without it, a loss with noise is not reported
    norm_bound: float | None  # the same for a norm

    def __post_init__(self) -> None:
        if self.epsilon:
            for bound in (self.loss_bound, self.norm_bound):
                GaussianMechanism(self.epsilon, self.delta, 1.0 if bound is None else bound)

    @classmethod
    def of(cls, context: Context) -> Noise:
        """Read the node's config, and the run's config for keys that the node's config lacks.

        Raises
        ------
        ValueError
            If a value is not a number, or out of range.
        """
        configs = (context.node_config, context.run_config)
        return cls(
            epsilon=_number(configs, "noise-epsilon") or 0.0,
            delta=_number(configs, "noise-delta") or 1e-5,
            loss_bound=_number(configs, "loss-bound") or None,
            norm_bound=_number(configs, "norm-bound") or None,
        )

    @property
    def is_on(self) -> bool:
        """Whether losses and norms get noise. With noise, a number without a bound is not reported."""
        return self.epsilon > 0

    def loss(self, value: float) -> float | None:
        """Return the number to report for a loss; None: no number is reported."""
        return self._release(value, self.loss_bound)

    def norm(self, value: float) -> float | None:
        """Return the number to report for the norm of the update; None: no number is reported."""
        return self._release(value, self.norm_bound)

    def leaves(self, norm: float) -> bool:
        """Return whether a norm is reported unchanged: finite, without noise, and within its bound."""
        return not self.is_on and isfinite(norm) and (self.norm_bound is None or norm <= self.norm_bound)

    def _release(self, value: float, bound: float | None) -> float | None:
        if self.is_on:
            if bound is None:
                return None
            # The noise is fresh for each report: noise that is known or used twice reveals the number.
            rng = np.random.default_rng()
            return GaussianMechanism(self.epsilon, self.delta, bound).release(value, rng)
        if not isfinite(value):
            return None
        return value if bound is None else min(value, bound)


def private_group(context: Context) -> Group | None:
    """Return the client's private group; by default the group that the run's partition gives the client."""
    group = group_of(context, "private-group")
    return partition_group(context) if group is None else group


def group_member(context: Context, names: Sequence[str], epsilon: float | None = None) -> GroupMember:
    """Return this client's `GroupMember`, which answers the questions that depend on the private group.

    ``names`` (G,) are the names of the groups. ``epsilon`` is the ε with which the client is to report its
    group; None: the client does not report it.

    Raises
    ------
    ValueError
        If the client's group is not in ``names``, ``epsilon`` is above the client's limit, or
        ``group-answers`` is not valid.
    """
    group = private_group(context)
    if group is None or str(group) not in names:
        known = ", ".join(map(repr, names))
        raise ValueError(f"private-group = {group!r} in the node's config: must be one of {known}")
    limit = _number((context.node_config,), "group-epsilon")
    if epsilon is not None and limit is not None and epsilon > limit:
        raise ValueError(f"epsilon = {epsilon}: must be at most {limit}, the client's limit (group-epsilon)")
    answers = context.node_config.get("group-answers", "permanent")
    if answers not in ("permanent", "fresh"):
        raise ValueError(f"group-answers = {answers!r} in the node's config: must be 'permanent' or 'fresh'")
    return GroupMember(
        names.index(str(group)),
        len(names),
        1.0 if epsilon is None else epsilon,
        _secret(context),
        permanent=answers == "permanent",
    )


def _secret(context: Context) -> int:
    """Return the client's secret. It is drawn at random when it is needed for the first time."""
    path = context.node_config.get("secret-file")
    if path is None:
        if _SECRET not in context.state:
            context.state[_SECRET] = ConfigRecord({"hex": f"{secrets.randbits(_SECRET_BITS):x}"})
        return int(str(context.state.config_records[_SECRET]["hex"]), 16)
    file = Path(str(path))
    if not file.exists():
        # The file is written completely or not at all, and only its owner can read it.
        new = file.with_name(f"{file.name}.new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(f"{secrets.randbits(_SECRET_BITS):x}")
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    try:
        return int(file.read_text(), 16)
    except ValueError:
        raise ValueError(f"secret-file = {file}: must hold one hexadecimal number") from None


def _number(configs: tuple[Mapping[str, object], ...], name: str) -> float | None:
    """Return the entry ``name``, >= 0, of the first config that has this entry; None if no config has it."""
    for config in configs:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ValueError(f"{name} = {value!r}: must be a finite number of at least 0")
        return float(value)
    return None
