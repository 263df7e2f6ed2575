"""Judges what clients send before anything is learned from it.

Implausible values are clipped, some replies rejected, and repeat offenders quarantined.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, log

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Array, Bools, Floats, Ints
from ..options import GuardSettings
from ..selectors import checks
from .limits import Limits, Remarks
from .recent_values import NORM, POLLED, TRAINED, RecentValues, check_form

_ABSURD = 2.0
"""A large loss excuses a norm up to this many times its limit; an offence begins a gap beyond that."""
_RECENT = "recent/"  # prefix of the keys of the recent values in the state


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a round's replies are worth, aligned with the clients that were judged.

    Attributes
    ----------
    scales : ndarray, shape (S,)
        The factor of each update, in (0, 1]; it reduces the norm to its limit.
    losses, gradient_variances : ndarray, shape (S,)
        Clipped; NaN where nothing was reported, or an impossible value.
    rejected : mapping of int to str
        Position -> why the reply is not used at all.
    clipped : mapping of int to str
        Position -> for a reply that is used: what was clipped or ignored in it, in one line.
    """

    scales: Floats
    losses: Floats
    gradient_variances: Floats
    rejected: Mapping[int, str] = field(default_factory=dict)
    clipped: Mapping[int, str] = field(default_factory=dict)


class Guard:
    """Clips what clients send to plausible limits, counts offences, and quarantines repeat offenders.

    **Limits.** The limit of a value follows from recent values of many clients. It is
    ``centre · exp(max(log factor, deviations · s (1 + s/4)))``:

    - The centre is the median of the newest 32 values, or of all values of this round if there are more than
      32.
    - s is how far the logarithms of values spread around the centres of their rounds, over the last value of
      each of `window` clients, estimated from quartiles (`numerics.robust.bulk`). With few values s is drawn
      towards 0.5.

    So the limit follows the decay of a training run, or a new learning rate, within a few rounds, without
    growing wider. Where clients are alike, a lie gains at most `factor`; where honest values spread over
    orders of magnitude, so does the limit. The limit holds while fewer than a quarter of the clients lie.

    Large losses come with large gradients. While an update's norm is within its own limit, the limit of the
    loss rises with the cube of the norm, and that of the gradient variance with its square.

    The guard cannot tell a lie from an honest value of the same size. Where clients are unlike, one that
    claims a value ten times larger is treated as a client whose value is ten times larger. If a tenth of the
    clients are honestly thirty times larger than the others, with none in between, they are clipped; and if
    their losses are as usual, they are quarantined.

    **Offences.** A reply is an offence if

    - it cannot be used (unreadable, wrong shapes, NaN),
    - it holds an impossible number (a negative loss), or
    - it holds a value beyond twice its limit, or e^s times its limit if that is more, that nothing else in
      the reply explains: a loss beside a usual norm, a norm beside a usual loss. A norm twice as large as
      that (at least four times its limit) is an offence whatever the loss.

    An update whose norm is an offence is rejected. A missing reply is not an offence, nor is a value that is
    clipped but below that bound. If half of the newest values are beyond the bound, the federation has
    changed (a new learning rate, say), and no value of that kind is an offence.

    **Quarantine.** A client with `strikes` offences in its last `memory` replies is quarantined for
    `quarantine` rounds and then selectable again; its next offence quarantines it for twice as long. Each
    trained reply after which its last `memory` replies hold no offence halves the next quarantine.

    **Cost for honest clients**, measured on the least squares of the OSMD paper's appendix F (σ = 1, 3, 10;
    100 clients, 600 rounds, `uniform`, `avare`, `forecast`): at most 0.06 % of the updates are clipped, by at
    most 3 % of the weighted sum of norms, nearly all in the first 50 rounds, and no client is quarantined.
    On softmax regression with labels by Dirichlet(0.1), under `uniform`, `md` and `avare`, none is clipped.

    Nothing is random. A round costs O(S + window); a poll sorts its candidates.

    Parameters
    ----------
    num_clients : int
        M, >= 0.
    settings : GuardSettings, optional
        The rules (default: those of `GuardSettings`).

    Raises
    ------
    TypeError, ValueError
        If ``num_clients`` is no integer >= 0.
    """

    def __init__(self, num_clients: int, settings: GuardSettings | None = None) -> None:
        m = checks.integer("num_clients", num_clients, low=0)
        self._settings = settings or GuardSettings()
        self._limits = Limits(self._settings)
        self._recent = RecentValues(self._settings.window)
        # As bits, the newest lowest: a column of trained replies, and one of polls.
        self._offences = np.zeros((m, 2), dtype=np.uint8)
        self._quarantined_until = np.zeros(m, dtype=np.int64)  # the first round in which it is selectable
        self._pauses = np.zeros(m, dtype=np.int64)  # how often the next quarantine is doubled
        self._ever_quarantined: Ints = np.empty(0, dtype=np.int64)  # ascending

    @property
    def num_clients(self) -> int:
        """M, the number of clients."""
        return self._pauses.size

    def judge(
        self,
        round: int,
        clients: npt.ArrayLike,
        norms: npt.ArrayLike,
        losses: npt.ArrayLike,
        gradient_variances: npt.ArrayLike,
        failures: Mapping[int, str] | None = None,
    ) -> Judgement:
        """Judge a round's replies, once a round, and remember them.

        Parameters
        ----------
        round : int
            The round, >= 0.
        clients : array_like of int, shape (S,)
            Distinct indexes of the selected clients.
        norms : array_like, shape (S,)
            Norms of their updates, which the server computed; NaN without a usable update.
        losses, gradient_variances : array_like, shape (S,)
            As reported; NaN = not reported. Any other float is allowed.
        failures : mapping of int to str, optional
            Position -> why the client's reply cannot be used. Clients that sent nothing (a crash, silence, a
            deadline, a refusal to train) do not count.

        Returns
        -------
        Judgement
            A permutation of the clients permutes it, and changes nothing else.

        Raises
        ------
        TypeError, ValueError
            If shapes or indexes are wrong; then nothing has changed.
        """
        checks.integer("round", round, low=0)
        who = checks.indexes("clients", clients, self.num_clients)
        sent = [
            checks.floats(name, values, who.size)
            for name, values in zip(
                ("norms", "losses", "gradient_variances"), (norms, losses, gradient_variances), strict=True
            )
        ]
        rejected = dict(failures or {})
        for position in rejected:
            checks.integer("failures: position", position, low=0, high=who.size - 1)
        for no_norm in np.flatnonzero((sent[0] == inf) | (sent[0] < 0)):
            rejected.setdefault(int(no_norm), f"update norm {sent[0][no_norm]:g}: must be finite and >= 0")
        unusable = np.zeros(who.size, dtype=np.bool_)
        unusable[list(rejected)] = True
        for values in sent:
            values[unusable] = np.nan  # nothing else in such a reply is believed

        remarks = Remarks()
        norm, loss, variance = (
            self._limits.place(self._recent, kind, who, values, remarks)
            for kind, values in zip(TRAINED, sent, strict=True)
        )
        # A large loss and a large norm explain each other. The server has seen the norm: one beyond its
        # limit does not make the other values plausible (they are clipped), but then they are no offences.
        absurd = norm.flagrant(np.minimum(loss.excess, norm.margin + log(_ABSURD)))
        offence = unusable | absurd | norm.impossible | loss.impossible | variance.impossible
        for placed in (loss, variance):
            offence |= ~np.isnan(norm.excess) & placed.flagrant(norm.excess)
        believed = np.minimum(norm.excess, norm.margin)
        norms, losses, variances = (placed.clipped(remarks, believed) for placed in (norm, loss, variance))
        for i in np.flatnonzero(absurd):
            limit = np.exp(norm.centre + norm.margin)
            rejected[int(i)] = f"update norm {sent[0][i]:.3g}: far beyond the limit of {limit:.3g}"
        replied = unusable | ~np.isnan(sent).all(axis=0)
        self._count(round, who[replied], offence[replied], polled=False)
        with np.errstate(invalid="ignore", divide="ignore", under="ignore"):
            scales = np.where(norms < sent[0], norms / sent[0], 1.0)
        clipped = {i: line for i, line in remarks.lines().items() if i not in rejected}
        return Judgement(np.maximum(scales, np.finfo(np.float64).tiny), losses, variances, rejected, clipped)

    def judge_reports(
        self, round: int, candidates: npt.ArrayLike, reports: Mapping[str, npt.ArrayLike]
    ) -> tuple[dict[str, Floats], dict[int, str]]:
        """Judge what candidates reported before the selection, once a round, and remember it.

        Offences in polls are counted apart from those in trained replies, and only polls without an offence
        clear them.

        Parameters
        ----------
        round : int
            The round, >= 0.
        candidates : array_like of int, shape (C,)
            Distinct indexes of the polled clients.
        reports : mapping of str to array_like, shape (C,)
            As for `Selector.select`; NaN = not reported. What is not a measurement (``"group"``) is kept.

        Returns
        -------
        dict of ndarray
            The same reports, clipped; NaN instead of impossible values.
        dict of int to str
            Position -> what was clipped or ignored, in one line.

        Raises
        ------
        TypeError, ValueError
            If shapes or indexes are wrong; then nothing has changed.
        """
        checks.integer("round", round, low=0)
        who = checks.indexes("candidates", candidates, self.num_clients)
        judged = {
            name: checks.floats(f"reports[{name!r}]", values, who.size) for name, values in reports.items()
        }
        remarks = Remarks()
        answered, offence = np.zeros((2, who.size), dtype=np.bool_)
        norms = self._recent.excess_of(NORM, who)
        believed = np.minimum(norms, self._recent.norm_margin)
        for name in sorted(judged.keys() & POLLED.keys()):
            answered |= ~np.isnan(judged[name])
            placed = self._limits.place(self._recent, POLLED[name], who, judged[name], remarks)
            offence |= placed.impossible | (~np.isnan(norms) & placed.flagrant(norms))
            judged[name] = placed.clipped(remarks, believed)
        self._count(round, who[answered], offence[answered], polled=True)
        return judged, remarks.lines()

    def quarantined(self, round: int) -> Ints:
        """Return the clients that are not selectable in a round, ascending."""
        return self._ever_quarantined[self._quarantined_until[self._ever_quarantined] > round]

    def add_clients(self, num_clients: int) -> None:
        """Let clients join; they get the next indexes and start without an offence.

        Parameters
        ----------
        num_clients : int
            How many, >= 0.
        """
        joining = checks.integer("num_clients", num_clients, low=0)
        self._offences, self._quarantined_until, self._pauses = (
            np.concatenate([array, np.zeros((joining, *array.shape[1:]), dtype=array.dtype)])
            for array in (self._offences, self._quarantined_until, self._pauses)
        )

    def state_dict(self) -> dict[str, Array]:
        """Return copies of all arrays needed to go on, bit for bit, by name."""
        own: dict[str, Array] = {name: array.copy() for name, array in self._per_client().items()}
        return own | {_RECENT + name: array for name, array in self._recent.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Go on from a saved state; the number of clients becomes the state's.

        Parameters
        ----------
        state : mapping of str to array
            What `state_dict` returned, of a guard with the same `window`.

        Raises
        ------
        ValueError
            If keys, shapes or dtypes do not fit; then nothing has changed.
        """
        recent = {name.removeprefix(_RECENT): state[name] for name in state if name.startswith(_RECENT)}
        arrays = {name: np.array(state[name]) for name in state if not name.startswith(_RECENT)}
        own = self._per_client()
        if arrays.keys() != own.keys():
            raise ValueError(f"state has keys {sorted(arrays)}: must be {sorted(own)}")
        for name, array in own.items():
            check_form(name, arrays[name], (arrays["pauses"].size, *array.shape[1:]), array.dtype)
        self._recent.load_state_dict(recent)
        self._offences, self._pauses = arrays["offences"], arrays["pauses"]
        self._quarantined_until = arrays["quarantined_until"]
        self._ever_quarantined = np.flatnonzero(self._quarantined_until)

    def _per_client(self) -> dict[str, Array]:
        return {
            "offences": self._offences,
            "quarantined_until": self._quarantined_until,
            "pauses": self._pauses,
        }

    def _count(self, round: int, clients: Ints, offence: Bools, polled: bool) -> None:
        """Count the offences of clients that replied, and quarantine those that have too many."""
        column, limit = int(polled), (1 << self._settings.memory) - 1
        recent = (self._offences[clients, column].astype(np.int64) << 1 | offence) & limit
        self._offences[clients, column] = recent
        pauses = self._pauses[clients]
        if not polled:
            pauses[recent == 0] = np.maximum(pauses[recent == 0] - 1, 0)
        struck = np.unpackbits(recent.astype(np.uint8)[:, None], axis=1).sum(axis=1) >= self._settings.strikes
        struck &= offence
        out = clients[struck]
        length = np.minimum(
            self._settings.quarantine * 2.0 ** np.minimum(pauses[struck], 60),
            self._settings.longest_quarantine,
        )
        pauses[struck] += 1
        self._pauses[clients] = pauses
        self._quarantined_until[out] = round + 1 + length.astype(np.int64)
        self._offences[out] = (1 << (self._settings.strikes - 1)) - 1  # one more offence is enough
        self._ever_quarantined = np.union1d(self._ever_quarantined, out)
