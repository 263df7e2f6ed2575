"""What clients send is judged before anything is learned from it: cut off, left out, or its sender put aside.

Rules on arrays; knows no Message.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, log, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Array, Bools, Floats, Ints
from ..options import GuardSettings
from ..selectors import checks
from .limits import ASKED, COUNTED, KINDS, WINDOWS, Changes, Limits, Lines

_PER_CLIENT = ("offences", "quarantined_until", "pauses", "counts")
_ABSURD = 2.0
"""How many times its limit an update is an offence even of a client whose loss is as far off."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a round's answers are worth, aligned with the clients that were judged.

    Attributes
    ----------
    scales : ndarray, shape (S,)
        What each update is multiplied by, in (0, 1]; its norm then is the norm times this.
    losses, gradient_variances : ndarray, shape (S,)
        Bounded; NaN where nothing was reported, or nothing that can be believed.
    rejected : mapping of int to str
        Position -> why the answer is not used at all.
    bounded : mapping of int to str
        Position -> what was bounded or left out of an answer that is used, in one line.
    """

    scales: Floats
    losses: Floats
    gradient_variances: Floats
    rejected: Mapping[int, str] = field(default_factory=dict)
    clipped: Mapping[int, str] = field(default_factory=dict)


class Guard:
    """Bounds what clients send, counts who has to be bounded, and puts repeat offenders aside for a while.

    **Limits.** A value's limit is ``centre · exp(max(log factor, deviations · s (1 + s/4)))`` of recent
    values of many clients: the centre is the median of the newest 32 (of the round's own, if more),
    s the spread of the logarithms of the last `window` clients' values around the centre of their time, by
    quartiles (`numerics.robust.bulk`). A training run's decay or a new learning rate moves the limit within
    a few rounds and does not widen it. Where clients are alike a lie is worth at most `factor`; where honest
    values spread over orders of magnitude, so does the limit. While there are few values s is drawn towards
    0.5. It holds while fewer than a quarter of the clients lie.

    A large loss comes with large gradients: the limit of a loss rises with the cube of its update's norm, as
    far as the norm is within its own, that of a gradient variance with the square.

    What it cannot do: tell a lie from an honest value where honest ones are as large. Where clients are
    unlike, one that says it is ten times larger gets what one ten times larger gets. And a tenth of honest
    clients that are thirty times larger than the others, with nothing in between, are bounded; if their
    losses are as usual, they are put aside.

    **Sizes** are the operator's where it declared them. Claims are bounded alike, over all clients, with
    margins ``max(log factor, deviations · s)``. With sizes of 1, 5, 30 and 100 for 65, 20, 10 and 5 % of the
    clients the limit is 12,000: a claim of 1,000 by one who has 1 stands, and `md` draws it a thousand times
    as often. `afl` doubles its interest in whoever doubles its size. Declare sizes where that matters.

    **Putting aside.** An answer is an offence if it cannot be used (unreadable, wrong shapes, NaN), if a
    number in it is impossible (a negative loss), or beyond twice its limit (and one further s), with nothing
    else in the answer as far off: a loss beside a usual norm, a norm beside a usual loss (or twice as far
    beyond, whatever the loss). An update whose norm is an offence is left out altogether. A client whose last
    `memory` answers hold `strikes` offences is put aside for `pause` rounds, then tried again; at one more
    offence it is put aside for twice as long. A good answer with no offence in the `memory` before halves the
    next pause. No answer is no offence, nor is being bounded by less. When half of the newest values are that
    far beyond, it is the federation that has changed (a learning rate), and nobody's offence.

    **What it costs** honest clients, measured: on the least squares of the OSMD paper's appendix F (σ = 1, 3,
    10; 100 clients, 600 rounds, `uniform`, `avare`, `forecast`) at most 0.06 % of the updates are shortened, by
    at most 3 % of the weighted sum of norms, nearly all in the first 50 rounds, and nobody is put aside. On
    softmax regression with labels by Dirichlet(0.1) none is under `uniform`, `md` and `avare`.

    All that changes is in one dict of arrays, the checkpoint; nothing is random. A round costs O(S + window);
    polls of many candidates a sort of them.

    Parameters
    ----------
    num_clients : int
        M, >= 0.
    settings : GuardSettings, optional
        What is plausible and how offences are punished.

    Raises
    ------
    TypeError, ValueError
        If ``num_clients`` is no integer >= 0.
    """

    def __init__(self, num_clients: int, settings: GuardSettings | None = None) -> None:
        m = checks.integer("num_clients", num_clients, low=0)
        settings = settings or GuardSettings()
        self._window, self._memory, self._strikes = settings.window, settings.memory, settings.strikes
        self._pause, self._longest_pause = settings.pause, settings.longest_pause
        self._limits = Limits(settings.deviations, settings.factor, settings.signed_losses)
        empty = (len(WINDOWS), self._window)
        self._state: dict[str, npt.NDArray[Any]] = {
            # Per client. Offences are bits, the newest lowest: of trained answers, and of polled ones.
            "offences": np.zeros((m, 2), dtype=np.uint8),
            "quarantined_until": np.zeros(m, dtype=np.int64),  # the first round in which it is tried again
            "pauses": np.zeros(m, dtype=np.int64),  # how many that it has not made good
            "counts": np.zeros((m, len(COUNTED)), dtype=np.int64),
            # Last values of the clients heard of most recently, a row a kind, the newest at the end.
            "window_clients": np.full(empty, -1, dtype=np.int64),
            "window_values": np.zeros(empty),
            "window_residuals": np.zeros(empty),  # from the centre when it came in
            "norm_margin": np.zeros(()),  # how far above the centre update norms are believed
        }
        self._ever_aside: Ints = np.empty(0, dtype=np.int64)  # who was put aside at some time, ascending

    @property
    def num_clients(self) -> int:
        """M, how many clients there are."""
        return int(self._state["quarantined_until"].size)

    def judge(
        self,
        round: int,
        clients: npt.ArrayLike,
        norms: npt.ArrayLike,
        losses: npt.ArrayLike,
        gradient_variances: npt.ArrayLike,
        failures: Mapping[int, str] | None = None,
    ) -> Judgement:
        """Judge a round's answers, once a round, and remember them.

        Parameters
        ----------
        round : int
            The round, >= 0.
        clients : array_like of int, shape (S,)
            Distinct indexes of the clients that were chosen.
        norms : array_like, shape (S,)
            Norms of their updates, which the server computed; NaN if no usable answer came.
        losses, gradient_variances : array_like, shape (S,)
            What they reported; NaN = nothing. Any other float may stand there.
        failures : mapping of int to str, optional
            Position -> why what the client sent cannot be used. Who sent nothing (crash, silence, a deadline,
            no wish to train) is not in it.

        Returns
        -------
        Judgement
            What it is worth; a permutation of the clients permutes it, and changes nothing else.

        Raises
        ------
        TypeError, ValueError
            If shapes or indexes are wrong; nothing has changed then.
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
            values[unusable] = nan  # nothing that came with it is believed

        changes, lines = Changes(self._state), Lines()
        changes.count(who[unusable], "answer")
        norm, loss, variance = (
            self._limits.place(changes, kind, who, values, lines)
            for kind, values in zip(KINDS, sent, strict=True)
        )
        # A large loss comes with large gradients: one explains the other. The server has seen the norm;
        # what is beyond its limit is no reason to believe the rest, only not to call it a lie.
        absurd = norm.flagrant(np.minimum(loss.excess, norm.margin + log(_ABSURD)))
        offence = unusable | absurd | norm.impossible | loss.impossible | variance.impossible
        for place in (loss, variance):
            offence |= ~np.isnan(norm.excess) & place.flagrant(norm.excess)
        believed = np.minimum(norm.excess, norm.margin)
        norms, losses, variances = (
            place.clipped(changes, lines, why)
            for place, why in ((norm, believed), (loss, believed), (variance, believed))
        )
        if np.isfinite(norm.margin):
            changes.write("norm_margin", (), norm.margin)
        for i in np.flatnonzero(absurd):
            limit = np.exp(norm.centre + norm.margin)
            rejected[int(i)] = f"update norm {sent[0][i]:.3g}: far beyond the limit of {limit:.3g}"
        answered = unusable | ~np.isnan(sent).all(axis=0)
        self._remember(changes, round, who[answered], offence[answered], polled=False)
        changes.commit()
        with np.errstate(invalid="ignore", divide="ignore", under="ignore"):
            scales = np.where(norms < sent[0], norms / sent[0], 1.0)
        clipped = {i: what for i, what in lines.joined().items() if i not in rejected}
        return Judgement(np.maximum(scales, np.finfo(np.float64).tiny), losses, variances, rejected, clipped)

    def judge_reports(
        self, round: int, candidates: npt.ArrayLike, reports: Mapping[str, npt.ArrayLike]
    ) -> tuple[dict[str, Floats], dict[int, str]]:
        """Judge what candidates reported before the round's choice, once a round, and remember it.

        Offences in polls are counted apart from those in trained answers: only polls make them good.

        Parameters
        ----------
        round : int
            The round, >= 0.
        candidates : array_like of int, shape (C,)
            Distinct indexes of the clients that were asked.
        reports : mapping of str to array_like, shape (C,)
            As for `Selector.select`; NaN = no answer. What is no measurement (``"group"``) passes through.

        Returns
        -------
        dict of ndarray
            The same, bounded; NaN where it cannot be believed.
        dict of int to str
            Position -> what was bounded or left out, in one line.

        Raises
        ------
        TypeError, ValueError
            If shapes or indexes are wrong; nothing has changed then.
        """
        checks.integer("round", round, low=0)
        who = checks.indexes("candidates", candidates, self.num_clients)
        said = {
            name: checks.floats(f"reports[{name!r}]", values, who.size) for name, values in reports.items()
        }
        changes, lines = Changes(self._state), Lines()
        answered, offence = np.zeros((2, who.size), dtype=np.bool_)
        norms = changes.excess_of("update norm", who)
        believed = np.minimum(norms, self._state["norm_margin"])
        for name in sorted(said.keys() & ASKED.keys()):
            answered |= ~np.isnan(said[name])
            place = self._limits.place(changes, ASKED[name], who, said[name], lines)
            offence |= place.impossible | (~np.isnan(norms) & place.flagrant(norms))
            said[name] = place.clipped(changes, lines, believed)
        self._remember(changes, round, who[answered], offence[answered], polled=True)
        changes.commit()
        return said, lines.joined()

    def sizes(self, claimed: npt.ArrayLike, overrides: npt.ArrayLike | None = None) -> Floats:
        """Return how much data each client counts as having.

        Parameters
        ----------
        claimed : array_like, shape (M,)
            What the clients said; NaN = nothing. What is not a size counts as nothing said.
        declared : array_like, shape (M,), optional
            What the operator says, which is taken as it is, in [1e-100, 1e100]; NaN = nothing.

        Returns
        -------
        ndarray, shape (M,)
            Positive: declared, or claimed and at most `size_limit`, or the mean of those where neither is
            known (1 if none is).

        Raises
        ------
        TypeError, ValueError
            If the lengths differ, or a declared size is out of range.
        """
        known, is_claim = self._known_sizes(claimed, overrides)
        limit = self._limits.size(known)
        clipped: Floats = np.where(is_claim, np.minimum(known, limit), known)
        unknown = np.isnan(clipped)
        clipped[unknown] = 1.0 if unknown.all() else clipped[~unknown].mean()
        return clipped

    def size_limit(self, claimed: npt.ArrayLike, overrides: npt.ArrayLike | None = None) -> float:
        """Return the largest size that is believed of a claim, see `sizes`; inf where nobody said any."""
        return self._limits.size(self._known_sizes(claimed, overrides)[0])

    def quarantined(self, round: int) -> Ints:
        """Return the clients put aside in a round, ascending."""
        return self._ever_aside[self._state["quarantined_until"][self._ever_aside] > round]

    def counts(self) -> dict[str, Ints]:
        """Return (M,) for each kind how often the guard stepped in.

        ``"answer"``: an answer could not be used; ``"put aside"``: how often it was; any other: a number of
        that kind was bounded or left out.
        """
        counts: Ints = self._state["counts"]
        return {name: counts[:, column].copy() for column, name in enumerate(COUNTED)}

    def add_clients(self, num_clients: int) -> None:
        """Let clients join; they get the next indexes, and a clean slate.

        Parameters
        ----------
        num_clients : int
            How many, >= 0.
        """
        joining = checks.integer("num_clients", num_clients, low=0)
        self._state = self._state | {
            name: np.concatenate([array, np.zeros((joining, *array.shape[1:]), dtype=array.dtype)])
            for name, array in self._state.items()
            if name in _PER_CLIENT
        }

    def state_dict(self) -> dict[str, Array]:
        """Return copies of all arrays needed to go on, bit for bit, by name."""
        return {name: array.copy() for name, array in self._state.items()}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Go on from a saved state; the number of clients becomes the state's.

        Parameters
        ----------
        state : mapping of str to array
            What `state_dict` returned, of a guard with the same `window`.

        Raises
        ------
        ValueError
            If keys, shapes or dtypes do not fit; nothing has changed then.
        """
        arrays = {name: np.array(array) for name, array in state.items()}
        if arrays.keys() != self._state.keys():
            raise ValueError(f"state has keys {sorted(arrays)}: must be {sorted(self._state)}")
        m = arrays["quarantined_until"].size
        for name, own in self._state.items():
            shape = (m, *own.shape[1:]) if name in _PER_CLIENT else own.shape
            if arrays[name].shape != shape or arrays[name].dtype != own.dtype:
                raise ValueError(
                    f"state[{name!r}] is {arrays[name].dtype} of shape {arrays[name].shape}: "
                    f"must be {own.dtype} of shape {shape}"
                )
        self._state = arrays
        self._ever_aside = np.flatnonzero(arrays["quarantined_until"])

    def _remember(self, changes: Changes, round: int, clients: Ints, offence: Bools, polled: bool) -> None:
        """Write down who offended, and put aside whom it is time to."""
        column, limit = int(polled), (1 << self._memory) - 1
        slate = (self._state["offences"][clients, column].astype(np.int64) << 1 | offence) & limit
        changes.write("offences", (clients, column), slate)
        pauses = self._state["pauses"][clients]
        if not polled:
            pauses[slate == 0] = np.maximum(pauses[slate == 0] - 1, 0)
        struck = np.unpackbits(slate.astype(np.uint8)[:, None], axis=1).sum(axis=1) >= self._strikes
        struck &= offence
        out = clients[struck]
        length = np.minimum(self._pause * 2.0 ** np.minimum(pauses[struck], 60), self._longest_pause)
        pauses[struck] += 1
        changes.write("pauses", clients, pauses)
        changes.write("quarantined_until", out, round + 1 + length.astype(np.int64))
        changes.write("offences", out, (1 << (self._strikes - 1)) - 1)  # on trial: the next is one too many
        changes.count(out, "put aside")
        self._ever_aside = np.union1d(self._ever_aside, out)

    def _known_sizes(self, claimed: npt.ArrayLike, overrides: npt.ArrayLike | None) -> tuple[Floats, Bools]:
        """Return (M,) sizes as declared or claimed, NaN = neither, and which of them are claims."""
        sizes = checks.floats("claimed", claimed)
        sizes[~((sizes >= checks.SMALLEST_SIZE) & (sizes <= checks.LARGEST_SIZE))] = nan
        is_claim = ~np.isnan(sizes)
        if overrides is not None:
            told = checks.floats("overrides", overrides, sizes.size)
            is_told = ~np.isnan(told)
            checks.in_range("overrides", told[is_told], checks.SMALLEST_SIZE, checks.LARGEST_SIZE)
            sizes[is_told] = told[is_told]
            is_claim &= ~is_told
        return sizes, is_claim
