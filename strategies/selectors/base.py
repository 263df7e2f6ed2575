"""The contract of all selectors: which clients train in a round, their weights, what is learned from them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Array, Bools, Floats, Ints
from . import checks
from .context import RoundContext
from .invitation import Invitation
from .presence import NOBODY, Presence
from .records import Feedback, Selection
from .settings import PerClient, Setting, Settings

T = TypeVar("T")


class Selector(ABC):
    """Decides which clients train in each round.

    All that changes over a run is one dict of read-only arrays, replaced as a whole: the dict is the
    checkpoint, and an error leaves it as it was. Random draws are a function of (seed, round). Clients are
    dense indexes, 0..num_clients-1; an index is never given twice, even if its client is removed.

    A subclass writes `_distribution`, `_select` and, if it learns, `_learn` with its part of the state
    (`state_axes`, `_initial_state`). `probability.ProbabilitySelector` has a `_select` for all that draw from
    their distribution.

    Parameters
    ----------
    num_clients : int
        M, >= 1.
    client_sizes : array_like, shape (M,), optional
        Samples held, or any other positive numbers, in [1e-100, 1e100]; λ = sizes / sum (default: all 1).
    clients_per_round : int
        K, from 1 to M.
    num_rounds : int, optional
        T, >= 1, for selectors with a horizon.
    seed : int
        Seed of every draw, >= 0 (default: 0).
    **settings
        The selector's own settings, see `allowed_settings` and `per_client`.

    Raises
    ------
    TypeError, ValueError
        If an argument is refused; the message names it, its value and what is allowed.
    """

    name: ClassVar[str]
    unbiased: ClassVar[Literal["round", "long-run", "none"]]
    """Whether E[sum_m c_m u_m] is the mean of any fixed updates u with weights `target_shares`: in each
    round, only over the availability of clients in many rounds, or not at all."""
    polls_for: ClassVar[frozenset[str]] = frozenset()
    """What candidates must report before `select`: of "loss", "update_norm", "gradient_variance",
    "diversity", "group"."""
    feedback_used: ClassVar[frozenset[str]] = frozenset()
    """Which fields of `Feedback` that are costly to measure `update` uses: of "diversity",
    "gradient_variance"."""
    data_independent: ClassVar[bool] = False
    """Whether nothing that clients learn from their data changes a selection or a weight. Sizes, groups and
    constants given beforehand count as public."""
    equal_weight_draws: ClassVar[Literal["always", "with replacement", "never"]] = "never"
    """Whether each draw may have one vote of equal weight, as a median of the replies needs: never where
    weights correct for unequal probabilities."""
    clients_decide: ClassVar[bool] = False
    """Whether clients themselves accept an `invitation` to train and scale their own updates, so that the
    server cannot tell single updates apart."""
    state_axes: ClassVar[dict[str, tuple[str, ...]]] = {
        "selector": ("letters",),
        "client_sizes": ("clients",),
        "registered": ("clients",),
    }
    """Keys of the state and the names of their axes; axes of one name have one length."""
    per_client: ClassVar[dict[str, PerClient]] = {}
    """Settings with a value for each client: arrays at the start, and for clients that join."""

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
        """M: the number of indexes ever given, those of removed clients included."""
        return self._registered.size

    @property
    def clients_per_round(self) -> int:
        """K."""
        return self._clients_per_round

    @property
    def client_sizes(self) -> Floats:
        """(M,) sizes, read-only; removed clients keep theirs."""
        sizes: Floats = self._array("client_sizes")
        return sizes

    @property
    def registered(self) -> Bools:
        """(M,) which clients were not removed, read-only."""
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
    def probabilities(self) -> Floats:
        """(M,) current sampling distribution, read-only; sums to 1 over the registered clients."""
        p = self._distribution()
        p.flags.writeable = False
        return p

    @property
    def diversity_mean(self) -> Literal["weighted", "plain"]:
        """The mean from which ``Feedback.diversities`` are distances: with the round's weights, or plain."""
        return "weighted"

    @property
    def poll_settings(self) -> Mapping[str, int | float]:
        """What a poll sends each candidate besides the round.

        A poll for "loss": "batch-size", the number of random samples whose mean loss is reported (default:
        all). A poll for "group": "num-groups" G, and "epsilon" ε of randomised response.
        """
        return {}

    def target_shares(
        self, *, available: npt.ArrayLike | None = None, unavailable: npt.ArrayLike | None = None
    ) -> Floats:
        """Return (M,) the share of each client in the mean that the aggregate estimates.

        It is λ over the available clients; selectors that are unbiased over time include the others.

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
        """Return the clients to poll before `select`, or None where there is nothing to poll for.

        Parameters
        ----------
        round : int
            The round, >= 0.
        available, unavailable : array_like of int, optional
            As for `select`.
        """
        return self._candidates(self._context(round, available, unavailable)) if self.polls_for else None

    def invitation(
        self,
        round: int,
        candidates: npt.ArrayLike,
        reports: Mapping[str, Floats],
        *,
        budget: float | None = None,
    ) -> Invitation | None:
        """Return what the candidates are sent to decide for themselves, or None where `select` decides.

        It is the second exchange of a round, after the poll and before `select`, which then gets the
        answers as ``reports["accepts"]`` (1, 0, or NaN = no answer), beside the reports of the poll.

        Parameters
        ----------
        round : int
            The round, >= 0.
        candidates, reports, budget
            As for `select`, which must get the same.
        """
        if not self.clients_decide:
            return None
        return self._invite(
            self._polled(self._context(round, budget=budget), candidates, reports, self.polls_for)
        )

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
        """Select the clients that train in this round; the same arguments and state give the same answer.

        Parameters
        ----------
        round : int
            The round, >= 0.
        available : array_like of int, optional
            Distinct indexes of the available clients, all of them registered.
        unavailable : array_like of int, optional
            Distinct indexes of the others. At most one of the two is given; neither means everyone.
        candidates : array_like of int, shape (n,), optional
            The polled clients; needed, as is `reports`, where `polls_for` is not empty.
        reports : mapping of str to array_like, shape (n,), optional
            What they reported, by name; NaN = no answer.
        budget : float, optional
            K of this round if it varies, finite and >= 0, rounded down (default: clients_per_round).

        Returns
        -------
        Selection
            Empty if nobody is available or the budget is below 1.

        Raises
        ------
        TypeError, ValueError
            If an argument is refused.
        """
        context = self._context(round, available, unavailable, budget)
        if context.k == 0 or context.available.count == 0:
            return Selection.nobody()
        needed = self.polls_for | {"accepts"} if self.clients_decide else self.polls_for
        return self._select(self._polled(context, candidates, reports, needed))

    def finalize(self, selection: Selection, responded: npt.ArrayLike) -> Floats:
        """Return the weights once the replies are in: c_m S/S' for the S' that responded, 0 for the others.

        Assumption: every selected client fails independently with the same probability. Then, given the
        selection and S' >= 1, each subset of size S' is equally likely, and the expectation of the estimate
        equals the estimate with everybody's reply.

        Parameters
        ----------
        selection : Selection
            What `select` returned.
        responded : array_like of bool, shape (S,)
            Which clients responded.

        Returns
        -------
        ndarray, shape (S,)
            The weights; all 0 if nobody responded.

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
            Aligned with the selection. Clients removed since then teach nothing.

        Raises
        ------
        TypeError, ValueError
            If an argument is refused; nothing has changed then.
        """
        checks.integer("round", round, low=0)
        # A selection has checked itself that its clients are distinct and >= 0.
        checks.known("selection.clients", selection.clients, self.num_clients)
        checks.bools("feedback.responded", feedback.responded, selection.clients.size)
        self._assign(self._learn(round, selection, feedback))

    def add_clients(self, client_sizes: npt.ArrayLike, **per_client: npt.ArrayLike) -> None:
        """Register n more clients; they get the next n indexes.

        Parameters
        ----------
        client_sizes : array_like, shape (n,)
            Their sizes, in the unit of the others' (1 each where none were given).
        **per_client
            The selector's settings per client, arrays of shape (n,).

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
        indexes = self._registered_indexes("clients", clients)
        sizes = self.client_sizes.copy()
        sizes[indexes] = checks.sizes("client_sizes", client_sizes, indexes.size)
        self._assign({"client_sizes": sizes})

    def remove_clients(self, clients: npt.ArrayLike) -> None:
        """Remove clients for good; their indexes are not given again. All clients may be removed.

        Parameters
        ----------
        clients : array_like of int, shape (n,)
            Distinct indexes of registered clients.

        Raises
        ------
        TypeError, ValueError
            If a client is unknown or already removed; nothing has changed then.
        """
        registered = self._registered.copy()
        registered[self._registered_indexes("clients", clients)] = False
        changes: dict[str, Array] = {"registered": registered}
        self._assign(changes | self._left(registered))

    def state_dict(self) -> dict[str, Array]:
        """Return copies of all arrays needed to continue, bit for bit, by name."""
        return {key: array.copy() for key, array in self._state.items()}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Continue from a saved state; the number of clients becomes that of the state.

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

    # What a selector writes. The hooks that return a dict return the arrays that change, and assign nothing.

    @abstractmethod
    def _distribution(self) -> Floats:
        """Return `probabilities` in a fresh array: 0 for the removed clients, all 0 if all are removed."""

    @abstractmethod
    def _select(self, context: RoundContext) -> Selection:
        """Select clients; at least one is available, and ``context.k`` is at least 1."""

    def _candidates(self, context: RoundContext) -> Ints:
        """Return the clients to poll, where `polls_for` is not empty; here all that are available."""
        return context.available.clients

    def _invite(self, context: RoundContext) -> Invitation:
        """Return the invitation where `clients_decide`; the context has the reports of the poll."""
        raise NotImplementedError

    def _initial_state(self) -> dict[str, Array]:
        """Return the selector's own part of the state at the start."""
        return {}

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        """Return what a round changes; the arguments are checked."""
        return {}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        """Return what joiners change; `registered` (M,) has them at its end, ``self`` does not yet."""
        return {}

    def _left(self, registered: Bools) -> dict[str, Array]:
        """Return what leavers change; `registered` (M,) is without them, ``self`` still has them."""
        return {}

    def _check_state(self, state: Mapping[str, Array]) -> None:
        """Refuse a state whose arrays have the right shapes and dtypes, but wrong values."""
        checks.sizes("state['client_sizes']", state["client_sizes"])

    # What selectors use.

    @property
    def _registered(self) -> Bools:
        registered: Bools = self._array("registered")
        return registered

    @property
    def _num_registered(self) -> int:
        return self._cached(
            "num_registered", ("registered",), lambda: int(np.count_nonzero(self._registered))
        )

    @property
    def _registered_size(self) -> float:
        """The sum of the registered clients' sizes."""

        def compute() -> float:
            everyone = self._num_registered == self.num_clients
            return float((self.client_sizes if everyone else self.client_sizes[self._registered]).sum())

        return self._cached("registered_size", ("registered", "client_sizes"), compute)

    def _uniform(self) -> Floats:
        """Return (M,) the uniform distribution over the registered clients."""
        p: Floats = self._registered / max(1, self._num_registered)
        return p

    def _array(self, key: str) -> Any:
        return self._state[key]

    def _extended(self, key: str, length: int, value: float) -> Array:
        """Return an array of the state (M,) filled up to `length` with the value of joiners."""
        array = self._array(key)
        extended: Array = np.concatenate([array, np.full(length - array.size, value, dtype=array.dtype)])
        return extended

    def _cached(self, name: str, keys: tuple[str, ...], compute: Callable[[], T]) -> T:
        """Return the result of `compute`, kept until one of these arrays of the state is replaced."""
        known = self._memo.get(name)
        if known is None:
            known = self._memo[name] = (keys, compute())
        value: T = known[1]
        return value

    def _assign(self, changes: Mapping[str, Array]) -> None:
        for array in changes.values():
            array.setflags(write=False)
        self._state = {**self._state, **changes}
        self._memo = {
            name: known for name, known in self._memo.items() if changes.keys().isdisjoint(known[0])
        }

    def _horizon(self) -> int:
        """Return `num_rounds` of a selector that needs it.

        Raises
        ------
        ValueError
            If it was not given.
        """
        if self._num_rounds is None:
            raise ValueError(f"num_rounds = None: must be >= 1, {self.name} needs it for its rates")
        return self._num_rounds

    def _usable(
        self, selection: Selection, feedback: Feedback, values: Floats
    ) -> tuple[Ints, Floats, Floats]:
        """Return (clients, importance, values) of the clients whose value is usable.

        If S'' of the S selected clients are, their importance is W S/S'', on the assumption of `finalize`.
        """
        usable = feedback.responded & np.isfinite(values) & self._registered[selection.clients]
        number = int(np.count_nonzero(usable))
        if number == usable.size:
            return selection.clients, selection.importance, values
        scale = usable.size / max(1, number)
        return selection.clients[usable], selection.importance[usable] * scale, values[usable]

    # The checks of arguments.

    def _context(
        self,
        round: int,
        available: npt.ArrayLike | None = None,
        unavailable: npt.ArrayLike | None = None,
        budget: float | None = None,
    ) -> RoundContext:
        return RoundContext(
            seed=self._seed,
            round=checks.integer("round", round, low=0),
            available=self._presence(available, unavailable),
            k=self._clients_per_round if budget is None else int(checks.real("budget", budget, low=0)),
        )

    def _polled(
        self,
        context: RoundContext,
        candidates: npt.ArrayLike | None,
        reports: Mapping[str, Floats] | None,
        needed: Set[str],
    ) -> RoundContext:
        """Return the context with the reports that are needed, which must be given."""
        if not needed:
            return context
        if candidates is None or reports is None or not needed <= reports.keys():
            given = None if candidates is None or reports is None else sorted(reports)
            raise ValueError(
                f"reports = {given}: must hold {' and '.join(map(repr, sorted(needed)))} of the candidates, "
                f"by which {self.name} selects"
            )
        clients = checks.indexes("candidates", candidates, self.num_clients)
        arrays = {}
        for kind in sorted(needed):
            values = arrays[kind] = checks.floats(f"reports[{kind!r}]", reports[kind], clients.size)
            if kind != "loss":
                checks.not_negative(f"reports[{kind!r}]", values)
        return replace(context, candidates=clients, reports=arrays)

    def _presence(self, available: npt.ArrayLike | None, unavailable: npt.ArrayLike | None) -> Presence:
        if available is not None and unavailable is not None:
            raise ValueError(
                f"available = {available}, unavailable = {unavailable}: must be at most one of them"
            )
        everyone = Presence(
            self._registered, self.client_sizes, self._num_registered, self._registered_size, NOBODY
        )
        if available is not None:
            return everyone.only(np.sort(self._registered_indexes("available", available)))
        if unavailable is not None:
            named = checks.indexes("unavailable", unavailable, self.num_clients)
            return everyone.without(np.sort(named[self._registered[named]]))
        return everyone

    def _registered_indexes(self, name: str, values: npt.ArrayLike) -> Ints:
        clients = checks.indexes(name, values, self.num_clients)
        removed = clients[~self._registered[clients]]
        if removed.size:
            raise ValueError(f"{name} holds {removed[0]}: that client was removed")
        return clients
