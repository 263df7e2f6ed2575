"""FedVARP and SCAFFOLD: the server remembers arrays of each client to reduce variance or client drift.

Both work with every selector that does not weight the parts of an update separately. The server holds arrays
of the model's size for each client that ever replied: 4 GB for 1,000 clients and a million float32
parameters. Clients store nothing.

The calls of a round, in this order::

    begin(shares)                     computes the mean over all clients, weighted by their shares
    outgoing(m)                       returns the arrays that client m receives along with the model
    baseline(m)                       returns y_m, which is subtracted from the update of client m
    weights(clients, weights)         returns the weights of the updates, which only `FedVARPMean` changes
    mean()                            returns ȳ, which is added to the weighted sum
    remember(updates, …)              learns from the updates, after the step
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from ..numerics.arrays import Floats, Ints

Arrays = dict[str, "NDArray[Any]"]
"""Arrays of the model's shapes, by parameter name."""

CONTROL = "control"
"""The name of the ArrayRecord that holds SCAFFOLD's c - c_m (`Scaffold`). The client adds this difference to
each gradient."""
_PREFIX = "memory/"  # the prefix of the keys of remembered arrays in the state


class ClientVariates(ABC):
    """Arrays of the model's size for each client that ever replied; 0 for all other clients.

    Baselines y_m keep the step unbiased. Let c_m be the weights of the clients, and λ_m their shares. If a
    selector has E[sum_m c_m u_m] = sum_m λ_m u_m for any updates u_m, the step ``sum_m λ_m y_m + sum_m c_m
    (u_m - y_m)`` has the mean sum_m λ_m u_m for any baselines y_m that are fixed before the selection.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self._memory: dict[int, Arrays] = {}  # in the order of the clients' first replies
        self._mean: Arrays | None = None

    @property
    def num_seen(self) -> int:
        """The number of clients that have remembered arrays."""
        return len(self._memory)

    def begin(self, shares: npt.ArrayLike) -> None:
        """Begin a round: compute the weighted mean of the remembered arrays.

        ``shares`` (M,) are the weights λ_m >= 0 of the mean, of sum 1: the share of the client in the mean
        that the selector's aggregate estimates, see `Selector.target_shares`.
        """
        weights = np.asarray(shares, dtype=np.float64)
        self._shares: Floats = weights
        self._mean = None
        # The sum is in the order of first replies, since a resumed run must repeat it bit for bit.
        for client, arrays in self._memory.items():
            if self._mean is None:
                self._mean = {name: np.zeros_like(array) for name, array in arrays.items()}
            if weights[client]:
                for name, total in self._mean.items():
                    total += arrays[name] * weights[client].astype(total.dtype)

    def outgoing(self, client: int) -> Arrays | None:
        """Return the arrays of the record `CONTROL` for this client; None if the client gets no record."""
        return None

    def baseline(self, client: int) -> Arrays | None:
        """Return y_m, which is subtracted from this client's update before its norm is taken; None for 0."""
        return None

    def mean(self) -> Arrays | None:
        """Return ȳ = sum_m λ_m y_m, which is added to the weighted sum of updates; None for 0."""
        return None

    def weights(self, clients: Ints, weights: Floats) -> Floats:
        """Return (S,) the weights with which the updates of the selected clients (S,) are summed.

        ``weights`` (S,) are the selector's weights c_m, 0 for clients whose update is not used.
        """
        return weights

    def remember(
        self,
        updates: Iterable[tuple[int, Mapping[str, NDArray[Any]]]],
        steps: npt.ArrayLike,
        learning_rate: float,
    ) -> None:
        """Learn from the clients that replied. The mean that `begin` computed does not change.

        ``updates`` holds a pair (client, w_m - w_t) for each of them, and is read one pair after another; of
        an update that the guard clipped, the pair holds the result of `Model.clipped`. ``steps`` (n,) are the
        numbers of local steps, NaN = unknown, which only SCAFFOLD needs. ``learning_rate`` is that of the
        clients' local SGD, > 0.
        """
        taken: Floats = np.asarray(steps, dtype=np.float64)
        for count, (client, update) in zip(taken, updates, strict=True):
            new = self._renewed(self._memory.get(client), update, float(count), learning_rate)
            if new is not None and all(np.isfinite(array).all() for array in new.values()):
                for array in new.values():
                    array.flags.writeable = False
                self._memory[client] = new

    @abstractmethod
    def _renewed(
        self, known: Arrays | None, update: Mapping[str, NDArray[Any]], steps: float, learning_rate: float
    ) -> Arrays | None:
        """Return the new arrays of a client, which replace ``known``; None if ``known`` does not change."""

    def forget(self, clients: npt.ArrayLike) -> None:
        for client in np.asarray(clients, dtype=np.int64).ravel():
            self._memory.pop(int(client), None)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of all arrays of the state, so that a resumed run continues bit for bit.

        ``name`` holds the name of the variates as bytes. ``clients`` (n,) holds the clients with remembered
        arrays. Each ``memory/PARAMETER`` (n, *shape) holds the arrays of one parameter, in the order of
        ``clients``.
        """
        rows = list(self._memory.values())
        return {
            "name": np.frombuffer(self.name.encode(), dtype=np.uint8).copy(),
            "clients": np.array(list(self._memory), dtype=np.int64),
            **{_PREFIX + name: np.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())},
        }

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Go on from a saved state. Call this between two rounds only."""
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
        # Each client's arrays are copies, so that their memory is freed when they are replaced.
        self._memory = {
            int(client): {name: _frozen(stack[row, ...]) for name, stack in stacks.items()}
            for row, client in enumerate(clients)
        }


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


