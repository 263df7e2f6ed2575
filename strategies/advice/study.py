"""Studies a log: checks the log and the selectors, estimates each selector's variance, and gives advice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..selectors import Selector, selector_type
from ..selectors.durations.timed import TimedSelector
from ..selectors.probability import ProbabilitySelector
from .log import LoggedRound
from .off_policy import Interval
from .replay import BASELINE, collect
from .verdict import Advice, advise

FEWEST = 10
"""The fewest rounds from which anything is estimated."""


@dataclass(frozen=True)
class Finding:
    """What a log says about one selector."""

    interval: Interval  #: the variance, divided by that of uniform sampling, with its 95 % interval
    #: Whether the distribution in each round is known exactly: it is fixed, or the replayed selector had the
    #: probabilities of the log.
    exact: bool
    draws: float  #: how many draws the estimate rests on, see `Evidence.effective_draws`


@dataclass(frozen=True)
class Findings:
    """What a log says about all selectors of a study."""

    selectors: Mapping[str, Finding]  #: by name, in the order of the study
    advice: Advice  #: which selector to use
    rounds: int  #: the rounds with a known norm in which a selector must leave clients out
    never_drawn: int  #: the number of clients that the log never drew, or that never replied


def check_log(selector: str) -> None:
    """Refuse a log from which no variance can be estimated. ``selector`` drew the clients of the log."""
    kind = selector_type(selector)
    if kind.unbiased != "round":
        why = "biased" if kind.unbiased == "none" else "unbiased only over many rounds"
        raise ValueError(
            f"selector = {selector!r} of the run: no variance can be estimated from its log, since this "
            f"selector is {why}, so its "
            "probabilities do not make up for the clients that it leaves out; use the log of an unbiased "
            f"selector, such as {BASELINE} or forecast"
        )
    if kind.part_names:
        raise ValueError(
            f"selector = {selector!r} of the run: no variance can be estimated from its log, since each "
            "part of an update has a "
            "weight of its own, and the history has the norms of whole updates"
        )


def check_candidate(selector: str) -> None:
    """Refuse a selector whose variance cannot be estimated from a log."""
    kind = selector_type(selector)
    why = ""
    if not issubclass(kind, ProbabilitySelector) or kind.unbiased != "round":
        why = "it is not unbiased in every round"
    elif kind.polls_for:
        why = f"it polls clients for {', '.join(sorted(kind.polls_for))}, which the history lacks"
    elif kind.feedback_used:
        why = f"it learns from {', '.join(sorted(kind.feedback_used))}, which the history lacks"
    elif any(setting.default is None for setting in kind.per_client.values()):
        why = "it needs a setting for each client"
    elif issubclass(kind, TimedSelector):
        why = "it learns from durations, which the replay lacks"
    elif selector == "full":
        why = "it selects all clients, so it has no variance"
    elif kind.own_draws:
        why = "it draws in a way of its own, so its variance does not follow from its distribution alone"
    if why:
        raise ValueError(f"selector = {selector!r}: cannot be studied, since {why}")


def study(rounds: Sequence[LoggedRound], selectors: Mapping[str, Selector], fixed_log: bool) -> Findings:
    """Estimate the variance that each selector would have had in the logged rounds.

    ``rounds``: the rounds in their order. ``selectors``: New selectors by name, for the clients of the first
    round. `BASELINE` must be one of them. ``fixed_log``: whether the draws of the log do not depend on the
    norms in earlier rounds.

    Raises a ValueError if there are fewer than `FEWEST` rounds with a known norm in which a selector must
    leave clients out, or if all norms are 0.
    """
    evidence, same = collect(rounds, selectors, fixed_log)
    drawn = np.unique(np.concatenate([round.clients for round in rounds]))
    if evidence.num_rounds < FEWEST:
        raise ValueError(
            f"has {evidence.num_rounds} round(s) with norms in which a selector must leave clients out; at "
            f"least {FEWEST} are needed"
        )
    if not evidence.effective_draws(BASELINE):
        raise ValueError("all update norms are 0, so no selector has a variance")
    fixed = frozenset(name for name, selector in selectors.items() if selector.data_independent)
    findings = {
        name: Finding(evidence.against(name), name in fixed or name in same, evidence.effective_draws(name))
        for name in selectors
    }
    return Findings(
        findings, advise(evidence, fixed), evidence.num_rounds, rounds[-1].sizes.size - drawn.size
    )
