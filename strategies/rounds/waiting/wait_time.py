"""Measures how long clients take to answer one kind of message, and computes how long to wait for answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, inf, isnan, nan
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Array, Bools, Floats
from ...selectors import Selection, checks

_WINDOW = 64
"""The number of answers whose times are remembered."""
_QUANTILE = 0.8
"""A client of unknown speed is expected to answer within this quantile of the known times."""
GOOD, _POOR = 3.0, 2.0
"""The wait in multiples of the expected time: for clients that were not silent lately, and for clients that
were silent lately."""
_FIRST_SHARE = 0.2
"""The largest share of the limit for which the server waits for a client of unknown speed, unless `GOOD`
times the expected time is more."""
_LONGEST_BACK_OFF = 16
"""The largest value of `Pace.back_off`."""
LATE = "no reply by the deadline"
"""Why there is no reply of a client for which the server waited until the limit."""
NOT_AWAITED = "not waited for"
"""Begins why there is no reply of a client for which the server waited less."""


class Pace:
    """The times of the last answers to one kind of message.

    ``back_off``: the number of exchanges in a row in which most clients did not answer, at most 16. Each such
    exchange doubles the next wait, since probably the network or the server is slow.
    """

    def __init__(self) -> None:
        self._times = np.full(_WINDOW, nan)
        self.back_off = 0

    def usual(self, seconds: Floats) -> float:
        """Return the 0.8 quantile of the known times, in seconds.

        The known times are the remembered times and the times ``seconds`` (n,) of the current exchange with n
        clients, NaN = no answer yet. The result is infinite while fewer than min(n/2, 64) times are known.
        Without this rule, one client that answers at once would end the first exchange of a run.
        """
        known = np.sort(np.concatenate([self._times, seconds]))  # NaN is sorted to the end
        count = int(np.count_nonzero(~np.isnan(known)))
        if count < max(1, min(ceil(seconds.size / 2), _WINDOW)):
            return inf
        return float(known[ceil(_QUANTILE * (count - 1))])

    def learn(self, seconds: Floats) -> None:
        """Remember the times of answers (n,), in seconds."""
        self._times = np.concatenate([self._times, seconds])[-_WINDOW:]

    def state_dict(self) -> dict[str, Array]:
        return {"times": self._times.copy(), "back_off": np.array(self.back_off)}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        arrays = checks.state(state, self.state_dict(), {})
        times, back_off = arrays["times"], int(arrays["back_off"])
        if (times < 0).any():
            raise ValueError("state['times']: must be numbers >= 0")
        if not 0 <= back_off <= _LONGEST_BACK_OFF:
            raise ValueError(f"state['back_off'] = {back_off}: must be from 0 to {_LONGEST_BACK_OFF}")
        self._times, self.back_off = times, back_off


@dataclass
class Wait:
    """How long one exchange of messages waits for the answers of n clients.

    The exchange ends when the wait is over for each client that has not answered but may still answer. The
    wait for a client is ``factor · expected`` seconds, but at least ``shortest`` and at most ``limit``:

    - ``expected`` is the client's slowest recent time. If the client has not answered this kind of message
      before, ``expected`` is the 0.8 quantile of all times.
    - ``factor`` is 2 for a client that was silent lately, and 3 for any other client. For a client whose own
      time is unknown it may be larger, see ``first``.
    - ``factor`` is doubled while most of the n clients have not answered. It is also doubled once for each of
      the last exchanges in a row in which most clients did not answer (`Pace.back_off`).

    The wait for a client begins anew whenever a further part of its answer has arrived (`progress`).

    While fewer than min(n/2, 64) times are known (see `Pace.usual`), the wait for a client whose own time is
    unknown lasts until the limit. An exchange that lacks a quorum lasts until the limit, too (`is_short`).
    """

    # whether `late` is to be called for answers that come after the end of the exchange
    expects_late: ClassVar[bool] = False

    pace: Pace  # the times of the last answers to this kind of message
    expected: Floats  # (n,) the slowest recent time of each client in seconds; NaN = unknown
    in_debt: Bools  # (n,) whether each client was silent lately
    shortest: float  # s, the shortest wait, > 0; if it exceeds the limit, the wait is the limit
    limit: float  # s, the longest wait, > 0
    # The factor for a client whose own time is unknown, >= 3. Beyond three times ``expected``, this wait is
    # at most a fifth of ``limit``.
    first: float = field(default=GOOD, kw_only=True)
    quorum: int = field(default=0, kw_only=True)  # how many usable answers are needed
    _answered: Floats = field(init=False)  # (n,) s, when each answer came; NaN = not yet
    _lost: Floats = field(init=False)  # (n,) s, when it became known that no answer will come; NaN = not yet
    _failed: Bools = field(init=False)  # (n,) whether each client answered with an error instead
    _since: Floats = field(init=False)  # (n,) s, when a further part of each answer was last seen; 0 = never

    _end: float | None = field(default=None, init=False)  # s; None if it has to be computed again
    _expected_last: Floats | None = field(default=None, init=False)  # (n,) s, as of the end of the exchange

    def __post_init__(self) -> None:
        self._answered, self._lost = np.full((2, self.expected.size), nan)
        self._failed = np.zeros(self.expected.size, dtype=np.bool_)
        self._since = np.zeros(self.expected.size)

    def answered(self, position: int, seconds: float) -> None:
        """Remember that a client's answer came ``seconds`` after the question."""
        self._answered[position] = seconds
        self._end = None

    def failed(self, position: int, seconds: float) -> None:
        """Remember that a client's answer, ``seconds`` after the question, is an error."""
        self.answered(position, seconds)

    def lost(self, position: int, seconds: float) -> None:
        """Remember that no answer will come, as was known ``seconds`` after the question."""
        self._lost[position] = seconds
        self._end = None

    def progress(self, position: int, seconds: float) -> None:
        """Remember that a further part of a client's answer had arrived ``seconds`` after the question."""
        self._since[position] = seconds
        self._end = None

    @property
    def seconds(self) -> Floats:
        """(n,) how many seconds after its question each answer came; NaN = no answer yet."""
        return self._answered

    def end(self) -> float:
        """Return when the exchange ends, in seconds after its questions, given the answers so far."""
        if self._end is None:
            self._end = float(self._allowed()[self._awaited()].max(initial=0.0))
        return self._end

    def is_short(self, usable: int) -> bool:
        """Return whether ``usable`` answers are less than the quorum, which may still be reached.

        An exchange for which this is True must not end before the limit. For a quorum of 1, which every run
        has, clients that were silent lately are not counted on: otherwise a selected client that never
        answers would delay its round until the limit whenever no other client is selected.
        """
        missing = self._awaited() & ~self.in_debt if self.quorum == 1 else self._awaited()
        return usable < self.quorum <= usable + int(np.count_nonzero(missing))

    def renew(self) -> None:
        """Make `end` compute the end again, since other exchanges may have changed the pace."""
        self._end = None

    def close(self, waited: float, round: int | None = None) -> None:
        """End the exchange after ``waited`` seconds, and learn from its answers.

        ``round`` is the current round (default: the round of the questions).
        """
        self._expected_last = self._expected()
        heard, silent = self._outcome(waited)
        most = 2 * np.count_nonzero(silent) > heard.size
        self.pace.back_off = min(self.pace.back_off + 1, _LONGEST_BACK_OFF) if most else 0
        self.pace.learn(np.sort(self._answered[heard]))

    def late(self, position: int, seconds: float) -> None:
        """Learn from an answer that came after the end of the exchange, ``seconds`` after the question."""
        self.pace.learn(np.array([seconds]))

    def why_missing(self, position: int, waited: float) -> str:
        """Return why there is no answer of a client after an exchange of ``waited`` seconds."""
        if waited >= self.limit:
            return LATE
        each = self._expected() if self._expected_last is None else self._expected_last
        expected = float(each[position])
        whose = "the usual time" if isnan(self.expected[position]) else "its slowest recent time"
        multiple = f"{waited / expected:.2g} times {whose}" if expected > 0 else "the shortest wait"
        if waited <= self.shortest:
            multiple = "the shortest wait"
        seconds = f"{waited:.0f}" if waited >= 10 else f"{waited:.2g}"
        return f"{NOT_AWAITED}: {seconds} s, {multiple}; deadline {self.limit:g} s"

    def _awaited(self) -> Bools:
        """Return (n,) whether each client may still answer."""
        awaited: Bools = np.isnan(self._answered) & np.isnan(self._lost) & ~self._failed
        return awaited

    def _outcome(self, waited: float) -> tuple[Bools, Bools]:
        """Return (n,) whether each client answered, and (n,) whether it was silent.

        Both are False for a client whose wait was cut short because enough other clients had answered, for a
        client that went offline before its answer was expected, and for an error in place of the answer.
        """
        heard, allowed = ~np.isnan(self._answered), self._allowed()
        gone = self._lost >= np.minimum(self._expected(), allowed)
        return heard, ~heard & (gone | (self._awaited() & (waited >= allowed)))

    def _expected(self) -> Floats:
        usual = self.pace.usual(self._answered)
        expected: Floats = np.where(np.isnan(self.expected), usual, self.expected)
        return expected

    def _allowed(self) -> Floats:
        """Return (n,) until when the exchange waits for each client in seconds, given the answers so far."""
        missing = int(np.count_nonzero(np.isnan(self._answered)))
        most = missing > 1 and 2 * missing > self._answered.size
        expected = self._expected() * 2.0 ** (self.pace.back_off + most)
        wait = np.where(self.in_debt, _POOR, GOOD) * expected
        first = np.minimum(self.first * expected, _FIRST_SHARE * self.limit)
        wait = np.where(np.isnan(self.expected) & ~self.in_debt, np.maximum(wait, first), wait)
        return np.minimum(self._since + np.maximum(wait, self.shortest), self.limit)


ENOUGH_REPLIED = "enough others had replied"
"""Why there is no reply of a client for which an over-selected round did not wait."""


def over_selected(clients_per_round: int, over_selection: float) -> float | None:
    """Return ``clients_per_round`` times ``over_selection``, rounded up; None (that number) if that is 1."""
    return float(ceil(clients_per_round * over_selection)) if over_selection > 1 else None


def enough_replies(selection: Selection, clients_per_round: int, quorum: int) -> int:
    """Return the number of usable replies after which an over-selected round may go on.

    Let K be ``clients_per_round``. If S clients were selected in D > K draws, the number is S K/D, rounded
    up. With D <= K draws, the number is S. In both cases, the number is at least the quorum, and at most S.
    """
    size, draws = selection.clients.size, int(selection.counts.sum())
    share = size if draws <= clients_per_round else -(-size * clients_per_round // draws)
    return min(size, max(share, quorum))
