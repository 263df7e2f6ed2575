"""Simulates the rounds of a federation without messages: a kernel trains all selected clients together.

The round logic, selectors and random streams are those of `strategies.SelectionStrategy`. So the same seed
gives the same selections and mini-batches as over gRPC, in Flower's simulation or on the in-process Grid, and
the same model up to float32 rounding. Clients are rows of arrays, not objects.

A client's index is its position in the data. `SelectionStrategy` numbers late clients in the order in which
they join. For the same numbers here, wrap the availability in `simulation.availability.InOrderOfArrival`.
Groups are numbered as in `SelectionStrategy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from strategies.clients.overrides import Groups, numbered
from strategies.clients.printable import listed
from strategies.numerics.robust import mean_weights
from strategies.options import Budget, Budgets, Buffered, Eligibility, Eligible, Faults, Overrides
from strategies.rounds.logic import RoundLogic
from strategies.rounds.record import RoundRecord
from strategies.rounds.replies import Reply
from strategies.rounds.seeds import client_seed, evaluators
from strategies.rounds.trained_clients import ClientUpdates, JoinedUpdates, TrainedClients, WeightedUpdates
from strategies.rounds.variates import create_variates
from strategies.selectors import Selector, create, selector_type, settings_of_run
from strategies.server_steps.compatibility import check_buffered, check_masked
from tasks.base import Arrays, Metrics, batches
from tasks.data import Dataset, FederatedData, federate

from .flower_step import FlowerStep
from .kernels import Plan
from .response_times import arrivals

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy

    from strategies.numerics.arrays import Bools, Floats, Ints
    from strategies.rounds.buffered.buffer import Buffer
    from strategies.rounds.stages import Chosen, Opened, Outcome

    from .availability import Availability
    from .kernels import Kernel
    from .response_times import ResponseTimes

_LATE = "no answer by the deadline"
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
        T, the horizon of some selectors. `run` may end before round T or go on after it.
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
        The data sizes; the share λ_m of client m in the aggregate is proportional to its size (default: the
        number of samples of each client).
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
    variates : {"fedvarp", "scaffold"}, optional
        The kind of array that the server remembers for each client (default: none).
    proximal_mu : float (default: 0.0)
        μ of FedProx in the clients' loss, >= 0. If 0: the μ of ``server_strategy`` if that is FedProx, and
        otherwise no proximal term.
    mode : Buffered, optional
        Rounds are buffered, as in `SelectionStrategy`; needs ``response_times``. A client that does not reply
        within ``round_deadline`` is given up: its place becomes free, and its update is not used. No shorter
        deadlines are learned. The availability moves on by one step in each round, whatever the simulated
        time of the round is.
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
        The record of each round (not the history file). A record of ten selected clients takes about 3 KB.
    seconds : float
        The simulated time that all rounds waited for replies. Infinite once a round without a deadline has
        waited for a client that dropped out.

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
        variates: Literal["fedvarp", "scaffold"] | None = None,
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
        self.faults = faults or Faults(guard=False, silence=False)
        self.faults.check(selector_type(selector), clients_per_round)
        budgets = Budgets(clients_per_round, budget)
        budgets.check(self.faults.quorum, data.num_clients)
        held = data.sizes()
        if not (held > 0).all():
            raise ValueError(f"data: client {int(np.argmin(held))} has no samples; each must have some")
        for name, process in (("availability", availability), ("response_times", response_times)):
            if process is not None and not hasattr(process, "num_clients"):
                raise TypeError(f"{name} = {process!r}: must be {_MADE_BY[name]}")
            if process is not None and process.num_clients != held.size:
                raise ValueError(f"{name} is of {process.num_clients} clients: must be of {held.size}")
        kernel.check(data)
        self._conditions = None if eligible is None else Eligibility.of(eligible)
        names = [f"client-{m}" for m in range(held.size)] if client_names is None else list(client_names)
        if len(names) != held.size:
            raise ValueError(f"client_names holds {len(names)} names: must hold {held.size}, one per client")
        labels = [None] * held.size if data.groups is None else np.asarray(data.groups).tolist()
        self._known_as = [
            (name, {} if label is None else {"group": str(label)})
            for name, label in zip(names, labels, strict=True)
        ]
        self._eligible: tuple[Eligibility, Bools] = Eligibility(), np.ones(held.size, dtype=np.bool_)
        if self._conditions is not None:
            self._eligible_in(1)  # refuse now, before round 1, conditions that no client meets
        self._num_ineligible = 0
        self.data, self.kernel, self.seed = data, kernel, seed
        self.availability, self.response_times = availability, response_times
        self.round_deadline = round_deadline
        self._learning_rate = learning_rate if callable(learning_rate) else lambda round: learning_rate
        self._batch_size, self._steps, self._epochs = batch_size, local_steps, local_epochs
        settings = settings_of_run(selector, selector_settings or {}, local_steps)
        kind = selector_type(selector)
        if "groups" in kind.per_client:
            labels = settings.pop("groups", None)
            labels = data.groups if labels is None else labels
            each = [None] * held.size if labels is None else np.asarray(labels).tolist()
            settings["groups"] = _group_numbers(kind, settings, each)
        each = {"client_sizes": client_sizes, **{name: settings.pop(name, None) for name in kind.per_client}}
        self._per_client = {"client_sizes": held} | {
            name: np.asarray(values) for name, values in each.items() if values is not None
        }
        for name, values in self._per_client.items():
            if values.shape != held.shape:
                raise ValueError(f"{name} of shape {values.shape}: must be {held.shape}, one per client")
        known = held.size if availability is None else availability.num_registered(1)
        chosen = create(
            selector,
            known,
            clients_per_round=clients_per_round,
            num_rounds=num_rounds,
            seed=seed,
            **{name: values[:known] for name, values in self._per_client.items()},
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
        self._measures_variance = "gradient_variance" in (chosen.feedback_used | chosen.polls_for)
        self._server: FlowerStep | None = None
        if server_strategy is not None:
            self._server = FlowerStep(
                server_strategy,
                selector,
                settings,
                clients_per_round=min(clients_per_round, budgets.smallest),
                variates=variates,
            )
        if masked_updates:
            check_masked(kind, server_strategy, variates, self.faults)
        if mode is not None:
            check_buffered(
                mode,
                kind,
                settings,
                server_strategy,
                self.faults,
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
        self._masked = masked_updates
        self._proximal_mu = proximal_mu or (self._server.proximal_mu if self._server else 0.0)
        self._logic = RoundLogic(
            chosen,
            self.faults,
            variates=create_variates(variates) if variates else None,
            budgets=budgets,
            shortest_deadline=shortest_deadline,
            updates="masked" if masked_updates else "noised" if self._is_private else "open",
            mode=mode,
        )
        self.arrays: Arrays = kernel.initial_arrays(seed) if initial_arrays is None else dict(initial_arrays)
        self.round = 0
        self.seconds = 0.0
        self.history: list[RoundRecord] = []
        # (n, 4) replies that arrive after the end of their round: simulated time of arrival (s), round,
        # client, response time (s).
        self._late = np.empty((0, 4))
        # The clients in flight of buffered rounds, in the order in which they were asked -> (when the
        # training or the wait for it ends, simulated s; how long the training takes, s, infinite if longer
        # than the deadline).
        self._in_flight: dict[int, tuple[float, float]] = {}
        # Round -> the model from which the clients train that were asked in this round.
        self._models: dict[int, Arrays] = {}

    @property
    def _is_private(self) -> bool:
        return self._server is not None and self._server.is_private

    @property
    def selector(self) -> Selector:
        """The selector."""
        return self._logic.selector

    def run(
        self, num_rounds: int, on_round: Callable[[RoundRecord], None] | None = None
    ) -> Sequence[RoundRecord]:
        """Run ``num_rounds`` more rounds and return their records; ``on_round`` is called after each."""
        for _ in range(num_rounds):
            record = self.step()
            if on_round is not None:
                on_round(record)
        return self.history[len(self.history) - num_rounds :]

    def step(self) -> RoundRecord:
        """Run one round."""
        number = self.round + 1
        plan = self._plan(number)
        self._logic.local_learning_rate = plan.learning_rate
        available = self._available(number)
        self._hear_late_replies()
        opened = self._logic.open(number, available)
        if self.selector.asks_norms:
            clients = opened.selectable(self.selector.registered)
            self._logic.learn_norms(opened, clients, self._norms(replace(plan, round=0), clients))
        if self._logic.buffer is not None:
            chosen, replies, seconds, measured = self._train_buffered(opened, self._logic.buffer)
        else:
            reports = None if opened.candidates is None else self._reports(plan, opened.candidates)
            chosen = self._logic.choose(opened, reports)
            replies, seconds, measured = self._train(plan, chosen)
        outcome = self._logic.finish(chosen, self.arrays, replies, measured)
        arrays, skipped = self._server_step(outcome)
        if arrays is not None:
            self.arrays = arrays
        record = outcome.closed(
            skipped, seconds, eligible=str(self._eligible[0]), num_ineligible=self._num_ineligible
        )
        if measured is not None and np.isfinite(measured).any():
            record = replace(record, reply_seconds=measured)
        self.round = number
        self.seconds += seconds
        self.history.append(record)
        return record

    def _plan(self, number: int) -> Plan:
        """Return the training plan of the clients that are asked in a round."""
        return Plan(
            seed=self.seed,
            round=number,
            learning_rate=self._learning_rate(number),
            batch_size=self._batch_size,
            steps=self._steps,
            epochs=self._epochs,
            proximal_mu=self._proximal_mu,
            measure_variance=self._measures_variance,
        )

    def _available(self, number: int) -> Ints | None:
        """Let new clients join, and return the clients that may be selected in a round; None for all."""
        available = self._here(number)
        if self._conditions is None:
            return available
        mask = self._eligible_in(number)
        here = np.arange(self.selector.num_clients) if available is None else np.asarray(available)
        self._num_ineligible = here.size - int(np.count_nonzero(mask[here]))
        return here[mask[here]]

    def _eligible_in(self, number: int) -> Bools:
        """Return (M,) whether each client meets the conditions of a round.

        Raises
        ------
        ValueError
            If no client meets them, or they name a tag or a property other than ``group``.
        """
        assert self._conditions is not None
        conditions = self._conditions(number)
        if conditions != self._eligible[0]:
            if conditions.tags or conditions.properties.keys() - {"group"}:
                raise ValueError(
                    f"eligible = {str(conditions)!r}: a batched simulation knows names and groups only"
                )
            mask = np.array([conditions.admits(*each) for each in self._known_as], dtype=np.bool_)
            if not mask.any():
                raise ValueError(
                    f"eligible = {str(conditions)!r}: no client meets this; the names are "
                    f"{listed([name for name, _ in self._known_as], 3)}"
                )
            self._eligible = conditions, mask
        return self._eligible[1]

    def _here(self, number: int) -> Ints | None:
        """Let new clients join, and return the clients that are available in a round; None for all."""
        if self.availability is None:
            return None
        available = self.availability.available(number)
        joining = slice(self.selector.num_clients, self.availability.num_registered(number))
        if joining.stop > joining.start:
            self._logic.add_clients(**{name: each[joining] for name, each in self._per_client.items()})
        return available

    def _hear_late_replies(self) -> None:
        """Learn response times from replies that came after the end of their round, in order of arrival."""
        if not self._late.size:
            return
        due = self._late[:, 0] <= self.seconds
        come = self._late[due]
        for _, number, client, seconds in come[np.argsort(come[:, 0], kind="stable")]:
            wait = self._logic.wait("train", int(number), np.array([int(client)]), self.round_deadline)
            if wait is not None:
                wait.late(0, float(seconds))
        self._late = self._late[~due]

    def _server_step(self, outcome: Outcome) -> tuple[Arrays | None, str]:
        """Return the new model and ""; or None and why the round leaves the model unchanged."""
        if self._server is None or outcome.arrays is None:
            return outcome.arrays, outcome.record.skipped
        return self._server.step(outcome.record.round, self.arrays, outcome)

    def evaluate(self, data: Dataset) -> Metrics:
        """Return the mean loss and the accuracy of the model on ``data``.

        Raises
        ------
        TypeError
            If ``data`` is not a `Dataset`. For federated data, use ``Dataset(data.inputs, data.labels)``.
        """
        if not isinstance(data, Dataset):
            raise TypeError(
                f"data is of type {type(data).__name__}: must be a Dataset, "
                "such as task.test_data(), or Dataset(data.inputs, data.labels) of federated data"
            )
        return self.kernel.evaluate(self.arrays, data)

    def evaluate_groups(self, names: Sequence[str | None], share: float = 1.0) -> dict[str, Metrics]:
        """Return the metrics of the model on the samples of each group's evaluating clients.

        Parameters
        ----------
        names : sequence of str or None
            (M,) the group of each client, None if it has none.
        share : float (default: 1.0)
            How large a share of all clients evaluates, from 0 to 1. `SelectionStrategy` draws the same
            clients.
        """
        drawn = evaluators(self.seed, self.round, np.arange(self.data.num_clients), share)
        found = {}
        for name in sorted({names[client] for client in drawn} - {None}, key=str):
            rows = [np.arange(*self.data.offsets[m : m + 2]) for m in drawn if names[m] == name]
            mine = np.concatenate(rows)
            found[str(name)] = self.evaluate(Dataset(self.data.inputs[mine], self.data.labels[mine]))
        return found

    def client_losses(self, clients: Ints | None = None) -> Floats:
        """Return the mean loss of the model on all samples of each of these clients (default: all)."""
        everyone = np.arange(self.data.num_clients)
        return self.kernel.losses(self.arrays, self.data, everyone if clients is None else clients)

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
        state["in_flight"] = np.array(
            [(client, *times) for client, times in self._in_flight.items()], dtype=np.float64
        ).reshape(-1, 3)
        for number, model in self._models.items():
            state |= {f"models/{number}/{name}": array.copy() for name, array in model.items()}
        own = {"round": np.array(self.round), "seconds": np.array(self.seconds), "late": self._late.copy()}
        return state | own

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the `state_dict` of a simulator that was made with the same arguments.

        Raises
        ------
        KeyError, ValueError
            If the state is that of a simulator with other arguments.
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
        self._late = np.array(state["late"])
        self._in_flight = {int(client): (end, took) for client, end, took in state["in_flight"].tolist()}
        self._models = {}
        for key, array in part("models/").items():
            number, _, name = key.partition("/")
            self._models.setdefault(int(number), {})[name] = array.copy()
        self.history = [record for record in self.history if record.round <= self.round]

    # --- a round ---------------------------------------------------------------------------------------

    def _reports(self, plan: Plan, candidates: Ints) -> dict[str, Floats]:
        """Return the numbers that the candidates would report to a poll."""
        polls_for = self.selector.polls_for
        reports: dict[str, Floats] = {name: np.empty(0) for name in polls_for}
        if not candidates.size:
            return reports
        if "loss" in polls_for:
            asked, size = self.data, self.selector.poll_settings.get("batch-size")
            who = candidates
            if size is not None:
                asked, who = self._some_samples(plan, candidates, int(size)), np.arange(candidates.size)
            reports["loss"] = self.kernel.losses(self.arrays, asked, who)
        if polls_for - {"loss"}:  # numbers that are known only after training
            trained = self.kernel.train(self.arrays, self.data, candidates, plan)
            reports["update_norm"] = trained.updates.norms() / plan.learning_rate
            reports["gradient_variance"] = trained.gradient_variances
            if "diversity" in polls_for:
                reports["diversity"] = self._diversities(trained.updates, candidates) / plan.learning_rate
        return {name: values for name, values in reports.items() if name in polls_for}

    def _norms(self, plan: Plan, clients: Ints, at_a_time: int = 1000) -> Floats:
        """Return (n,) the norms of the clients' updates; ``at_a_time`` clients are trained at once."""
        parts = [clients[first : first + at_a_time] for first in range(0, clients.size, at_a_time)]
        norms = [self.kernel.train(self.arrays, self.data, part, plan).updates.norms() for part in parts]
        return np.concatenate([np.empty(0), *norms])

    def _some_samples(self, plan: Plan, candidates: Ints, size: int) -> FederatedData:
        """Return one mini-batch of each candidate: the mini-batch that its ClientApp would draw."""
        parts = []
        for client in candidates.tolist():
            begin, end = self.data.offsets[client], self.data.offsets[client + 1]
            seed = client_seed(self.seed, plan.round, client, "loss")
            parts.append(begin + next(batches(int(end - begin), size, 1, seed)))
        return federate(Dataset(self.data.inputs, self.data.labels), parts)

    def _diversities(self, updates: ClientUpdates, clients: Ints) -> Floats:
        """Return (R,) the distance of each update from the mean of all R updates, see `mean_weights`."""
        # An update that is not finite has weight 0 in the mean, and its diversity is not finite.
        mean = updates.combined(mean_weights(self.selector.client_sizes[clients], updates.norms()))
        apart = np.zeros(clients.size)
        for row in range(clients.size):
            model = updates.model(row)
            for name, array in self.arrays.items():
                apart[row] += float(np.square(model[name] - array - mean[name], dtype=np.float64).sum())
        return np.sqrt(apart)

    def _train(self, plan: Plan, chosen: Chosen) -> tuple[TrainedClients | list[Reply], float, Floats | None]:
        """Train the selected clients that reply in time.

        Returns
        -------
        TrainedClients or list of Reply
            The replies.
        float
            The seconds of the wait.
        ndarray, shape (S,), or None
            The seconds until each reply, NaN for none; None without response times.
        """
        clients, waited, measured = chosen.selection.clients, 0.0, None
        answered = np.ones(clients.size, dtype=np.bool_)
        if self.response_times is not None:
            seconds = self.response_times.seconds(plan.round, clients)
            enough = chosen.enough if clients.size else None
            wait = self._logic.wait("train", plan.round, clients, self.round_deadline)
            answered, waited = arrivals(seconds, self.round_deadline, enough, wait)
            measured = np.where(answered, seconds, np.nan)
            late = ~answered & np.isfinite(seconds)
            if wait is not None and late.any():
                rounds = np.full(clients.size, float(plan.round))
                coming = np.column_stack([self.seconds + seconds, rounds, clients, seconds])[late]
                self._late = np.concatenate([self._late, coming])
        positions = np.flatnonzero(answered)
        training = clients[positions]
        if not training.size:
            return [Reply(failure=_LATE) for _ in clients], waited, measured
        controls = None
        if self._logic.variates is not None:
            sent = {m: self._logic.variates.outgoing(m) for m in training.tolist()}
            controls = {m: control for m, control in sent.items() if control is not None} or None
        trained = self.kernel.train(self.arrays, self.data, training, plan, controls)
        updates = trained.updates
        if self._masked:  # each client multiplies its own update by its weight
            updates = WeightedUpdates(
                updates, chosen.selection.weights[positions] * clients.size, self.arrays
            )
        replies = TrainedClients(
            positions,
            updates,
            trained.losses,
            plan.num_steps(self.data.offsets[training + 1] - self.data.offsets[training]),
            trained.gradient_variances,
            dict.fromkeys(np.flatnonzero(~answered).tolist(), _LATE),
        )
        return replies, waited, measured

    def _train_buffered(
        self, opened: Opened, buffer: Buffer
    ) -> tuple[Chosen, TrainedClients | list[Reply], float, Floats | None]:
        """Let clients train until the buffer is full or no client is in flight.

        Returns
        -------
        Chosen
            The clients that answered or were given up.
        TrainedClients or list of Reply, float, ndarray
            The replies, the seconds of the wait, and the seconds until each reply, as `_train` returns them.
        """
        assert self.response_times is not None
        number, now = opened.number, self.seconds
        failures: dict[int, str] = {}
        took: dict[int, float] = {}
        num_stale = 0
        buffer.begin(number)
        self._models[number] = self.arrays
        versions: dict[int, int] = {}
        while not buffer.is_full:
            asked = self._logic.fill(opened)
            for client, seconds in zip(
                asked, self.response_times.seconds(number, asked).tolist(), strict=True
            ):
                waits = min(seconds, self.round_deadline)
                self._in_flight[client] = (now + waits, seconds if seconds <= self.round_deadline else inf)
            if not self._in_flight:
                break
            client = min(self._in_flight, key=lambda each: self._in_flight[each][0])
            now, took[client] = self._in_flight.pop(client)
            versions[client] = buffer.in_flight[client]
            if took[client] == inf:
                failures[client] = _LATE
            elif buffer.is_too_stale(client):
                num_stale += 1
                most = f"must be at most {buffer.mode.max_staleness} (max_staleness)"
                failures[client] = f"staleness {buffer.staleness(client)}: {most}"
            buffer.end(client, client not in failures)
        waited = now - self.seconds if now < inf else inf
        chosen = self._logic.gather(opened, num_stale)
        clients = chosen.selection.clients
        measured = np.array([took[client] for client in clients.tolist()])
        measured[np.isinf(measured)] = np.nan
        positions = np.array([i for i, client in enumerate(clients.tolist()) if client not in failures], int)
        parts = self._trained_from(
            np.array([versions[client] for client in clients[positions].tolist()]), clients[positions]
        )
        kept = buffer.kept_versions(number + 1)
        models = self._models
        self._models = {version: model for version, model in models.items() if version in kept}
        if not positions.size:
            replies = [Reply(failure=failures[client]) for client in clients.tolist()]
            return chosen, replies, waited, measured
        joined = JoinedUpdates(
            [rows for _, rows, _ in parts],
            [trained.updates for _, _, trained in parts],
            [models[version] for version, _, _ in parts],
            self.arrays,
        )

        def spread(values: Callable[[Any], Any]) -> Any:
            each = np.empty(positions.size)
            for _, rows, trained in parts:
                each[rows] = values(trained)
            return each

        held = self.data.offsets[clients[positions] + 1] - self.data.offsets[clients[positions]]
        return (
            chosen,
            TrainedClients(
                positions,
                joined,
                spread(lambda trained: trained.losses),
                self._plan(number).num_steps(held),
                spread(lambda trained: trained.gradient_variances),
                {
                    int(i): failures[int(clients[i])]
                    for i in range(clients.size)
                    if int(clients[i]) in failures
                },
            ),
            waited,
            measured,
        )

    def _trained_from(self, versions: Ints, clients: Ints) -> list[tuple[int, Ints, Any]]:
        """Train each of the clients (n,) from the model of the round in which it was asked.

        ``versions`` (n,) holds these rounds. Return for each of them: the round, the positions of its
        clients, and their training.
        """
        parts = []
        for version in np.unique(versions).tolist():
            rows = np.flatnonzero(versions == version)
            trained = self.kernel.train(self._models[version], self.data, clients[rows], self._plan(version))
            parts.append((version, rows, trained))
        return parts


def _group_numbers(
    kind: type[Selector], settings: Mapping[str, Any], labels: Sequence[str | int | None]
) -> Ints:
    """Return (M,) the numbers of the clients' groups, as `SelectionStrategy` numbers them."""
    own = {name: value for name, value in settings.items() if name not in kind.per_client}
    groups = Groups.of(Overrides(), kind.settings_type.of(own))
    for label in dict.fromkeys(labels):
        if refusal := groups.refusal("", label):
            raise ValueError(f"groups: client {labels.index(label)} cannot take part: {refusal}")
    return numbered(groups.names, labels)
