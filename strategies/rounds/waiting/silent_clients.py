"""Decides how long rounds wait for each client, and quarantines clients that stay silent or send errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Array, Floats, Ints
from ...selectors import checks
from .wait_time import GOOD, Pace, Wait

KINDS = ("poll", "train", "evaluate")
"""The kinds of messages. Times and silences are counted for each kind separately. So a client that answers
polls but never trains is silent, too."""
_SILENCE = 3
"""The number that a silence adds to a client's debt. An answer subtracts 1. So the debt of a client that is
silent less than a quarter of the time stays small. A client is in debt from this number on."""
_ERROR = 2
"""The number that an error in place of a trained model adds to a client's debt."""
_LARGEST_DEBT = 4 * _SILENCE
_FIRST, _GROWTH, _LONGEST = 4, 4, 64
"""The length of the first quarantine in rounds, the factor by which each further silence lengthens it, and
the length of the longest quarantine in rounds."""
_DECAY = 0.9
"""If an answer is faster than a client's remembered time, the new remembered time is `_DECAY` times the old
time plus (1 - `_DECAY`) times the time of the answer."""
_FIRST_WAIT = 2000.0
"""A client of unknown speed is waited for max(3, `_FIRST_WAIT` / M²) times the usual time. So a client that
never answers costs the time of about 2000 / M² rounds, once; and of five clients, one that is 80 times slower
than the others is not given up. See `docs/slow-clients.md`."""


