"""The contract of all selectors: who trains in a round, what their updates weigh, what is learned from it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Array, Bools, Floats, Ints
from . import checks
from .invitation import Invitation
from .presence import FEW, NOBODY, Presence
from .records import Feedback, Selection
from .settings import PerClient, Setting, Settings

T = TypeVar("T")


class Selector(ABC):
    """Decides who trains in each round.

    All that changes over a run is in one dict of read-only arrays, replaced as a whole: it is the checkpoint,
    and an error leaves it as it was. Randomness is a function of (seed, round). Indexes are dense,
    0..num_clients-1; those of removed clients are not given again.

    Parameters
    ----------
    num_clients : int
        M, >= 1.
    client_sizes : array_like, shape (M,), optional
        Any positive numbers (samples held), in [1e-100, 1e100]; λ = sizes / sum (default: all 1).
    clients_per_round : int
        K, from 1 to M.
    num_rounds : int, optional
        T, >= 1, for selectors with a horizon.
    seed : int
        Seed of every draw, >= 0 (default: 0).
    **settings
        The selector's own, see `allowed_settings`.

    Raises
    ------
    TypeError, ValueError
        If an argument is refused; the text names it, its value and what is allowed.
    """

    name: ClassVar[str]
    unbiased: ClassVar[Literal["round", "long-run", "none"]]
    polls_for: ClassVar[frozenset[str]] = frozenset()
    equal_weight_draws: ClassVar[Literal["always", "with replacement", "never"]] = "never"
    """Whether each draw may have one vote of equal weight, as a median of the replies asks for: never where
    weights make up for unequal chances."""
    data_independent: ClassVar[bool] = False
    """Whether nothing that clients learn from their data decides who is chosen or what weighs what. Sizes,
    groups and constants given beforehand count as public."""
    feedback_used: ClassVar[frozenset[str]] = frozenset()
    """What `update` must be told that costs something to measure: of "diversity", "gradient_variance"."""
    clients_decide: ClassVar[bool] = False
    """Whether clients themselves accept an `invitation` to train and scale their own updates, so that the
    server cannot tell single updates apart."""
    state_axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "selector": ("letters",),
        "client_sizes": ("clients",),
        "registered": ("clients",),
    }
    """Keys of the state and the names of their axes; axes of one name have one length."""
    per_client: ClassVar[Mapping[str, PerClient]] = {}
    """Settings with a value for each client: arrays at the start, and for those who join."""

    settings_type: ClassVar[type[Settings]] = Settings
    _settings: Settings

    def __init__(
        self,
        num_clients: int,
        *,
        client_sizes: npt.ArrayLike | None = None,
        clients_per_round: int,
        num_rounds: int | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        num_clients = checks.integer("num_clients", num_clients, low=1)
        sizes = np.ones(num_clients)
        if client_sizes is not None:
            sizes = checks.sizes("client_sizes", client_sizes, num_clients)
        self._clients_per_round = checks.integer(
            "clients_per_round", clients_per_round, low=1, high=num_clients, why="the number of clients"
        )
        self._num_rounds = None if num_rounds is None else checks.integer("num_rounds", num_rounds, low=1)
        self._seed = checks.integer("seed", seed, low=0)
        each = {
            name: kind.check(name, settings.pop(name, None), num_clients)
            for name, kind in self.per_client.items()
        }
        self._settings = self.settings_type.of(settings)
        self._state: dict[str, Array] = {}
        self._memo: dict[str, tuple[tuple[str, ...], Any]] = {}
        self._assign(
            {
                # Bytes rather than str: every array format can hold them.
                "selector": np.frombuffer(self.name.encode(), dtype=np.uint8),
                "client_sizes": sizes,
                "registered": np.ones(num_clients, dtype=np.bool_),
                **each,
            }
        )
        self._assign(self._initial_state())

    @property
    def num_clients(self) -> int:
        """M: how many indexes were ever given, those of removed clients included."""
        return self._registered.size

    @property
    def client_sizes(self) -> Floats:
        """(M,) sizes, read-only; removed clients keep theirs."""
        sizes: Floats = self._array("client_sizes")
        return sizes

    @property
    def registered(self) -> Bools:
        """(M,) who was not removed, read-only."""
        return self._registered

    @property
    def settings(self) -> Settings:
        """The selector's settings, frozen."""
        return self._settings

    @classmethod
    def allowed_settings(cls) -> dict[str, Setting]:
        """Return each setting's default, range and meaning, by name."""
        return cls.settings_type.allowed()

    @property
    @abstractmethod
    def probabilities(self) -> Floats:
        """(M,) current sampling distribution; sums to 1 over the registered clients, 0 for the removed."""

    @property
    def diversity_mean(self) -> Literal["weighted", "plain"]:
        """The mean from which ``Feedback.diversities`` are distances: with the round's weights, or plain."""
        return "weighted"

    @property
    def poll_settings(self) -> Mapping[str, int | float]:
        """What a poll tells each candidate besides the round; empty where there is nothing to tell.

        A poll for "loss": "batch-size", of how many random samples the mean loss is reported (default: all).
        A poll for "group": "num-groups" G and "epsilon" ε of randomised response.
        """
        return {}

    def target_shares(
        self, *, available: npt.ArrayLike | None = None, unavailable: npt.ArrayLike | None = None
    ) -> Floats:
        """Return (M,) the share of each client in what the aggregate estimates: λ over the available clients.

        Parameters
        ----------
        available, unavailable : array_like of int, optional
            As for `select`.
        """
        sizes = np.where(self._presence(available, unavailable).mask, self.client_sizes, 0.0)
        shares: Floats = sizes / (sizes.sum() or 1.0)
        return shares

    def candidates(
        self, round: int, *, available: npt.ArrayLike | None = None, unavailable: npt.ArrayLike | None = None
    ) -> Ints | None:
        """Return whom to ask before `select`, or None where nobody needs to be asked.

        Parameters
        ----------
        round : int
            The round, >= 0.
        available, unavailable : array_like of int, optional
            Distinct indexes, at most one of the two; neither means everyone.
        """
        return None

    def invitation(
        self,
        round: int,
        candidates: npt.ArrayLike,
        reports: Mapping[str, Floats],
        *,
        budget: float | None = None,
    ) -> Invitation | None:
        """Return what the candidates are sent to decide for themselves, or None where `select` decides.

        It is the second exchange of a round, after that of `candidates` and before `select`, which is then
        told who said yes: ``reports["accepts"]`` (1, 0, or NaN = no answer), beside what was reported before.

        Parameters
        ----------
        round : int
            The round, >= 0.
        candidates, reports, budget
            As for `select`, which must be given the same.
        """
        return None

    @abstractmethod
    def select(
        self,
        round: int,
        *,
        available: npt.ArrayLike | None = None,
        unavailable: npt.ArrayLike | None = None,
        candidates: npt.ArrayLike | None = None,
        reports: Mapping[str, Floats] | None = None,
        budget: float | None = None,
    ) -> Selection:
        """Choose who trains in this round; the same arguments and state give the same answer.

        Parameters
        ----------
        round : int
            The round, >= 0.
        available : array_like of int, optional
            Distinct indexes of registered clients that are here.
        unavailable : array_like of int, optional
            Distinct indexes of those who are not; at most one of the two is given, neither means everyone.
        candidates, reports
            Who was asked, and what they said (arrays by name, NaN = no answer), where `polls_for` asks for it.
        budget : float, optional
            This round's K where it varies, finite and >= 0, rounded down (default: clients_per_round).

        Returns
        -------
        Selection
            Empty if nobody is here or the budget is below 1.

        Raises
        ------
        TypeError, ValueError
            If an argument is refused.
        """

    def finalize(self, selection: Selection, responded: npt.ArrayLike) -> Floats:
        """Return the weights once it is known who answered: c_m S/S' for the S' who did, 0 for the others.

        Assumption: every chosen client fails independently with the same probability. Then, given the
        selection and S' >= 1, each subset of size S' is equally likely, and the expectation of the estimate
        is exactly that with everybody's answer.

        Parameters
        ----------
        selection : Selection
            What `select` returned.
        responded : array_like of bool, shape (S,)
            Who answered.

        Returns
        -------
        ndarray, shape (S,)
            The weights; all 0 if nobody answered.

        Raises
        ------
        TypeError, ValueError
            If `responded` is not (S,) bool.
        """
        answered = checks.bools("responded", responded, selection.clients.size)
        number = int(np.count_nonzero(answered))
        if number == answered.size:
            return selection.weights.copy()
        return np.where(answered, selection.weights * (answered.size / max(1, number)), 0.0)

    def update(self, round: int, selection: Selection, feedback: Feedback) -> None:
        """Learn from a round.

        Parameters
        ----------
        round : int
            The round, >= 0.
        selection : Selection
            What `select` returned.
        feedback : Feedback
            Aligned with the selection. Clients removed since are not learned from.

        Raises
        ------
        TypeError, ValueError
            If an argument is refused; nothing has changed then.
        """
        checks.integer("round", round, low=0)
        # That a selection's are distinct and >= 0 it has checked itself.
        checks.known("selection.clients", selection.clients, self.num_clients)
        checks.bools("feedback.responded", feedback.responded, selection.clients.size)
        self._assign(self._learn(round, selection, feedback))

    def add_clients(self, client_sizes: npt.ArrayLike, **per_client: npt.ArrayLike) -> None:
        """Let n clients join; they get the next n indexes.

        Parameters
        ----------
        client_sizes : array_like, shape (n,)
            Their sizes, in the unit of the others' (1 each where none were given).
        **per_client
            Arrays of shape (n,) that a selector with per-client settings asks for.

        Raises
        ------
        TypeError, ValueError
            If an argument is refused; nothing has changed then.
        """
        for name in per_client.keys() - self.per_client.keys():
            raise ValueError(f"{name}: {self.name} has no such setting per client")
        joining = checks.sizes("client_sizes", client_sizes)
        registered = np.concatenate([self._registered, np.ones(joining.size, dtype=np.bool_)])
        changes: dict[str, Array] = {
            "client_sizes": np.concatenate([self.client_sizes, joining]),
            "registered": registered,
        }
        for name, kind in self.per_client.items():
            values = kind.check(name, per_client.get(name), joining.size)
            changes[name] = np.concatenate([self._array(name), values])
        self._assign(changes | self._joined(registered))

    def set_sizes(self, clients: npt.ArrayLike, client_sizes: npt.ArrayLike) -> None:
        """Correct the sizes of clients.

        Parameters
        ----------
        clients : array_like of int, shape (n,)
            Distinct indexes of registered clients.
        client_sizes : array_like, shape (n,)
            Their sizes.

        Raises
        ------
        TypeError, ValueError
            If an argument is refused; nothing has changed then.
        """
        who = self._registered_indexes("clients", clients)
        sizes = self.client_sizes.copy()
        sizes[who] = checks.sizes("client_sizes", client_sizes, who.size)
        self._assign({"client_sizes": sizes})

    def remove_clients(self, clients: npt.ArrayLike) -> None:
        """Take clients out for good; their indexes are not given again. All may go.

        Parameters
        ----------
        clients : array_like of int, shape (n,)
            Distinct indexes of registered clients.

        Raises
        ------
        TypeError, ValueError
            If one is unknown or already removed; nothing has changed then.
        """
        registered = self._registered.copy()
        registered[self._registered_indexes("clients", clients)] = False
        changes: dict[str, Array] = {"registered": registered}
        self._assign(changes | self._left(registered))

    def state_dict(self) -> dict[str, Array]:
        """Return copies of all arrays needed to go on, bit for bit, by name."""
        return {key: array.copy() for key, array in self._state.items()}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Go on from a saved state; the number of clients becomes the state's.

        Parameters
        ----------
        state : mapping of str to array
            What `state_dict` returned, of a selector of the same name and settings.

        Raises
        ------
        ValueError
            If name, keys, shapes or dtypes do not fit; nothing has changed then.
        """
        arrays = {key: np.array(value) for key, value in state.items()}
        all_axes = {**self.state_axes, **dict.fromkeys(self.per_client, ("clients",))}
        if arrays.keys() != all_axes.keys():
            raise ValueError(f"state has keys {sorted(arrays)}: must be {sorted(all_axes)}")
        if not np.array_equal(arrays["selector"], self._state["selector"]):
            raise ValueError(
                f"state['selector'] = {arrays['selector'].tobytes()!r}: must be {self.name.encode()!r}"
            )
        lengths: dict[str, int] = {}
        for key, axes in all_axes.items():
            array, dtype = arrays[key], self._state[key].dtype
            if array.dtype != dtype:
                raise ValueError(f"state[{key!r}] has dtype {array.dtype}: must be {dtype}")
            if array.ndim != len(axes) or any(
                lengths.setdefault(axis, length) != length
                for axis, length in zip(axes, array.shape, strict=True)
            ):
                raise ValueError(
                    f"state[{key!r}] has shape {array.shape}: must be ({', '.join(axes)}), {lengths}"
                )
        self._check_state(arrays)
        self._assign(arrays)

    # What a selector adds. Each hook returns the arrays that change, by name, and assigns nothing.

    def _initial_state(self) -> dict[str, Array]:
        """Return the selector's own part of the state at the start."""
        return {}

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        """Return what a round changes; the arguments are checked."""
        return {}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        """Return what joiners change; `registered` (M,) already has them at its end, ``self`` does not."""
        return {}

    def _left(self, registered: Bools) -> dict[str, Array]:
        """Return what leavers change; `registered` (M,) is already without them, ``self`` still has them."""
        return {}

    def _check_state(self, state: Mapping[str, Array]) -> None:
        """Refuse a state to load whose arrays have the right form but hold what they must not."""
        checks.sizes("state['client_sizes']", state["client_sizes"])

    # Common machinery.

    @property
    def _registered(self) -> Bools:
        registered: Bools = self._array("registered")
        return registered

    def _array(self, key: str) -> Any:
        return self._state[key]

    def _cached(self, name: str, keys: tuple[str, ...], compute: Callable[[], T]) -> T:
        """Return what `compute` makes of these arrays of the state, kept until one of them is replaced."""
        known = self._memo.get(name)
        if known is None:
            known = self._memo[name] = (keys, compute())
        value: T = known[1]
        return value

    @property
    def _num_registered(self) -> int:
        return self._cached(
            "num_registered", ("registered",), lambda: int(np.count_nonzero(self._registered))
        )

    @property
    def _registered_size(self) -> float:
        """The sum of the registered clients's sizes."""

        def compute() -> float:
            everyone = self._num_registered == self.num_clients
            return float((self.client_sizes if everyone else self.client_sizes[self._registered]).sum())

        return self._cached("registered_size", ("registered", "client_sizes"), compute)

    def _assign(self, changes: Mapping[str, Array]) -> None:
        for array in changes.values():
            array.setflags(write=False)
        self._state = {**self._state, **changes}
        self._memo = {
            name: known for name, known in self._memo.items() if changes.keys().isdisjoint(known[0])
        }

    def _registered_indexes(self, name: str, values: npt.ArrayLike) -> Ints:
        clients = checks.indexes(name, values, self.num_clients)
        gone = clients[~self._registered[clients]]
        if gone.size:
            raise ValueError(f"{name} holds {gone[0]}: that client was removed")
        return clients

    def _here(self, available: npt.ArrayLike | None, unavailable: npt.ArrayLike | None) -> Ints:
        """Return the registered clients clients that are here, ascending."""
        return self._presence(available, unavailable).clients

    def _presence(self, available: npt.ArrayLike | None, unavailable: npt.ArrayLike | None) -> Presence:
        """Return who is here, without a pass over all clients unless many are said to be absent.

        Which argument said it makes no difference to the answer.
        """
        if available is not None and unavailable is not None:
            raise ValueError(
                f"available = {available}, unavailable = {unavailable}: must be at most one of them"
            )
        registered, count = self._registered, self._num_registered
        if available is None and unavailable is None:
            return Presence(registered, self.client_sizes, count, self._registered_size, NOBODY)
        if available is not None:
            listed = np.sort(self._registered_indexes("available", available))
            if (count - listed.size) * FEW > count:
                return Presence(
                    registered, self.client_sizes, listed.size, self._registered_size, None, listed
                )
            elsewhere = registered.copy()
            elsewhere[listed] = False
            absent = np.flatnonzero(elsewhere)
        else:
            named = checks.indexes("unavailable", unavailable, self.num_clients)
            absent = np.sort(named[registered[named]])
        few = Presence(registered, self.client_sizes, count - absent.size, self._registered_size, absent)
        if absent.size * FEW <= count:
            return few
        return Presence(registered, self.client_sizes, few.count, self._registered_size, None, few.clients)

    def _cohort_size(self, budget: float | None) -> int:
        """Return this round's K: the budget rounded down, or `clients_per_round`."""
        return self._clients_per_round if budget is None else int(checks.real("budget", budget, low=0))

    def _answers(
        self,
        kind: str,
        candidates: npt.ArrayLike | None,
        reports: Mapping[str, Floats] | None,
        here: Presence,
    ) -> tuple[Ints, Floats]:
        """Return (candidates, values) of those who answered and are here, in the order of the candidates.

        Raises
        ------
        TypeError, ValueError
            If the candidates or the report called ``kind`` are missing, or do not fit together.
        """
        if candidates is None or reports is None or kind not in reports:
            raise ValueError(
                f"reports = {reports}: {self.name} needs {kind!r} of its candidates before it selects"
            )
        asked = checks.indexes("candidates", candidates, self.num_clients)
        values = checks.floats(f"reports[{kind!r}]", reports[kind], asked.size)
        answered = np.isfinite(values)
        if here.count < self.num_clients:
            answered &= here.mask[asked]
        return (asked, values) if answered.all() else (asked[answered], values[answered])

    def _reported(
        self, selection: Selection, feedback: Feedback, values: Floats
    ) -> tuple[Ints, Floats, Floats]:
        """Return (clients, importance, values) of those whose value is usable.

        S'' of S chosen clients are: their importance is W S/S'', on the assumption of `finalize`.
        """
        usable = feedback.responded & np.isfinite(values) & self._registered[selection.clients]
        number = int(np.count_nonzero(usable))
        if number == usable.size:
            return selection.clients, selection.importance, values
        scale = usable.size / max(1, number)
        return selection.clients[usable], selection.importance[usable] * scale, values[usable]
