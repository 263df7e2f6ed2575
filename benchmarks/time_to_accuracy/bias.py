"""The bias of the aggregate, measured in many rounds without training.

Each client's update is fixed: the one that it would send from the initial model. So the target of round t is
known, Ā_t = Σ λ_m u_m over the available clients, and the error of the aggregate is e_t = Σ c_m u_m - Ā_t.
The bias relative to the error of one round is, with E as the mean over the rounds::

    b = ‖E e‖ / s,    s² = E‖e‖²

b is 1 if all error is bias. The squared norm of a mean of N errors overestimates ‖E e‖² by about s²/N. So ‖E
e‖² is estimated as the inner product of the mean errors of the two halves of the rounds, which have
independent draws. b gets its sign, so an unbiased method has values of b around 0, of both signs.

The sum of the weights varies between buffered rounds, and a staleness factor makes it smaller, which changes
only the length of the server's step. So the weights are first divided by the mean of this sum.

The selector learns from each of the first `LEARNING_ROUNDS` rounds, which are not measured, and from every
n-th round later. A large n makes rounds fast, and leaves an unbiased selector unbiased.
"""

import heapq
import math
from collections.abc import Iterator
from itertools import count

import numpy as np

from benchmarks.time_to_accuracy.federation import JITTER, Federation, Method
from simulation.availability import Availability
from simulation.response_times import arrivals
from strategies.numerics.arrays import Bools, Floats, Ints
from strategies.numerics.streams import generator
from strategies.options import Faults
from strategies.rounds.logic import RoundLogic
from strategies.rounds.response_rates import ResponseRates
from strategies.selectors import Feedback, Selection, Selector, create

LEARNING_ROUNDS = 300
Step = tuple[Ints, Selection, Bools, Floats, Floats]
"""(available clients, selection, whether each client replied, weights, the seconds until each reply)."""


def bias(federation: Federation, method: Method, rounds: int, every: int = 1) -> float:
    """Return b of a method in a federation, measured in a number of rounds; see the module's docstring.

    The standard error of b² of an unbiased method is about 2/rounds, divided by the root of the number of
    directions in which the updates vary.
    """
    setting, updates = federation.setting, federation.updates
    selector = create(
        method.selector,
        setting.clients,
        client_sizes=federation.sizes,
        clients_per_round=setting.per_round,
        num_rounds=rounds + LEARNING_ROUNDS,
        seed=federation.seed,
        **method.settings,
    )
    norms, losses = np.linalg.norm(updates, axis=1), federation.difficulty
    given, due = np.zeros((2, rounds, setting.clients))
    steps = (_buffered if method.buffered else _waiting)(federation, method, selector)
    for number in range(1, rounds + LEARNING_ROUNDS + 1):
        here, selection, replied, weights, seconds = next(steps)
        if number <= LEARNING_ROUNDS or number % every == 0:
            learned = (norms[selection.clients], losses[selection.clients], seconds)
            norm, loss, took = (np.where(replied, values, math.nan) for values in learned)
            unknown = np.full(norm.size, math.nan)
            selector.update(
                number, selection, Feedback(norm, loss, unknown, unknown, responded=replied, seconds=took)
            )
        if number > LEARNING_ROUNDS:
            given[number - LEARNING_ROUNDS - 1, selection.clients] = weights
            due[number - LEARNING_ROUNDS - 1, here] = federation.sizes[here] / federation.sizes[here].sum()
    errors = given / given.sum(axis=1).mean() - due
    products = updates @ updates.T
    first, second = errors[: rounds // 2].mean(axis=0), errors[rounds // 2 :].mean(axis=0)
    square = float(first @ products @ second) / float(np.sum(errors.T @ errors / rounds * products))
    return math.copysign(math.sqrt(abs(square)), square)


def _waiting(federation: Federation, method: Method, selector: Selector) -> Iterator[Step]:
    """Play rounds that wait for their clients, or for the first K replies of an over-selected round."""
    k = federation.setting.per_round
    budget = None if method.over_selection == 1 else math.ceil(method.over_selection * k)
    rates = ResponseRates(federation.setting.clients) if method.correction == "rates" else None
    draws = generator(federation.seed, 0, "durations")
    for number, here in _rounds(federation):
        selection = selector.select(number, available=here, budget=budget)
        seconds = _seconds(federation, selection.clients, draws)
        replied, _ = arrivals(seconds, enough=None if budget is None else k)
        weights = selector.finalize(selection, replied)
        if rates is not None:
            weights = rates.correct(weights, selection.clients, replied)
            rates.observe(selection.clients, replied)
        yield here, selection, replied, weights, seconds


def _buffered(federation: Federation, method: Method, selector: Selector) -> Iterator[Step]:
    """Play buffered rounds, with the `RoundLogic` and the buffer of a run."""
    mode = method.mode(federation.setting.per_round)
    assert mode is not None
    logic = RoundLogic(selector, Faults(guard=False, silence=False), mode=mode)
    buffer = logic.buffer
    assert buffer is not None
    draws = generator(federation.seed, 0, "durations")
    now = 0.0
    flying: list[tuple[float, int, float]] = []  # (time of the reply, client, seconds that it took)
    for number, here in _rounds(federation):
        buffer.begin(number)
        opened = logic.open(number, here)
        took: dict[int, float] = {}
        while not buffer.is_full:
            asked = logic.fill(opened)
            for client, seconds in zip(asked, _seconds(federation, np.array(asked, int), draws), strict=True):
                heapq.heappush(flying, (now + seconds, client, seconds))
            now, client, seconds = heapq.heappop(flying)
            took[client] = seconds
            buffer.end(client, usable=not buffer.is_too_stale(client))
        chosen = logic.gather(opened)
        assert chosen.staleness is not None
        used: Bools = np.asarray(chosen.staleness <= mode.max_staleness)
        weights: Floats = selector.finalize(chosen.selection, used) * buffer.factors(chosen.staleness)
        each = np.array([took[client] for client in chosen.selection.clients.tolist()])
        yield here, chosen.selection, used, weights, each


def _rounds(federation: Federation) -> Iterator[tuple[int, Ints]]:
    """Yield (round, clients that are available in this round) without end."""
    process: Availability | None = federation.availability()
    everyone: Ints = np.arange(federation.setting.clients)
    for number in count(1):
        here = None if process is None else process.available(number)
        yield number, everyone if here is None else here


def _seconds(federation: Federation, clients: Ints, draws: np.random.Generator) -> Floats:
    seconds: Floats = federation.times.typical[clients] * np.exp(JITTER * draws.standard_normal(clients.size))
    return seconds
