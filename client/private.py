"""What a client keeps private: noise on its reported numbers, and a group that the server does not learn.

The device's owner sets these keys in the node's config, which takes precedence over the run's config:

================  ======================================================================================
key               meaning
================  ======================================================================================
noise-epsilon     ε of each reported loss and norm, see `strategies.clients.report_noise`; 0 = no noise
noise-delta       δ of each (default: 1e-5)
loss-bound        clips a reported loss; without it a loss that needs noise is not reported
norm-bound        the same for the norm of the update
private-group     a group, 0, 1, ..., reported by randomised response only; not in the run's config
group-epsilon     the largest ε with which it is reported (default: any that the server asks for)
group-answers     "permanent" (default): one answer forever; "fresh": one per round, each costs ε
secret-file       keeps the secret that these answers are made from; created if it is missing. Without
                  a file the secret lasts as long as the SuperNode in a run
================  ======================================================================================
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord

from strategies.clients.report_noise import GaussianMechanism
from strategies.selectors.invitation import GroupMember

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flwr.app import Context

_SECRET = "cohort-secret"
_SECRET_BITS = 128


@dataclass(frozen=True)
class Noise:
    """The noise and bounds that are applied to a loss and a norm before they are reported.

    Attributes
    ----------
    epsilon, delta : float
        The budget of each report; ``epsilon`` = 0 means no noise.
    loss_bound, norm_bound : float or None
        Clip the numbers, if given.

    Raises
    ------
    ValueError
        If one is out of range.
    """

    epsilon: float
    delta: float
    loss_bound: float | None
    norm_bound: float | None

    def __post_init__(self) -> None:
        if self.epsilon:
            for bound in (self.loss_bound, self.norm_bound):
                GaussianMechanism(self.epsilon, self.delta, 1.0 if bound is None else bound)

    @classmethod
    def of(cls, context: Context) -> Noise:
        """Read the node's config, and the run's for keys that it lacks.

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
        """Whether reported numbers have noise; then numbers without noise are not reported."""
        return self.epsilon > 0

    def loss(self, value: float) -> float | None:
        """Return the number to report for a loss; None if none is reported."""
        return self._release(value, self.loss_bound)

    def norm(self, value: float) -> float | None:
        """Return the number to report for the norm of the update; None if none is reported."""
        return self._release(value, self.norm_bound)

    def _release(self, value: float, bound: float | None) -> float | None:
        if self.is_on:
            if bound is None:
                return None
            # Fresh for each report: noise that is known or used twice reveals the number.
            rng = np.random.default_rng()
            return GaussianMechanism(self.epsilon, self.delta, bound).release(value, rng)
        if not isfinite(value):
            return None
        return value if bound is None else min(value, bound)


def group_member(context: Context, num_groups: int, epsilon: float = 1.0) -> GroupMember:
    """Return the member of a private group that this client is.

    Parameters
    ----------
    context : Context
        Holds the node's config, and the secret if there is no file for it.
    num_groups : int
        G, the number of groups.
    epsilon : float
        The ε that the server asks for; matters only for the report of the group.

    Raises
    ------
    ValueError
        If the client has no such group, or its limit of ε is lower.
    """
    group = context.node_config.get("private-group")
    if isinstance(group, bool) or not isinstance(group, int) or not 0 <= group < num_groups:
        raise ValueError(
            f"private-group = {group!r} in the node's config: must be a whole number from 0 to "
            f"{num_groups - 1}"
        )
    limit = _number((context.node_config,), "group-epsilon")
    if limit is not None and epsilon > limit:
        raise ValueError(f"epsilon = {epsilon}: must be at most {limit}, the client's limit (group-epsilon)")
    answers = context.node_config.get("group-answers", "permanent")
    if answers not in ("permanent", "fresh"):
        raise ValueError(f"group-answers = {answers!r} in the node's config: must be 'permanent' or 'fresh'")
    return GroupMember(group, num_groups, epsilon, _secret(context), permanent=answers == "permanent")


def _secret(context: Context) -> int:
    """Return the client's secret, drawn at random the first time.

    Raises
    ------
    ValueError
        If the file does not hold one.
    """
    path = context.node_config.get("secret-file")
    if path is None:
        if _SECRET not in context.state:
            context.state[_SECRET] = ConfigRecord({"hex": f"{secrets.randbits(_SECRET_BITS):x}"})
        return int(str(context.state.config_records[_SECRET]["hex"]), 16)
    file = Path(str(path))
    if not file.exists():
        # Written completely or not at all, and readable by its owner only.
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
    """Return the first value found, a finite number >= 0; None if there is none."""
    for config in configs:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ValueError(f"{name} = {value!r}: must be a finite number of at least 0")
        return float(value)
    return None
