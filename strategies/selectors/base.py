"""The contract of all selectors: they select clients, weight their updates, and learn from the round."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ..designs import DESIGNS
from ..numerics.arrays import Array, Bools, Floats, Ints
from . import checks
from .context import RoundContext
from .invitation import Invitation
from .presence import NOBODY, Presence
from .records import Feedback, Selection
from .settings import PerClient, Setting, Settings

T = TypeVar("T")


class Selector(ABC):
    """Decides which clients train in each round, and with which weights.

    The state of a selector is everything that changes over a run: a dict of read-only arrays. `state_dict`
    copies it for the checkpoint. A method changes the state only after it has checked all arguments, so an
    error leaves the state unchanged. The random numbers of a selection depend only on the seed, the round,
    and how many selections were made before it in this round. A client is an index from 0 to
    num_clients - 1. The index of a removed client is never given to another client.

    A subclass defines `_distribution` and `_select`. A subclass that learns also defines `_learn`, and with
    `state_axes` and `_initial_state` it adds its own arrays to the state. `probability.ProbabilitySelector`
    defines `_select` for all selectors that draw from their distribution.

    Parameters
    ----------
    num_clients : int
        M, >= 1.
    client_sizes : array_like, shape (M,), optional
        The number of samples of each client, or other positive numbers, in [1e-100, 1e100] (default: all 1).
        A client's share is λ = its size / the sum of the sizes.
    clients_per_round : int
        K, the number of clients to select in a round, from 1 to M.
    num_rounds : int, optional
        T, the number of rounds of the run, >= 1. Selectors whose rates depend on T require it.
    seed : int
        The seed of all random draws, >= 0 (default: 0).
    **settings
        The settings that only this selector has; `allowed_settings` and `per_client` list them.

    Raises
    ------
    TypeError, ValueError
        If an argument is refused; the message names it, its value and what is allowed.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    """Which clients are selected, in a few words that follow "selects clients"."""
    unbiased: ClassVar[Literal["round", "long-run", "none"]]
    """When E[sum_m c_m u_m] equals sum_m s_m u_m for any fixed updates u, where c_m is client m's weight, 0
    if the client is not selected, and s is `target_shares`. "round": in each round. "long-run": only on
    average over many rounds in which availability varies. "none": never. For selectors with `polls_for`, a
    client without a usable report counts as unavailable."""
    polls_for: ClassVar[frozenset[str]] = frozenset()
    """The numbers that candidates must report before `select`: some of "loss", "update_norm",
    "gradient_variance", "diversity", "group"."""
    feedback_used: ClassVar[frozenset[str]] = frozenset()
    """The measurements that cost extra work and that `update` uses: some of "diversity",
    "gradient_variance"."""
    report_used: ClassVar[Literal["", "train-loss", "gradient-variance"]] = ""
    """The name of the number in replies from which `update` learns, and without which the selector learns
    little or nothing; "" if there is no such number. A run warns if no client reports this number."""
    data_independent: ClassVar[bool] = False
    """True if selections and weights depend on no quantity that is computed from clients' data during the
    run. Sizes, groups and constants that are given beforehand count as public."""
    equal_weight_draws: ClassVar[Literal["always", "with replacement", "never"]] = "never"
    """When each draw may count as one vote of equal weight. Server strategies that see single replies require
    this. "with replacement": only if the setting `replacement` is True. "never": weights correct for unequal
    probabilities."""
    fixed_size: ClassVar[bool] = True
    """False if the number of selected clients is random, and K only its mean. Then nobody may be selected.
    Buffered rounds, which fill free places, refuse such a selector."""
    compares_updates: ClassVar[bool] = False
    """True if the selector needs ``Feedback.sketches``, whatever its settings. Masked updates have none."""
    part_names: ClassVar[tuple[str, ...]] = ()
    """The names of the parts, if a client's update is a sum of parts and each part has importance weights of
    its own; see ``Selection.parts``. `unbiased` then applies to each part."""
    clients_decide: ClassVar[bool] = False
    """True if each client decides itself whether it accepts an `invitation` to train. A client that accepts
    multiplies its update by a scale. The server knows neither this scale nor the update before the
    multiplication."""
    state_axes: ClassVar[dict[str, tuple[str, ...]]] = {
        "selector": ("letters",),
        "client_sizes": ("clients",),
        "registered": ("clients",),
        "asked": (),  # whether `learn_norms` was called
    }
    """The keys of the state, and for each key the names of its array's axes. Axes with the same name have
    the same length."""
    per_client: ClassVar[dict[str, PerClient]] = {}
    """Settings with a value for each client, given as arrays at the start and when clients join."""

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
        self._settings = self.checked_settings(settings)
        self._state: dict[str, Array] = {}
        self._memo: dict[str, tuple[tuple[str, ...], Any]] = {}
        self._assign(
            {
                # Bytes rather than str: every array format can hold them.
                "selector": np.frombuffer(self.name.encode(), dtype=np.uint8),
                "client_sizes": sizes,
                "registered": np.ones(num_clients, dtype=np.bool_),
                "asked": np.array(False),
                **each,
            }
        )
        self._assign(self._initial_state())

    @property
    def num_clients(self) -> int:
        """M: the number of clients registered so far, including the removed clients."""
        return self._registered.size

    @property
    def clients_per_round(self) -> int:
        """K, the number of clients to select in a round."""
        return self._clients_per_round

    @property
    def client_sizes(self) -> Floats:
        """(M,) the clients' sizes, read-only; removed clients keep their sizes."""
        sizes: Floats = self._array("client_sizes")
        return sizes

    @property
    def registered(self) -> Bools:
        """(M,) True for each client that has not been removed; read-only."""
        return self._registered

    @property
    def settings(self) -> Settings:
        """The selector's settings, frozen."""
        return self._settings

    @classmethod
    def allowed_settings(cls) -> dict[str, Setting]:
        """Return each setting's default, range and meaning, by name."""
        return cls.settings_type.allowed()

    @classmethod
    def checked_settings(cls, values: Mapping[str, Any]) -> Settings:
        """Return the settings with the given ``values`` by name; all other settings have their defaults."""
        design, known = values.get("design"), cls.allowed_settings().get("design")
        own = known.choices if known is not None else ()
        if isinstance(design, str) and design in DESIGNS and design not in own:
            how = f"has only {', '.join(own)}" if own else "draws only in its own way"
            raise ValueError(
                f"design = {design!r}: {cls.name} {how}; md, forecast and the other selectors that draw from "
                f"probabilities have {', '.join(DESIGNS)}"
            )
        return cls.settings_type.of(values, cls.name, cls.per_client)

    @property
    def probabilities(self) -> Floats:
        """(M,) current sampling distribution, read-only; sums to 1 over the registered clients."""
        p = self._distribution()
        p.flags.writeable = False
        return p

    @property
    def diversity_mean(self) -> Literal["weighted", "plain"]:
        """The kind of mean in ``Feedback.diversities``: weighted by the round's weights, or plain."""
        return "weighted"

    @property
    def uses_sketches(self) -> bool:
        """Whether `update` uses ``Feedback.sketches``."""
        return self.compares_updates

    @property
    def asks_norms(self) -> bool:
        """Whether `learn_norms` must be called before the next selection. One call in a run is enough."""
        return self._wants_norms and not bool(self._array("asked"))

    @property
    def poll_settings(self) -> Mapping[str, int | float]:
        """The numbers that a poll sends to each candidate besides the round.

        A poll for "loss" may send "batch-size": the number of random samples whose mean loss the candidate
        reports (default: all its samples). A poll for "group" sends "num-groups", the number of groups G, and
        "epsilon", the ε of randomised response.
        """
        return {}

    def target_shares(
        self, *, available: npt.ArrayLike | None = None, unavailable: npt.ArrayLike | None = None
    ) -> Floats:
        """Return (M,) the share of each client in the mean that the aggregate estimates.

        The share is a client's size divided by the sum of the available clients' sizes, and 0 for unavailable
        clients. A selector that is unbiased only over time may give shares to unavailable clients, too.
        """
        sizes = np.where(self._presence(available, unavailable).mask, self.client_sizes, 0.0)
        shares: Floats = sizes / (sizes.sum() or 1.0)
        return shares

    def shares_of(
        self,
        clients: npt.ArrayLike,
        *,
        available: npt.ArrayLike | None = None,
        unavailable: npt.ArrayLike | None = None,
    ) -> Floats:
        """Return (n,) the clients' shares of the sum of the available clients' sizes.

        For a selector that is unbiased in every round, these are entries of `target_shares`. If few clients
        are unavailable, no pass over all clients is needed.

        `clients` (n,) are distinct and registered. The share of an unavailable client is 0.
        """
        indexes, presence = (
            self._registered_indexes("clients", clients),
            self._presence(available, unavailable),
        )
        here = presence.mask[indexes] if presence.listed is not None else presence.holds(indexes)
        shares: Floats = np.where(here, self.client_sizes[indexes], 0.0) / (presence.total_size or 1.0)
        return shares

    def learn_norms(self, clients: npt.ArrayLike, update_norms: npt.ArrayLike) -> None:
        """Learn the norms that the available clients reported before the first selection.

        `update_norms` (n,) holds the norm ||g_m|| >= 0 of an update that each of the `clients` (n,) that were
        asked computes from the initial model, in the unit of ``Feedback.update_norms``; NaN = no answer.
        """
        if not self.asks_norms:
            raise ValueError(f"{self.name} does not ask for norms, or has learned them: see asks_norms")
        indexes = self._registered_indexes("clients", clients)
        norms = checks.floats("update_norms", update_norms, indexes.size)
        checks.not_negative("update_norms", norms)
        known = np.isfinite(norms)
        self._assign({"asked": np.array(True), **self._learn_first(indexes[known], norms[known])})

    def candidates(
        self, round: int, *, available: npt.ArrayLike | None = None, unavailable: npt.ArrayLike | None = None
    ) -> Ints | None:
        """Return the clients to poll before `select`, or None if the selector needs no poll."""
        return self._candidates(self._context(round, available, unavailable)) if self.polls_for else None

    def invitation(
        self,
        round: int,
        candidates: npt.ArrayLike,
        reports: Mapping[str, Floats],
        *,
        budget: float | None = None,
    ) -> Invitation | None:
        """Return the invitation with which candidates decide for themselves, or None if `select` decides.

        The invitation is sent after the poll and before `select`. `select` receives the answers as
        ``reports["accepts"]`` (1 = yes, 0 = no, NaN = no answer), together with the reports of the poll.

        The other arguments are those with which `select` is called then.
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
        draw: int = 0,
    ) -> Selection:
        """Select the clients that train in this round. Equal arguments and state give an equal selection.

        Parameters
        ----------
        round : int
            The round, >= 0.
        available : array_like of int, optional
            Distinct indexes of the available clients, all of them registered.
        unavailable : array_like of int, optional
            Distinct indexes of the unavailable clients; removed clients among them are ignored. At most one
            of `available` and `unavailable` may be given. If neither is given, all registered clients are
            available.
        candidates : array_like of int, shape (n,), optional
            The polled clients. `candidates` and `reports` are required if `polls_for` is not empty.
        reports : mapping of str to array_like, shape (n,), optional
            The reports of the candidates, by name; NaN = no answer.
        budget : float, optional
            How many clients (or draws) to select in this round, finite and >= 0, rounded down (default:
            clients_per_round).
        draw : int (default: 0)
            How many selections were made before this one in the same round, >= 0. A buffered round has
            several selections, and each has random numbers of its own.

        Returns
        -------
        Selection
            The selected clients; none if no client is available or the budget is below 1.
        """
        if self.asks_norms:
            raise ValueError(f"{self.name} asks for norms: learn_norms must be called before the selection")
        context = self._context(round, available, unavailable, budget, draw)
        if context.k == 0 or context.available.count == 0:
            return Selection.nobody()
        needed = self.polls_for | {"accepts"} if self.clients_decide else self.polls_for
        return self._select(self._polled(context, candidates, reports, needed))

    def reweighted(
        self,
        selection: Selection,
        *,
        available: npt.ArrayLike | None = None,
        unavailable: npt.ArrayLike | None = None,
    ) -> Floats:
        """Return the weights (S,) of a selection for the sizes that are known now.

        Clients may report their sizes only with their replies. Before a client's first reply, its size s_m is
        assumed to be the mean of the known sizes, so in the first round all shares are equal. Which sizes
        should the weights use, when the round ends and the sizes of the clients that replied are known?

        - Selectors that are unbiased in each round have c_m = W_m λ_m. The importance W_m depends on the
          draw, and E[W_m] = 1; sizes do not depend on it. So with the new sizes, the sum of W_m s_m u_m is
          unbiased for the sum of s_m u_m over all available clients, whatever the probabilities were: draws
          of `md` with the old sizes are importance sampling for the new ones. This sum is divided by Σ s,
          in which a client without a reply still has the mean of the known sizes. If all sizes are known
          before the draw, Σ s is fixed and the aggregate is unbiased. Otherwise Σ s depends on the draw,
          and the aggregate is a ratio estimate: its bias is of order 1/K, and 0 for `full`. In a first
          round without any size, the weights of K different clients are s_m divided by the sum over the
          clients that replied, as in FedAvg. With the old sizes, the aggregate would be unbiased for the
          plain mean of the updates; as an estimate of the weighted mean, it would have a bias that does not
          fall with K.
        - Weights that are shares among the selected clients (``averaging="sizes"``) are computed again.
        - FLICS's weights use the shares of groups, which `finalize` computes from the sizes that are known
          then.
        - The weights of all other selectors do not depend on sizes (plain means), or cannot change: clients
          of ``flics-private`` have applied them. Selectors that select from the clients that answered a poll
          for norms (`optimal` and the like) do not remember who answered, and keep their weights.
        """
        if self.unbiased != "round" or self.polls_for:
            return selection.weights
        shares = self.shares_of(selection.clients, available=available, unavailable=unavailable)
        weights: Floats = selection.importance * shares
        return weights

    def finalize(self, selection: Selection, responded: npt.ArrayLike) -> Floats:
        """Return the weights after the replies have arrived.

        A client that responded has the weight c_m S/S', where S' of the S selected clients responded. The
        weight of the other clients is 0. If all selected clients fail independently and with equal
        probability, the expected aggregate, given S' >= 1, equals the aggregate of all S updates.

        `responded` (S,) says which clients of the selection responded. If none did, all weights are 0.
        """
        answered = checks.bools("responded", responded, selection.clients.size)
        number = int(np.count_nonzero(answered))
        if number == answered.size:
            return selection.weights.copy()
        return np.where(answered, selection.weights * (answered.size / max(1, number)), 0.0)

    def update(self, round: int, selection: Selection, feedback: Feedback) -> None:
        """Learn from a round.

        `feedback` holds the measurements of this round, in the order of ``selection.clients``. Clients that
        were removed after the selection are ignored.
        """
        checks.integer("round", round, low=0)
        # A Selection ensures that its clients are distinct and >= 0, so only the upper limit is checked.
        checks.known("selection.clients", selection.clients, self.num_clients)
        checks.bools("feedback.responded", feedback.responded, selection.clients.size)
        self._assign(self._learn(round, selection, feedback))

    def add_clients(self, client_sizes: npt.ArrayLike, **per_client: npt.ArrayLike) -> None:
        """Register n more clients; they get the next n indexes.

        `client_sizes` (n,) is in the unit of the other clients' sizes; if no sizes were given at the start,
        the size of each other client is 1. The settings in `per_client` are arrays (n,).
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
        """Correct the sizes (n,) of registered clients (n,)."""
        indexes = self._registered_indexes("clients", clients)
        sizes = self.client_sizes.copy()
        sizes[indexes] = checks.sizes("client_sizes", client_sizes, indexes.size)
        self._assign({"client_sizes": sizes})

    def remove_clients(self, clients: npt.ArrayLike) -> None:
        """Remove registered clients (n,) for good. All clients may be removed."""
        registered = self._registered.copy()
        registered[self._registered_indexes("clients", clients)] = False
        changes: dict[str, Array] = {"registered": registered}
        self._assign(changes | self._left(registered))

    def state_dict(self) -> dict[str, Array]:
        """Return copies of the state's arrays, by name; who loads them continues exactly, bit for bit."""
        return {key: array.copy() for key, array in self._state.items()}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Replace the state by that of a selector with the same name and settings; M becomes its M."""
        self._assign(self._checked_state(state))

    def _checked_state(self, state: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        all_axes = {**self.state_axes, **dict.fromkeys(self.per_client, ("clients",))}
        arrays = checks.state(state, self._state, all_axes)
        if not np.array_equal(arrays["selector"], self._state["selector"]):
            raise ValueError(
                f"state['selector'] = {arrays['selector'].tobytes()!r}: must be {self.name.encode()!r}"
            )
        self._check_state(arrays)
        return arrays

    # Hooks of subclasses. A hook that returns a dict returns the new values of the arrays that change, and
    # does not assign them to the state.

    @abstractmethod
    def _distribution(self) -> Floats:
        """Return `probabilities` in a fresh array: 0 for the removed clients, all 0 if all are removed."""

    @abstractmethod
    def _select(self, context: RoundContext) -> Selection:
        """Select clients. Called only if a client is available and ``context.k`` is at least 1."""

    def _candidates(self, context: RoundContext) -> Ints:
        """Return the clients to poll; here all available clients. Called if `polls_for` is not empty."""
        return context.available.clients

    def _invite(self, context: RoundContext) -> Invitation:
        """Return the invitation. Called if `clients_decide`; the context has the reports of the poll."""
        raise NotImplementedError

    def _initial_state(self) -> dict[str, Array]:
        """Return the arrays that the subclass adds to the state, at the start of a run."""
        return {}

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        """Return the arrays that a round changes. The arguments have been checked."""
        return {}

    @property
    def _wants_norms(self) -> bool:
        """Whether all available clients are asked for norms before the first selection."""
        return False

    def _learn_first(self, clients: Ints, norms: Floats) -> dict[str, Array]:
        """Return the arrays that `learn_norms` changes; ``norms`` (n,) are finite answers of ``clients``."""
        return {}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        """Return the arrays that change as clients join; ``registered`` (M,) has them, ``self`` not yet."""
        return {}

    def _left(self, registered: Bools) -> dict[str, Array]:
        """Return the arrays that change as clients leave; ``registered`` (M,) lacks them already."""
        return {}

    def _check_state(self, state: Mapping[str, Array]) -> None:
        """Refuse a state whose arrays have the right shapes and dtypes, but wrong values."""
        checks.sizes("state['client_sizes']", state["client_sizes"])

    # Helpers for subclasses.

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
        def compute() -> float:
            everyone = self._num_registered == self.num_clients
            return float((self.client_sizes if everyone else self.client_sizes[self._registered]).sum())

        return self._cached("registered_size", ("registered", "client_sizes"), compute)

    def _uniform(self) -> Floats:
        p: Floats = self._registered / max(1, self._num_registered)
        return p

    def _array(self, key: str) -> Any:
        return self._state[key]

    def _extended(self, key: str, length: int, value: float) -> Array:
        """Return the array `key` (M,) of the state, extended to `length`; joining clients get `value`."""
        array = self._array(key)
        extended: Array = np.concatenate([array, np.full(length - array.size, value, dtype=array.dtype)])
        return extended

    def _cached(self, name: str, keys: tuple[str, ...], compute: Callable[[], T]) -> T:
        """Return the result of `compute`, and keep it until one of the arrays `keys` of the state changes."""
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
        if self._num_rounds is None:
            raise ValueError(f"num_rounds = None: must be >= 1, {self.name} needs it for its rates")
        return self._num_rounds

    def _usable(
        self, selection: Selection, feedback: Feedback, values: Floats
    ) -> tuple[Ints, Floats, Floats]:
        """Return (clients, importance, values) of the clients whose value is usable.

        A value is usable if it is finite and its client responded and is still registered. If S'' of the S
        selected clients have a usable value, their importance is multiplied by S/S'', as `finalize` does with
        weights.
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
        draw: int = 0,
    ) -> RoundContext:
        return RoundContext(
            seed=self._seed,
            round=checks.integer("round", round, low=0),
            available=self._presence(available, unavailable),
            k=self._clients_per_round if budget is None else int(checks.real("budget", budget, low=0)),
            draw=checks.integer("draw", draw, low=0),
        )

    def _polled(
        self,
        context: RoundContext,
        candidates: npt.ArrayLike | None,
        reports: Mapping[str, Floats] | None,
        needed: Set[str],
    ) -> RoundContext:
        """Return the context with the reports named in `needed`; a ValueError if one of them is not given."""
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