class Patience:
    """Learns how long clients take to answer, and quarantines clients that stay silent.

    A client is silent if the wait for its answer (`Wait`) ends before the answer comes. A client that goes
    offline before its answer is expected is not silent.

    **Quarantine.** After its first silence a client is quarantined for 4 rounds, after its second for 16, and
    after each further silence for 64. Every three answers cancel one silence.

    An error in place of a trained model counts as two thirds of a silence, so a client is quarantined from
    its second error in a row on. An error teaches no time. In answer to other messages, an error is an
    answer, because an app may lack the handler.

    **Late answers.** A late answer shows that the client was slow, and not silent: it cancels its silence and
    ends the quarantine, and the client is waited for from then on. If the client was silent to messages of
    another kind at least twice, the quarantine goes on.

    A client that never answers is asked four times in the first 100 rounds, and then every 65 rounds.

    `RoundLogic.open` ignores these quarantines if they would leave out too many clients at once.

    The computation for a message to S clients is O(S + Q log Q), where Q clients were ever quarantined.

    ``shortest`` is the shortest wait in seconds, > 0. If it is infinite, each wait for a missing answer lasts
    until its limit. Without ``quarantines``, silent clients are not quarantined.
    """

    def __init__(self, num_clients: int, shortest: float, *, quarantines: bool = True) -> None:
        self.shortest, self.quarantines = shortest, quarantines
        self._paces = {kind: Pace() for kind in KINDS}
        self._times = np.full((num_clients, len(KINDS)), nan, dtype=np.float32)  # slowest recent times, s
        self._debts = np.zeros((num_clients, len(KINDS)), dtype=np.uint8)
        # The first round after each client's last quarantine; 0 if there was none.
        self._quarantined_until = np.zeros(num_clients, dtype=np.int64)
        self._ever_quarantined: Ints = np.empty(0, dtype=np.int64)  # ascending

    def wait(self, kind: str, round: int, clients: Ints, limit: float, quorum: int = 0) -> Wait:
        """Return the `Wait` for answers of a kind in `KINDS`; ``limit`` in s, ``quorum`` as in `Wait`."""
        row = KINDS.index(kind)
        return _ClientsWait(
            self._paces[kind],
            self._times[clients, row].astype(np.float64),
            self._debts[clients, row] >= _SILENCE,
            self.shortest,
            limit,
            self,
            row,
            round,
            clients,
            first=max(GOOD, _FIRST_WAIT / max(1, self._debts.shape[0]) ** 2),
            quorum=quorum,
        )

    def quarantined(self, round: int) -> Ints:
        """Return the clients that are quarantined in a round, ascending."""
        return self._ever_quarantined[self._quarantined_until[self._ever_quarantined] > round]

    def quarantined_until(self, client: int) -> int:
        return int(self._quarantined_until[client])

    def heard(self, kind: int, clients: Ints, seconds: Floats) -> None:
        """Learn that clients (n,) took ``seconds`` (n,) to answer. ``kind`` is an index into `KINDS`."""
        known = self._times[clients, kind]
        slow = np.where(np.isnan(known), seconds, _DECAY * known + (1 - _DECAY) * seconds)
        self._times[clients, kind] = np.maximum(slow, seconds)
        self._reduce(kind, clients, 1)

    def missed(self, kind: int, round: int, clients: Ints) -> None:
        """Learn that clients (n,) were silent in a round. ``kind`` is an index into `KINDS`."""
        self._owe(kind, round, clients, _SILENCE)

    def failed(self, kind: int, round: int, clients: Ints) -> None:
        """Learn that clients (n,) sent an error in a round. ``kind`` is an index into `KINDS`."""
        self._owe(kind, round, clients, _ERROR)

    def heard_late(self, kind: int, client: int, seconds: float) -> None:
        """Learn that a client was slow and not silent. ``kind`` is an index into `KINDS`."""
        self._reduce(kind, np.array([client]), _SILENCE - 1)
        self.heard(kind, np.array([client]), np.array([seconds]))
        if (np.delete(self._debts[client], kind) <= _SILENCE).all():
            self._quarantined_until[client] = 0
            self._ever_quarantined = self._ever_quarantined[self._ever_quarantined != client]

    def _reduce(self, kind: int, clients: Ints, number: int) -> None:
        debts = self._debts[clients, kind]
        self._debts[clients, kind] = debts - np.minimum(debts, number)

    def _owe(self, kind: int, round: int, clients: Ints, number: int) -> None:
        if not self.quarantines:
            return
        debts = np.minimum(self._debts[clients, kind] + number, _LARGEST_DEBT)
        self._debts[clients, kind] = debts
        clients, debts = clients[debts >= _SILENCE], debts[debts >= _SILENCE]
        rounds = _FIRST * float(_GROWTH) ** ((debts - float(_SILENCE)) / _SILENCE)
        until = round + 1 + np.minimum(rounds, _LONGEST).astype(np.int64)
        self._quarantined_until[clients] = np.maximum(self._quarantined_until[clients], until)
        self._ever_quarantined = np.union1d(self._ever_quarantined, clients)

    def add_clients(self, num_clients: int) -> None:
        joining = checks.integer("num_clients", num_clients, low=0)
        kinds = len(KINDS)
        self._times = np.concatenate([self._times, np.full((joining, kinds), nan, dtype=np.float32)])
        self._debts = np.concatenate([self._debts, np.zeros((joining, kinds), dtype=np.uint8)])
        self._quarantined_until = np.concatenate([self._quarantined_until, np.zeros(joining, dtype=np.int64)])

    def state_dict(self) -> dict[str, Array]:
        own: dict[str, Array] = {
            "times": self._times.copy(),
            "debts": self._debts.copy(),
            "until": self._quarantined_until.copy(),
        }
        for kind, pace in self._paces.items():
            own |= {f"{kind}/{name}": array for name, array in pace.state_dict().items()}
        return own

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        kinds = len(KINDS)
        axes = {"times": ("clients", kinds), "debts": ("clients", kinds), "until": ("clients",)}
        arrays: dict[str, Any] = checks.state(state, self.state_dict(), axes)
        for kind, pace in self._paces.items():
            pace.load_state_dict({name: state[f"{kind}/{name}"] for name in ("times", "back_off")})
        self._times, self._debts, self._quarantined_until = arrays["times"], arrays["debts"], arrays["until"]
        self._ever_quarantined = np.flatnonzero(self._quarantined_until)


@dataclass
class _ClientsWait(Wait):
    """A `Wait` from which a `Patience` learns which clients answered, and when."""

    expects_late = True

    patience: Patience
    kind: int
    round: int
    clients: Ints

    def failed(self, position: int, seconds: float) -> None:
        if KINDS[self.kind] != "train":
            super().failed(position, seconds)
            return
        self._failed[position] = True
        self._end = None

    def close(self, waited: float, round: int | None = None) -> None:
        heard, silent = self._outcome(waited)
        super().close(waited, round)
        number = self.round if round is None else round
        self.patience.heard(self.kind, self.clients[heard], self._answered[heard])
        self.patience.missed(self.kind, number, self.clients[silent])
        self.patience.failed(self.kind, number, self.clients[self._failed])

    def late(self, position: int, seconds: float) -> None:
        super().late(position, seconds)
        self.patience.heard_late(self.kind, int(self.clients[position]), seconds)
