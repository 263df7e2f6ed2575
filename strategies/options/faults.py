"""What a round does about clients that are missing, late, wrong or malicious."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..selectors import Selector, checks
from .guard_settings import LEVELS, GuardSettings, Level


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What a round does about clients that are missing, late, wrong or malicious.

    Attributes
    ----------
    quorum : int (default: 1)
        How many clients must be available to begin a round after the first, and how many usable replies each
        round needs. A round waits for them until ``Deadlines.round``, as long as they can still come. A round
        with fewer usable replies is skipped. In [1, clients_per_round]. A selector that
        draws with replacement may select fewer distinct clients than ``clients_per_round``; choose a lower
        quorum for it.
    over_selection : float (default: 1)
        The number of selected clients (or of draws), divided by ``clients_per_round``, in [1, 100]. The round
        stops waiting once enough clients have sent a usable reply: ``clients_per_round`` clients, or fewer if
        some clients were drawn several times, but at least the quorum. The first replies are not a random
        sample of all replies, see ``correction``.
    correction : {"equal", "rates"} (default: "equal")
        How the weights make up for missing replies. "equal" multiplies all weights by the same factor. If
        all clients fail equally often, a round that is not skipped is then unbiased for the selected clients.
        Rounds with few distinct clients are skipped more often, so a client that is drawn several times in a
        round gets less than its share: .656 instead of .70, among 31 clients with "md", if K is 4 and half of
        the replies are missing. "rates" divides each weight by the estimated response
        rate of its client and then normalises the weights, see `strategies.rounds.response_rates`.
    guard : {"sane", "strict"}, bool, mapping or GuardSettings (default: "sane")
        The level of the guard, which bounds what broken or lying clients do to the model, see
        `GuardSettings.level`. True stands for "sane". False: there is no guard. A mapping holds settings of
        `GuardSettings` by name.
    silence : bool (default: True)
        Whether a client that is online and does not answer in time, or answers TRAIN with an error twice in a
        row, is quarantined. Each further silence or error makes its quarantine longer, and a late reply ends
        it, see `strategies.rounds.waiting.silent_clients`.
    """

    quorum: int = 1
    over_selection: float = 1.0
    correction: Literal["equal", "rates"] = "equal"
    guard: Level | bool | Mapping[str, Any] | GuardSettings = "sane"
    silence: bool = True

    def __post_init__(self) -> None:
        checks.integer("faults.quorum", self.quorum, low=1)
        checks.real("faults.over_selection", self.over_selection, low=1, high=100)
        checks.choice("faults.correction", self.correction, ("equal", "rates"))
        if isinstance(self.guard, str):
            checks.choice("faults.guard", self.guard, LEVELS)
        elif not isinstance(self.guard, bool | Mapping | GuardSettings):
            raise TypeError(
                f"faults.guard = {self.guard!r}: must be {', '.join(map(repr, LEVELS))}, True, False or a "
                "mapping of its settings"
            )
        _ = self.guard_settings  # raises an error if a setting is out of range
        checks.boolean("faults.silence", self.silence)

    @property
    def guard_settings(self) -> GuardSettings | None:
        if isinstance(self.guard, GuardSettings):
            return self.guard
        if isinstance(self.guard, Mapping):
            return GuardSettings(**self.guard)
        if isinstance(self.guard, str):
            return GuardSettings(level=self.guard)
        return GuardSettings() if self.guard else None

    def check(self, selector: type[Selector], clients_per_round: int) -> None:
        """Refuse options that do not go with a selector or with ``clients_per_round`` (K)."""
        k = checks.integer("clients_per_round", clients_per_round, low=1)
        checks.integer("faults.quorum", self.quorum, low=1, high=k, why="clients_per_round")
        if self.correction == "rates":
            check_correction(selector)


def check_correction(selector: type[Selector]) -> None:
    """Refuse the correction "rates" for a selector whose weights already make up for missing replies.

    Raises a ValueError if the selector is unbiased in the long run. Both corrections together would give too
    much weight to a group that seldom replies.
    """
    if selector.unbiased == "long-run":
        raise ValueError(
            f"faults.correction = 'rates': must be 'equal' with selector = {selector.name!r}, which counts "
            "who replies and makes up for missing replies itself"
        )
