"""Simulates the rounds of a federation without messages: a kernel trains all selected clients together.

The round logic, selectors and random streams are those of `strategies.SelectionStrategy`. So the same seed
gives the same selections and mini-batches as over gRPC, in Flower's simulation or on the in-process Grid, and
the same model up to float32 rounding.

A client's index is its position in the data. `SelectionStrategy` numbers late clients in the order in which
they join. For the same numbers here, wrap the availability in `simulation.availability.InOrderOfArrival`.
Groups are numbered as in `SelectionStrategy`.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf, nan
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from strategies.clients.overrides import Groups, numbered
from strategies.flower.arrays import to_record
from strategies.numerics.arrays import Floats, Ints
from strategies.options import Budget, Budgets, Buffered, Eligible, Faults, Overrides
from strategies.rounds.control_variates import create_variates
from strategies.rounds.guard.claimed_sizes import ClientSizes, judged_sizes
from strategies.rounds.logic import RoundLogic
from strategies.rounds.record import RoundRecord, with_remarks
from strategies.rounds.seeds import evaluators
from strategies.rounds.stages import Outcome
from strategies.selectors import Selector, create, selector_type, settings_of_run
from strategies.server_steps.compatibility import check_buffered, check_masked
from strategies.server_steps.replies import contributions_of
from strategies.server_steps.step import ServerStep, Step
from tasks.base import Arrays, Metrics
from tasks.federated_data import Dataset, FederatedData

from .availability import Availability
from .grid import InProcessGrid
from .kernels import Kernel, Plan
from .response_times import ResponseTimes
from .run.available_clients import AvailableClients
from .run.buffered_rounds import BufferedRounds
from .run.polls import Polls
from .run.training import Training


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the lines that Flower's strategies log in each round: a simulation has thousands of rounds."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)


def take_step(server: ServerStep, arrays: Arrays, outcome: Outcome) -> Step:
    """Let the strategy step from the model ``arrays``, given the outcome of a round that is not skipped."""
    assert outcome.arrays is not None
    grid, number = InProcessGrid(lambda message, _: message, [{}]), outcome.record.round
    with _quiet():
        messages = server.configure(number, to_record(dict(arrays)), ConfigRecord(), grid)
        return server.step(number, arrays, outcome.arrays, contributions_of(outcome), messages)


_MADE_BY = {
    "availability": "an Availability, such as simulation.availability.create('markov', 100, rates=0.3)",
    "response_times": "simulation.response_times.ResponseTimes",
}


class Simulator:
    """A federation, simulated round by round.

    Parameters
    ----------
    data : FederatedData
        The samples of all clients; each client must have at least one.
    kernel : Kernel
        Trains the clients' models, see `simulation.kernels`.
    selector : str
        A name of `strategies.selectors.available`.
    clients_per_round : int
        K.
    num_rounds : int
        T, the number of rounds that some selectors need for their rates. `run` may end before round T or go
        on after it.
    learning_rate : float or callable
        The learning rate of local SGD, > 0, or a function of the round.
    batch_size : int
        B; a client with fewer samples takes all of them.
    local_steps, local_epochs : int
        How many mini-batches each client takes, or how many times it goes over its samples. Exactly one of
        the two must be given, >= 1.
    seed : int (default: 0)
        The seed of all random draws.
    budget : number, str or callable, optional
        The budget K(t), if it varies over the rounds, as in `SelectionStrategy` (default: K).
    selector_settings : mapping, optional
        The selector's settings. ``groups`` are names or numbers, one per client (default: the data's groups).
    client_sizes : array_like, shape (M,), optional
        The data sizes that the operator declares; NaN = none (default: none). The share λ_m of client m in
        the aggregate is proportional to its size. Without a declaration, a client claims the number of its
        samples, and the guard judges this claim as in `SelectionStrategy`.
    availability : Availability, optional
        Which clients are available in each round (default: all).
    eligible : Eligibility, str or callable, optional
        Which clients may be selected, by name and by ``group``, as in `SelectionStrategy` (default: all).
        Other properties and tags are not simulated.
    client_names : sequence of str, optional
        The names (M,) of the clients, for ``eligible`` (default: "client-0", "client-1", ...).
    response_times : ResponseTimes, optional
        When each client replies, if at all (default: at once).
    round_deadline : float (default: inf)
        Seconds after which a round goes on without the missing replies.
    shortest_deadline : float (default: inf)
        The shortest deadline in seconds that the simulator may learn from the replies, see
        `Deadlines.shortest`. Infinite: it learns no deadline, and ``round_deadline`` holds.
    server_strategy : Strategy, optional
        The Flower strategy that takes the server step, as in `SelectionStrategy` (default: FedAvg).
    variates : {"fedvarp", "fedvarp-mean", "scaffold"}, optional
        The kind of control variates, which the server computes from what it remembers of each client
        (default: none).
    proximal_mu : float (default: 0.0)
        μ of FedProx in the clients' loss, >= 0. If 0: the μ of ``server_strategy`` if that is FedProx, and
        otherwise no proximal term.
    mode : Buffered, optional
        If given, rounds are buffered, as in `SelectionStrategy`; needs ``response_times``. A client that does
        not reply within ``round_deadline`` is given up: its place becomes free, and its update is not used.
        No shorter deadlines are learned. The availability changes once a round, however long the round takes.
    masked_updates : bool (default: False)
        Whether the server sees only the sum of the updates, as in `SelectionStrategy`. If so, clients report
        the norms, and a round in which a reply is missing is skipped.
    initial_arrays : Arrays, optional
        The model before round 1 (default: the kernel's initial model for this seed).
    faults : Faults, optional
        Quorum, over-selection, correction, guard and silence, as in `SelectionStrategy` (default: no guard,
        and no quarantine for silence, since simulated clients are honest).

    Attributes
    ----------
    arrays : Arrays
        The model after the last round.
    round : int
        The last round, 0 before the first.
    history : list of RoundRecord
        The record of each round. The record of a round with ten selected clients takes about 3 KB.
    seconds : float
        The sum of the simulated times for which the rounds waited for replies. Infinite once a round without
        a deadline has waited for a client that dropped out.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it, its value and what is allowed.

    Examples
    --------
    >>> from simulation.kernels import Softmax
    >>> rng = np.random.default_rng(0)
    >>> centers = rng.normal(size=(3, 5))
    >>> labels = rng.integers(3, size=600)
    >>> inputs = (centers[labels] + rng.normal(size=(600, 5))).astype(np.float32)
    >>> data = FederatedData(inputs, labels, offsets=np.arange(0, 601, 6))  # 100 clients of 6 samples
    >>> simulator = Simulator(data, Softmax(5, 3), "md", clients_per_round=10, num_rounds=50,
    ...     learning_rate=0.5, batch_size=6, local_steps=2)
    >>> records = simulator.run(50)
    >>> simulator.evaluate(Dataset(inputs, labels)).accuracy > 0.8
    True
    """

    def __init__(
        self,
        data: FederatedData,
        kernel: Kernel,
        selector: str = "forecast",
        *,
        clients_per_round: int,
        num_rounds: int,
        learning_rate: float | Callable[[int], float],
        batch_size: int,
        local_steps: int = 0,
        local_epochs: int = 0,
        seed: int = 0,
        budget: Budget | None = None,
        selector_settings: Mapping[str, Any] | None = None,
        client_sizes: npt.ArrayLike | None = None,
        availability: Availability | None = None,
        eligible: Eligible | None = None,
        client_names: Sequence[str] | None = None,
        response_times: ResponseTimes | None = None,
        round_deadline: float = inf,
        shortest_deadline: float = inf,
        server_strategy: Strategy | None = None,
        variates: Literal["fedvarp", "fedvarp-mean", "scaffold"] | None = None,
        proximal_mu: float = 0.0,
        mode: Buffered | None = None,
        masked_updates: bool = False,
        initial_arrays: Arrays | None = None,
        faults: Faults | None = None,
    ) -> None:
        if (local_steps > 0) == (local_epochs > 0):
            raise ValueError(
                f"local_steps = {local_steps}, local_epochs = {local_epochs}: exactly one must be above 0"
            )
        for name, value in (("batch_size", batch_size), ("local_steps", local_steps or local_epochs)):
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} = {value}: must be a whole number >= 1")
        if not callable(learning_rate) and not 0 < learning_rate < inf:
            raise ValueError(f"learning_rate = {learning_rate}: must be a finite number above 0")
        if not 0 <= proximal_mu < inf:
            raise ValueError(f"proximal_mu = {proximal_mu}: must be a finite number >= 0")
        for name, seconds in (("round_deadline", round_deadline), ("shortest_deadline", shortest_deadline)):
            if not seconds > 0:
                raise ValueError(f"{name} = {seconds}: must be greater than 0")
        faults = faults or Faults(guard=False, silence=False)
        faults.check(selector_type(selector), clients_per_round)
        budgets = Budgets(clients_per_round, budget)
        budgets.check(faults.quorum, data.num_clients)
        held = data.sizes()
        if not (held > 0).all():
            raise ValueError(f"data: client {int(np.argmin(held))} has no samples; each must have some")
        for name, process in (("availability", availability), ("response_times", response_times)):
            if process is not None and not hasattr(process, "num_clients"):
                raise TypeError(f"{name} = {process!r}: must be {_MADE_BY[name]}")
            if process is not None and process.num_clients != held.size:
                raise ValueError(f"{name} is of {process.num_clients} clients: must be of {held.size}")
        kernel.check(data)
        self._data, self._kernel, self._seed = data, kernel, seed
        kind = selector_type(selector)
        given = settings_of_run(selector, selector_settings or {}, local_steps)
        settings = {name: value for name, value in given.items() if name not in kind.per_client}
        each = {name: given.get(name) for name in kind.per_client}
        if "groups" in each:
            labels = data.groups if each["groups"] is None else each["groups"]
            labels = [None] * held.size if labels is None else np.asarray(labels).tolist()
            each["groups"] = _group_numbers(kind, settings, labels)
        per_client = {name: np.asarray(values) for name, values in each.items() if values is not None}
        declared = np.full(held.size, nan) if client_sizes is None else np.array(client_sizes, np.float64)
        for name, values in ("client_sizes", declared), *per_client.items():
            if values.shape != held.shape:
                raise ValueError(f"{name} of shape {values.shape}: must be {held.shape}, one per client")
        claimed, guard = held.astype(np.float64), faults.guard_settings

        def sizes_of(known: int) -> ClientSizes:
            return judged_sizes(claimed[:known], declared[:known], guard)

        known = held.size if availability is None else availability.num_registered(1)
        self._sizes = sizes_of(known)
        chosen = create(
            selector,
            known,
            clients_per_round=clients_per_round,
            num_rounds=num_rounds,
            seed=seed,
            client_sizes=self._sizes.used,
            **{name: values[:known] for name, values in per_client.items()},
            **settings,
        )
        if chosen.part_names:
            raise ValueError(
                f"selector = {selector!r}: its clients keep models of their own, which needs messages"
            )
        if "group" in chosen.polls_for:
            raise ValueError(
                f"selector = {selector!r}: its clients decide for themselves, which needs messages"
            )
        if "gradient_variance" in chosen.polls_for and local_steps == 1:
            raise ValueError(
                f"local_steps = 1 with selector = {selector!r}: must be at least 2, since it needs the "
                "variance of gradients over steps"
            )
        self._server: ServerStep | None = None
        if server_strategy is not None:
            self._server = ServerStep(
                server_strategy,
                selector,
                settings,
                clients_per_round=min(clients_per_round, budgets.smallest),
                variates=variates,
            )
        if masked_updates:
            check_masked(kind, settings, server_strategy, variates, faults)
        if mode is not None:
            check_buffered(
                mode,
                kind,
                settings,
                server_strategy,
                faults,
                size=mode.size or clients_per_round,
                variates=variates,
                masked_updates=masked_updates,
                budget=budget,
            )
            if response_times is None:
                raise ValueError(
                    "mode = Buffered(...): needs response_times in a batched simulation, where all clients "
                    "answer at once without them"
                )
        is_private = self._server is not None and self._server.is_private
        self._logic = RoundLogic(
            chosen,
            faults,
            variates=create_variates(variates) if variates else None,
            budgets=budgets,
            shortest_deadline=shortest_deadline,
            updates="masked" if masked_updates else "noised" if is_private else "open",
            mode=mode,
        )
        measures_variance = "gradient_variance" in (chosen.feedback_used | chosen.polls_for)
        mu = proximal_mu or float(getattr(self._server and self._server.base, "proximal_mu", 0.0))

        def plan_of(number: int) -> Plan:
            return Plan(
                seed=seed,
                round=number,
                learning_rate=learning_rate(number) if callable(learning_rate) else learning_rate,
                batch_size=batch_size,
                steps=local_steps,
                epochs=local_epochs,
                proximal_mu=mu,
                measure_variance=measures_variance,
            )

        self._plan_of = plan_of
        self._available = AvailableClients(availability, eligible, client_names, data, per_client, sizes_of)
        self._sizes_of = sizes_of
        self._polls = Polls(data, kernel, chosen)
        self._training = Training(data, kernel, self._logic, response_times, round_deadline)
        self._buffered: BufferedRounds | None = None
        if response_times is not None and self._logic.buffer is not None:
            self._buffered = BufferedRounds(
                data, kernel, self._logic, self._logic.buffer, response_times, round_deadline, plan_of
            )
        self.arrays: Arrays = kernel.initial_arrays(seed) if initial_arrays is None else dict(initial_arrays)
        self.round = 0
        self.seconds = 0.0
        self.history: list[RoundRecord] = []

    @property
    def selector(self) -> Selector:
        return self._logic.selector

    @property
    def data_sizes(self) -> ClientSizes:
        """The data sizes of the clients that have joined so far, as claimed and as used."""
        if self._sizes.used.size != self.selector.num_clients:
            self._sizes = self._sizes_of(self.selector.num_clients)
        return self._sizes

    def run(
        self, num_rounds: int, on_round: Callable[[RoundRecord], None] | None = None
    ) -> Sequence[RoundRecord]:
        """Run ``num_rounds`` more rounds, call ``on_round`` after each of them, and return their records."""
        for _ in range(num_rounds):
            record = self.step()
            if on_round is not None:
                on_round(record)
        return self.history[len(self.history) - num_rounds :]

    def step(self) -> RoundRecord:
        number = self.round + 1
        plan = self._plan_of(number)
        available = self._available.available(number, self._logic)
        self._training.hear_late_replies(self.seconds)
        opened = self._logic.open(number, available, learning_rate=plan.learning_rate)
        if self.selector.asks_norms:
            clients = opened.selectable(self.selector.registered)
            self._logic.learn_norms(opened, clients, self._polls.norms(plan, clients, self.arrays))
        if self._buffered is not None:
            chosen, replies = self._buffered.run(opened, self.arrays, self.seconds)
        else:
            reports = None
            if opened.candidates is not None:
                reports = self._polls.reports(plan, opened.candidates, self.arrays)
            chosen = self._logic.choose(opened, reports)
            replies = self._training.run(plan, chosen, self.arrays, self.seconds)
        outcome = self._logic.finish(chosen, self.arrays, replies.trained, replies.seconds)
        arrays, skipped = self._server_step(outcome)
        if arrays is not None:
            self.arrays = arrays
        record = outcome.closed(
            skipped,
            replies.waited,
            eligible=self._available.conditions,
            num_ineligible=self._available.num_ineligible,
        )
        if replies.seconds is not None and np.isfinite(replies.seconds).any():
            record = replace(record, reply_seconds=replies.seconds)
        record = with_remarks(record, self.data_sizes.remarks)
        self.round = number
        self.seconds += replies.waited
        self.history.append(record)
        return record

    def _server_step(self, outcome: Outcome) -> tuple[Arrays | None, str]:
        """Return the new model and ""; or None and the reason why the round leaves the model unchanged."""
        if self._server is None or outcome.arrays is None:
            return outcome.arrays, outcome.record.skipped
        return take_step(self._server, self.arrays, outcome)

    def evaluate(self, data: Dataset) -> Metrics:
        """Return the mean loss and the accuracy of the model on ``data``."""
        if not isinstance(data, Dataset):
            raise TypeError(
                f"data is of type {type(data).__name__}: must be a Dataset, "
                "such as task.test_data(), or Dataset(data.inputs, data.labels) of federated data"
            )
        return self._kernel.evaluate(self.arrays, data)

    def evaluate_groups(self, names: Sequence[str | None], share: float = 1.0) -> dict[str, Metrics]:
        """Return the metrics of the model on the samples of each group's evaluating clients.

        ``names`` (M,) are the groups of the clients, None for no group. ``share``, from 0 to 1, is the share
        of all clients that evaluate the model; `SelectionStrategy` draws the same clients.
        """
        drawn = evaluators(self._seed, self.round, np.arange(self._data.num_clients), share)
        found = {}
        for name in sorted({names[client] for client in drawn} - {None}, key=str):
            rows = [np.arange(*self._data.offsets[m : m + 2]) for m in drawn if names[m] == name]
            mine = np.concatenate(rows)
            found[str(name)] = self.evaluate(Dataset(self._data.inputs[mine], self._data.labels[mine]))
        return found

    def client_losses(self, clients: Ints | None = None) -> Floats:
        """Return the mean loss of the model on all samples of each of these clients (default: all)."""
        everyone = np.arange(self._data.num_clients)
        return self._kernel.losses(self.arrays, self._data, everyone if clients is None else clients)

    def train_loss(self) -> float:
        """Return sum_m λ_m times the mean loss of client m, over the clients that have joined so far."""
        joined = np.arange(self.selector.num_clients)
        return float(np.average(self.client_losses(joined), weights=self.selector.client_sizes))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of all arrays that are needed to continue bit for bit, but not the history."""
        state: dict[str, NDArray[Any]] = {
            f"model/{name}": array.copy() for name, array in self.arrays.items()
        }
        state |= {f"logic/{name}": array for name, array in self._logic.state_dict().items()}
        if self._server is not None:
            state |= {f"step/{name}": array for name, array in self._server.state_dict().items()}
        if self._buffered is not None:
            state |= self._buffered.state_dict()
        own = {"round": np.array(self.round), "seconds": np.array(self.seconds)}
        return state | own | self._training.state_dict()

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the `state_dict` of a simulator that was made with the same arguments.

        Raises a KeyError or ValueError if the state is that of a simulator with other arguments.
        """

        def part(prefix: str) -> dict[str, NDArray[Any]]:
            return {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}

        model = part("model/")
        saved, own = (
            {name: array.shape for name, array in arrays.items()} for arrays in (model, self.arrays)
        )
        if saved != own:
            raise ValueError(f"the saved model has the arrays {saved}: must have those of this run, {own}")
        self._logic.load_state_dict(part("logic/"))
        if self._server is not None:
            self._server.load_state_dict(part("step/"))
        self.arrays = {name: array.copy() for name, array in model.items()}
        self.round, self.seconds = int(state["round"]), float(state["seconds"])
        self._training.load_state_dict(state)
        if self._buffered is not None:
            self._buffered.load_state_dict(state)
        self.history = [record for record in self.history if record.round <= self.round]


def _group_numbers(
    kind: type[Selector], settings: Mapping[str, Any], labels: Sequence[str | int | None]
) -> Ints:
    """Return (M,) the numbers of the clients' groups, as `SelectionStrategy` numbers them."""
    groups = Groups.of(Overrides(), kind.checked_settings(settings))
    for label in dict.fromkeys(labels):
        if refusal := groups.refusal("", label):
            raise ValueError(f"groups: client {labels.index(label)} cannot take part: {refusal}")
    return numbered(groups.names, labels)
