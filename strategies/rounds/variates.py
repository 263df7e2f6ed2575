"""FedVARP and SCAFFOLD: the server remembers an array per client to reduce sampling variance or client drift.

Both go with any selector. Both hold one array of the model's size for each client that ever replied, at most
M times the model: 4 GB for 1,000 clients and a million float32 parameters. Clients store nothing, so a client
that restarts, or moves to another node, loses nothing.

A round, in order::

    begin(shares)                     the weight of each client; computes the mean once
    outgoing(m)                       the arrays that client m is sent along with the model
    baseline(m), mean()               subtracted from its update before the weighted sum; added to the sum
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
"""An update by parameter name."""

CONTROL = "control"
"""The name of the ArrayRecord that holds SCAFFOLD's c - c_m; the client adds it to each gradient."""
_PREFIX = "memory/"  # of the keys of the state


class ClientVariates(ABC):
    """One array of the model's size for each client that ever replied; 0 for all others.

    Unbiasedness: for any fixed y_m and a selector with E[sum_m c_m u_m] = sum_m λ_m u_m, the step
    ``sum_m λ_m y_m + sum_m c_m (u_m - y_m)`` has the mean sum_m λ_m u_m, whatever the y_m are.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self._memory: dict[int, Arrays] = {}  # in the order of the clients' first replies
        self._mean: Arrays | None = None

    @property
    def num_seen(self) -> int:
        """The number of clients with an array."""
        return len(self._memory)

    def begin(self, shares: npt.ArrayLike) -> None:
        """Begin a round: compute the weighted mean of the arrays.

        Parameters
        ----------
        shares : array_like, shape (M,)
            λ_m >= 0, which sum to 1: the share of each client in the mean that the selector's aggregate
            estimates, over this round's available clients or over time, see `Selector.target_shares`.

        Raises
        ------
        ValueError
            If a share is negative or not finite, or a client with an array has none.
        """
        weights = np.asarray(shares, dtype=np.float64)
        if weights.ndim != 1 or not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError(f"shares has shape {weights.shape}: must be (M,) finite numbers >= 0")
        if self._memory and max(self._memory) >= weights.size:
            raise ValueError(f"shares has shape {weights.shape}: client {max(self._memory)} has none")
        self._mean = None
        # In the order of the first replies, since a resumed run must repeat the sum bit for bit.
        for client, arrays in self._memory.items():
            if self._mean is None:
                self._mean = {name: np.zeros_like(array) for name, array in arrays.items()}
            if weights[client]:
                for name, total in self._mean.items():
                    total += arrays[name] * weights[client].astype(total.dtype)

    def outgoing(self, client: int) -> Arrays | None:
        """Return the ArrayRecord `CONTROL` that this client is sent, by parameter name; None for none."""
        return None

    def baseline(self, client: int) -> Arrays | None:
        """Return y_m, subtracted from this client's update before its norm and weight; None for 0."""
        return None

    def mean(self) -> Arrays | None:
        """Return sum_m λ_m y_m, added to the weighted sum; None for 0."""
        return None

    def remember(
        self,
        clients: npt.ArrayLike,
        updates: Iterable[tuple[int, Mapping[str, NDArray[Any]]]],
        steps: npt.ArrayLike,
        learning_rate: float,
    ) -> None:
        """Learn from the clients that replied; what `begin` computed stays the same.

        Parameters
        ----------
        clients : array_like of int, shape (S,)
            The clients that replied.
        updates : iterable of (int, mapping of str to array)
            Each of these clients with its w_m - w_t, in the same order; read one after another.
        steps : array_like, shape (S,)
            The number of local steps of each client, NaN = unknown. Only SCAFFOLD needs it.
        learning_rate : float
            Of the clients' local SGD, > 0.

        Raises
        ------
        ValueError
            If `updates` are of other clients, or an update has other arrays than the remembered ones.
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
                break  # all clients' arrays have the same form
            new = self._renewed(self._memory.get(int(client)), update, float(count), learning_rate)
            if new is not None and all(np.isfinite(array).all() for array in new.values()):
                for array in new.values():
                    array.flags.writeable = False
                self._memory[int(client)] = new

    @abstractmethod
    def _renewed(
        self, known: Arrays | None, update: Mapping[str, NDArray[Any]], steps: float, learning_rate: float
    ) -> Arrays | None:
        """Return new arrays to remember of a client instead of `known`; None keeps `known`."""

    def forget(self, clients: npt.ArrayLike) -> None:
        """Drop the arrays of removed clients."""
        for client in np.asarray(clients, dtype=np.int64).ravel():
            self._memory.pop(int(client), None)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of all arrays needed to go on, bit for bit.

        ``name``: the kind; ``clients`` (n,): the clients with an array; ``memory/PARAMETER`` (n, *shape), in
        the order of these clients.
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
            If the state is of another kind, or its arrays do not fit together; then nothing has changed.
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
        # Copies, so that a client's old array is freed when it is replaced.
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
    """Each client's last update stands in for it while it is not selected.

    ::

        Δ = sum_m λ_m y_m + sum_{m in S} c_m (u_m - y_m);   then y_m <- u_m of clients that replied

    Jhunjhunwala, Sharma, Nagarkatti, Joshi, "FedVARP: Tackling the Variance Due to Partial Client
    Participation in Federated Learning" (UAI 2022), with the selector's weights c_m instead of 1/|S|. The
    aggregate is unbiased if the selector is. Its variance is that of u_m - y_m, which falls to 0 as updates
    stop changing. So do the norms in the selector's feedback: the selector learns whose updates still change.
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
    """The remembered mean gradients correct each local step towards what the other clients would do.

    ::

        client     v <- v - lr (g_m(v) + c - c_m),  `steps` times from w_t
        server     c_m <- c_m - c + (w_t - w_m)/(steps lr) of clients that replied;   c = sum_m λ_m c_m

    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML 2020),
    Algorithm 1 with option II. In the paper clients store c_m and report its change; here the server stores
    it and computes the change from the returned model, so that the client's part is one addition. c is
    weighted by λ where the paper has 1/N: it estimates the gradient of the target, sum_m λ_m g_m, which is 0
    at the optimum.

    The selector learns from ||w_m - w_t||, the change of the local model including the control, as in the
    later version of the OSMD paper, appendix E.

    ``steps`` and ``learning_rate`` must be those of plain local SGD. A client whose number of steps is
    unknown keeps its c_m. Clients report their steps themselves, and nothing limits the number: a client that
    took 100 steps and reports 1 enters c with a hundred times its weight. FedVARP needs no such trust.
    """

    name = "scaffold"

    def outgoing(self, client: int) -> Arrays | None:
        """Return c - c_m; None until a client has replied."""
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
    """Create variates by name.

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    if name not in KINDS:
        raise ValueError(f"variates = {name!r}: must be one of {', '.join(KINDS)}")
    return KINDS[name]()