class FedVARP(ClientVariates):
    """FedVARP: the step uses the last update of a client in rounds in which the client is not selected.

    ::

        Δ = sum_m λ_m y_m + sum_{m in S} c_m (u_m - y_m);   then y_m <- u_m for the clients that replied

    Here S is the set of selected clients, u_m the update of client m, and y_m its last update before this
    round.

    The source is Jhunjhunwala, Sharma, Nagarkatti, Joshi, "FedVARP: Tackling the Variance Due to Partial
    Client Participation in Federated Learning" (UAI 2022). The paper has 1/|S| instead of the selector's
    weights c_m. The variance of the aggregate comes from the differences u_m - y_m, and falls to 0 if updates
    stop changing. The selector's feedback has the norms of these differences.
    """

    name = "fedvarp"

    def baseline(self, client: int) -> Arrays | None:
        return self._memory.get(client)

    def mean(self) -> Arrays | None:
        return self._mean

    def _renewed(
        self, known: Arrays | None, update: Mapping[str, NDArray[Any]], steps: float, learning_rate: float
    ) -> Arrays:
        return {name: np.array(array) for name, array in update.items()}


class FedVARPMean(FedVARP):
    """FedVARP without the selector's weights: the step is the mean of the last updates of all clients.

    ::

        y_m <- u_m for the clients that replied;   then Δ = sum_m λ_m y_m

    This is how DELTA is combined with FedVARP in appendix H.3 of its paper (there with equal λ_m): the
    selector only decides whose update is renewed. The step is biased towards old updates, even if the
    selector is unbiased. The selector's feedback has the norms of the differences u_m - y_m.
    """

    name = "fedvarp-mean"

    def weights(self, clients: Ints, weights: Floats) -> Floats:
        """Return λ_m for the clients whose update is used, since Δ = ȳ + sum_m λ_m (u_m - y_m)."""
        return np.where(weights > 0, self._shares[clients], 0.0)


class Scaffold(ClientVariates):
    """SCAFFOLD: the clients' remembered mean gradients c_m correct the direction of each local step.

    ::

        client     v <- v - lr (g_m(v) + c - c_m),  ``steps`` times, from v = w_t
        server     c_m <- c_m - c + (w_t - w_m)/(steps lr) for the clients that replied;   c = sum_m λ_m c_m

    Here g_m(v) is a gradient of client m at v, and lr is the learning rate. In this class, c_m is not the
    weight of client m.

    The source is Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML
    2020), Algorithm 1 with option II. There are two differences:

    - In the paper the clients store c_m and send its change. Here the server stores c_m and computes its
      change from the returned model. The client only adds c - c_m to each gradient.
    - In the paper c is the plain mean of c_m. Here c is weighted by λ_m, so that it estimates the gradient of
      the target, sum_m λ_m g_m, which is 0 at the optimum.

    The selector learns from the norm ||w_m - w_t|| of the whole local change, in which the control c - c_m is
    included. The later version of the OSMD paper does the same in appendix E.

    The clients must use plain SGD, since the server divides by ``steps`` and by the learning rate. If a
    client's number of steps is unknown, its c_m does not change. Clients report their numbers of steps, and
    the server cannot check them: a client that took 100 steps and reports 1 enters c with a hundred times its
    weight.
    """

    name = "scaffold"

    def outgoing(self, client: int) -> Arrays | None:
        """Return c - c_m, where c_m is 0 if the client never replied; None if no client has replied."""
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


KINDS: dict[str, type[ClientVariates]] = {each.name: each for each in (FedVARP, FedVARPMean, Scaffold)}


def create_variates(name: str) -> ClientVariates:
    """Return new variates by name: "fedvarp", "fedvarp-mean" or "scaffold"."""
    if name not in KINDS:
        raise ValueError(f"variates = {name!r}: must be one of {', '.join(KINDS)}")
    return KINDS[name]()
