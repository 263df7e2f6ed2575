"""What the server remembers of each client, to take the noise of sampling and the drift of clients away.

FedVARP and SCAFFOLD, as parts that any selector can be used with. Both hold one array of the model's size for
each client that ever answered, at most M times the model: 4 GB for 1,000 clients of a million float32
parameters. Nothing is kept on clients, so one that restarts, or moves to another node, loses nothing.

A round, in order::

    begin(shares)                     the weight of each client; computes the mean once
    outgoing(m)                       what client m is sent along with the model
    baseline(m), mean()               what is taken off its update before the weighted sum, and added to it
    remember(clients, updates, …)     after the step
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..numerics.arrays import Floats, Ints

Arrays = dict[str, "NDArray[Any]"]
"""An update by parameter name, as in `round`."""

CONTROL = "control"
"""Key of the ArrayRecord with which SCAFFOLD's c - c_m travels; the client adds it to each gradient."""
_PREFIX = "memory/"  # of the keys of the state


class ClientVariates(ABC):
    """One array of the model's size for each client seen; those never seen count as 0.

    Unbiasedness: for any fixed y_m and a selector with E[sum_m c_m u_m] = sum_m λ_m u_m, the step
    ``sum_m λ_m y_m + sum_m c_m (u_m - y_m)`` has the mean sum_m λ_m u_m, whatever the y_m are.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self._memory: dict[int, Arrays] = {}  # in the order in which clients were first seen
        self._mean: Arrays | None = None

    @property
    def num_seen(self) -> int:
        """How many clients have an array."""
        return len(self._memory)

    def begin(self, shares: npt.ArrayLike) -> None:
        """Begin a round: compute the weighted mean of what is remembered.

        Parameters
        ----------
        shares : array_like, shape (M,)
            λ_m >= 0 of each client in what the selector's aggregate is an estimate of, summing to 1: in this
            round's mean over who is here, 0 for the others, or in the mean over time.

        Raises
        ------
        ValueError
            If a share is negative or not finite, or a client seen has none.
        """
        weights = np.asarray(shares, dtype=np.float64)
        if weights.ndim != 1 or not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError(f"shares has shape {weights.shape}: must be (M,) finite numbers >= 0")
        if self._memory and max(self._memory) >= weights.size:
            raise ValueError(f"shares has shape {weights.shape}: client {max(self._memory)} has none")
        self._mean = None
        # In one order, whatever was loaded: a resumed run must be the same run.
        for client, arrays in self._memory.items():
            if self._mean is None:
                self._mean = {name: np.zeros_like(array) for name, array in arrays.items()}
            if weights[client]:
                for name, total in self._mean.items():
                    total += arrays[name] * weights[client].astype(total.dtype)

    def outgoing(self, client: int) -> Arrays | None:
        """Return what this client is sent as ArrayRecord `CONTROL`, by parameter name; None: nothing."""
        return None

    def baseline(self, client: int) -> Arrays | None:
        """Return y_m, taken off this client's update before norm and weight; None: nothing."""
        return None

    def mean(self) -> Arrays | None:
        """Return sum_m λ_m y_m, added to the weighted sum; None: nothing."""
        return None

    def remember(
        self,
        clients: npt.ArrayLike,
        updates: Iterable[tuple[int, Mapping[str, NDArray[Any]]]],
        steps: npt.ArrayLike,
        learning_rate: float,
    ) -> None:
        """Learn from those who answered; what `begin` computed still holds.

        Parameters
        ----------
        clients : array_like of int, shape (S,)
            Who answered.
        updates : iterable of (int, mapping of str to array)
            Each of them with w_m - w_t, in the same order; taken one after another.
        steps : array_like, shape (S,)
            How many local steps each took, NaN = unknown. SCAFFOLD needs it; FedVARP does not.
        learning_rate : float
            Of the clients' local SGD, > 0.

        Raises
        ------
        ValueError
            If `updates` are not of these clients, or an update does not fit what is remembered.
        """
        asked: Ints = np.asarray(clients, dtype=np.int64)
        taken: Floats = np.asarray(steps, dtype=np.float64)
        if taken.shape != asked.shape:
            raise ValueError(f"steps has shape {taken.shape}: must be {asked.shape}, as clients")
        if not 0 < learning_rate < np.inf:
            raise ValueError(f"learning_rate = {learning_rate}: must be finite and greater than 0")
        for expected, count, (client, update) in zip(asked, taken, updates, strict=True):
            if client != expected:
                raise ValueError(f"updates holds client {client}: must be {expected}, as in clients")
            for other in self._memory.values():
                if _forms(update) != _forms(other):
                    raise ValueError(
                        f"the update of client {client} has arrays {_forms(update)}: must be {_forms(other)}"
                    )
                break  # they are all alike
            new = self._renewed(self._memory.get(int(client)), update, float(count), learning_rate)
            if new is not None and all(np.isfinite(array).all() for array in new.values()):
                for array in new.values():
                    array.flags.writeable = False
                self._memory[int(client)] = new

    @abstractmethod
    def _renewed(
        self, known: Arrays | None, update: Mapping[str, NDArray[Any]], steps: float, learning_rate: float
    ) -> Arrays | None:
        """Return fresh arrays to remember of a client instead of `known`; None: keep `known`."""

    def forget(self, clients: npt.ArrayLike) -> None:
        """Drop what is remembered of clients that are gone for good."""
        for client in np.asarray(clients, dtype=np.int64).ravel():
            self._memory.pop(int(client), None)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of all arrays needed to go on, bit for bit.

        ``name``: the kind, ``clients`` (n,): who was seen, ``memory/PARAMETER`` (n, *shape) in that order.
        """
        rows = list(self._memory.values())
        return {
            "name": np.frombuffer(self.name.encode(), dtype=np.uint8).copy(),
            "clients": np.array(list(self._memory), dtype=np.int64),
            **{_PREFIX + name: np.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())},
        }

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Go on from a saved state, between two rounds.

        Raises
        ------
        ValueError
            If it is not one of these variates, or its arrays do not fit together; nothing has changed then.
        """
        arrays = {key: np.array(value) for key, value in state.items()}
        kind = arrays.get("name", np.empty(0, np.uint8)).tobytes().decode(errors="replace")
        if kind != self.name:
            raise ValueError(f"state['name'] = {kind!r}: must be {self.name!r}")
        clients = arrays.get("clients", np.empty(0))
        if clients.ndim != 1 or clients.dtype.kind != "i" or np.unique(clients).size != clients.size:
            raise ValueError(f"state['clients'] = {clients}: must be distinct whole numbers")
        stacks = {key.removeprefix(_PREFIX): a for key, a in arrays.items() if key.startswith(_PREFIX)}
        for name, stack in stacks.items():
            if stack.ndim == 0 or len(stack) != clients.size or not np.isfinite(stack).all():
                raise ValueError(
                    f"state['{_PREFIX}{name}'] has shape {stack.shape}: must be ({clients.size}, …), finite"
                )
        if bool(stacks) != bool(clients.size):
            raise ValueError(f"state has {len(stacks)} parameters in memory of {clients.size} clients")
        self._mean = None
        # Copies, so that a client's old array is freed when it sends a new one.
        self._memory = {
            int(client): {name: _frozen(stack[row, ...]) for name, stack in stacks.items()}
            for row, client in enumerate(clients)
        }


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _forms(arrays: Mapping[str, NDArray[Any]]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


class FedVARP(ClientVariates):
    """Each client's last update stands in for it while it is not chosen.

    ::

        Δ = sum_m λ_m y_m + sum_{m in S} c_m (u_m - y_m);   then y_m <- u_m of who answered

    Jhunjhunwala, Sharma, Nagarkatti, Joshi, "FedVARP: Tackling the Variance Due to Partial Client
    Participation in Federated Learning" (UAI 2022), with the selector's weights c_m in the place of 1/|S|.
    It is unbiased as the selector is. Its variance is that of u_m - y_m, which falls to 0 as updates stop
    changing, and so do the norms that the selector is told: it learns who has news.
    """

    name = "fedvarp"

    def baseline(self, client: int) -> Arrays | None:
        """Return y_m, the client's last update, read-only."""
        return self._memory.get(client)

    def mean(self) -> Arrays | None:
        """Return sum_m λ_m y_m."""
        return self._mean

    def _renewed(
        self, known: Arrays | None, update: Mapping[str, NDArray[Any]], steps: float, learning_rate: float
    ) -> Arrays:
        return {name: np.array(array) for name, array in update.items()}


class Scaffold(ClientVariates):
    """Each client's mean gradient is remembered, and tells it in which direction the others would go.

    ::

        client     v <- v - lr (g_m(v) + c - c_m),  `steps` times from w_t
        server     c_m <- c_m - c + (w_t - w_m)/(steps lr) of who answered;   c = sum_m λ_m c_m

    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML 2020),
    Algorithm 1 with option II. There clients keep c_m, and say what became of it; here the server does, and
    works it out from the model that came back. The client's part is one addition. c is weighted by λ where
    the paper has 1/N: the target's gradient sum_m λ_m g_m, which is 0 at the optimum, is what c estimates.

    The selector learns from ||w_m - w_t||, the move of the local model with the control in it, as in the
    OSMD paper's later version, appendix E.

    ``steps`` and ``learning_rate`` must be those of plain local SGD. A client whose number of steps is not
    known keeps its c_m. Steps are the client's word, and nothing bounds them: one that says 1 and took 100
    enters c with a hundred times its weight. Where clients may lie, FedVARP takes nothing on trust.
    """

    name = "scaffold"

    def outgoing(self, client: int) -> Arrays | None:
        """Return c - c_m; None while nobody was seen."""
        if self._mean is None:
            return None
        known = self._memory.get(client)
        return {name: c - known[name] if known else c for name, c in self._mean.items()}

    def _renewed(
        self, known: Arrays | None, update: Mapping[str, NDArray[Any]], steps: float, learning_rate: float
    ) -> Arrays | None:
        if not 1 <= steps < np.inf:
            return None
        new: Arrays = {name: np.asarray(array / (-steps * learning_rate)) for name, array in update.items()}
        for name, c in (self._mean or {}).items():
            new[name] = np.asarray(new[name] - c)
        for name, c_m in (known or {}).items():
            new[name] = np.asarray(new[name] + c_m)
        return new


KINDS: dict[str, type[ClientVariates]] = {each.name: each for each in (FedVARP, Scaffold)}


def create_variates(name: str) -> ClientVariates:
    """Make variates by name.

    Raises
    ------
    ValueError
        If there are none of this name.
    """
    if name not in KINDS:
        raise ValueError(f"variates = {name!r}: must be one of {', '.join(KINDS)}")
    return KINDS[name]()
