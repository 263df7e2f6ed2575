"""GuardSettings: the numbers that determine when the guard clips, rejects and quarantines."""

from dataclasses import dataclass
from typing import Literal, get_args

from ..selectors import checks

Level = Literal["sane", "strict"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""The levels of the guard, see `GuardSettings.level`."""


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """The settings of the guard, see `strategies.rounds.guard.guard.Guard`.

    Below, the *centre* is a median of values of the same kind that clients sent lately, or of the logarithms
    of these values.

    Attributes
    ----------
    level : {"sane", "strict"} (default: "sane")
        Whom the guard expects. "sane": clients that the operator registered. They are honest, but may be
        broken. What a client claims about itself is believed; what cannot be true is ignored, and the norm of
        each update is bounded. "strict": clients that strangers may run, and that may lie. See `Guard`.
    deviations : float (default: 4)
        How many standard deviations above the centre the logarithm of a value may lie, in [0.1, 1000]. The
        limit of widely spread values is higher, see `Guard`.
    size_deviations : float (default: 2.5)
        How many standard deviations above the centre the logarithm of a claimed data size may lie, in
        [0.1, 1000].
    direction_deviations : float (default: 3)
        How many standard deviations below the centre the agreement of an update's direction with the other
        updates may lie, in [0.1, 1000]. The value 1000 turns this comparison off.
    factor : float (default: 2)
        In [1, 1e9]. A value of at most ``factor`` times the median of these values is always plausible.
    draws : float (default: 2)
        In [1, 1e9]. With a biased selector that learns from clients, a client gets at most ``draws`` times
        its share of the draws. See "Draws" in `Guard`.
    window : int (default: 256)
        The number of clients whose last values the guard remembers, >= 32.
    strikes, memory : int (default: 3, 4)
        A client with ``strikes`` offences in its last ``memory`` replies is quarantined,
        1 <= strikes <= memory <= 8.
    quarantine, longest_quarantine : int (default: 10, 320)
        The length of a client's first quarantine and of the longest possible quarantine, in rounds,
        1 <= quarantine <= longest_quarantine.
    signed_losses : bool (default: False)
        Of the level "strict": whether a loss may be negative, such as a negative log-likelihood of densities;
        at "sane" it always may. With True, limits
        apply to the losses instead of their logarithms. ``deviations`` then counts standard deviations of
        losses, and a loss of at most ``centre + (factor - 1) |centre|`` is always plausible.
    """

    level: Level = "sane"
    deviations: float = 4.0
    size_deviations: float = 2.5
    direction_deviations: float = 3.0
    factor: float = 2.0
    draws: float = 2.0
    window: int = 256
    strikes: int = 3
    memory: int = 4
    quarantine: int = 10
    longest_quarantine: int = 320
    signed_losses: bool = False

    def __post_init__(self) -> None:
        checks.choice("guard.level", self.level, LEVELS)
        for name in ("deviations", "size_deviations", "direction_deviations"):
            checks.real(f"guard.{name}", getattr(self, name), low=0.1, high=1e3)
        checks.real("guard.factor", self.factor, low=1, high=1e9)
        checks.real("guard.draws", self.draws, low=1, high=1e9)
        checks.integer("guard.window", self.window, low=32)  # 32: RECENT in rounds/guard/plausible_limits.py
        checks.integer("guard.memory", self.memory, low=1, high=8)
        checks.integer("guard.strikes", self.strikes, low=1, high=self.memory, why="memory")
        checks.integer("guard.quarantine", self.quarantine, low=1)
        checks.integer(
            "guard.longest_quarantine", self.longest_quarantine, low=self.quarantine, why="quarantine"
        )
        checks.boolean("guard.signed_losses", self.signed_losses)
