"""Milliseconds of each part of a round, by the number of clients M: which parts grow with M.

K = 100 clients train in a round. In round 1 all clients are available, later about half; from round 3 on, a
tenth of all clients come or go in each round (a Markov chain). The training is almost free, so the table
shows the cost of everything else: in the simulator (``simulator``), a client takes one or two steps on its
only sample of eight features; on the in-process Grid (``grid``), it returns the model with one number
changed. There the row "nodes (Flower's part)" is the time in which the Grid lists the nodes, as Flower's
SuperLink does; a strategy has no other way to learn which nodes are online.

Both paths have the guard, write the history, and save a checkpoint after each round. Each column is measured
in a process of its own, as medians of the CPU times of all rounds but round 1, without the other parts that a
part calls.
"""

import logging
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from benchmarks import fresh
from deploy.flower.app_folder import app_folder
from deploy.flower.config import default_config
from server.recording import KnownClients, Recording
from server.settings import RunSettings
from simulation.availability.base import Availability
from simulation.availability.markov import Markov
from simulation.grid import InProcessGrid
from simulation.kernels import Softmax
from simulation.simulator import Simulator
from strategies import Checkpoints, Polling, RoundRecord, SelectionStrategy
from strategies.checkpoint import Checkpoint, CheckpointFolder
from strategies.flower.attendance import Attendance
from strategies.numerics.arrays import Ints
from strategies.options import Faults
from strategies.rounds.guard.guard import Guard
from strategies.rounds.logic import RoundLogic
from strategies.run.selector_clients import SelectorClients
from strategies.run.training import ClientTraining
from strategies.selectors import selector_type
from tasks.base import Metrics
from tasks.federated_data import FederatedData

K, FEATURES, CLASSES = 100, 8, 2
PATHS = ("simulator", "grid")
MEMORY = 0.8  # with this memory and a rate of 0.5, a client changes its state with probability 0.1
REST = "the rest"


class Column(NamedTuple):
    """The cost of the rounds with one selector, path and number of clients."""

    path: str
    selector: str
    clients: int  # M
    milliseconds: dict[str, float]  # by part, and in total under "round"
    start_s: float  # CPU seconds until the end of round 1
    megabytes: float  # peak resident memory of the process


class Parts:
    """The CPU time that methods take, without the time of other measured methods that they call."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner: list[float] = []  # for each running measured method: the time of its measured callees

    def measure(self, part: str, owner: Any, *methods: str) -> None:
        """Count the time of methods of a class or an object as time of ``part``."""
        for method in methods:
            setattr(owner, method, self._timed(part, getattr(owner, method)))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.process_time() - began
                self.seconds[part] += took - self._inner.pop()
                if self._inner:
                    self._inner[-1] += took

        return timed


def measure(path: str, selector: str, m: int, rounds: int) -> Column:
    """Run round 1, then measure ``rounds`` more rounds. Call this in a process of its own."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    parts = Parts()
    parts.measure("availability", Availability, "available")
    parts.measure("guard", Guard, "judge", "judge_reports", "quarantined", "resting", "count_draws")
    parts.measure("open: who is selectable", RoundLogic, "open")
    parts.measure("choose: selection", RoundLogic, "choose")
    kind = selector_type(selector)
    parts.measure("candidates and learning", kind, "candidates", "update")
    parts.measure("finish: aggregation", RoundLogic, "finish")
    parts.measure("checkpoint: state", RoundLogic, "state_dict")
    parts.measure("checkpoint: file", CheckpointFolder, "save")
    parts.measure("history", Recording, "round")
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        play = (_simulator if path == "simulator" else _grid)(parts, selector, m, rounds + 1, Path(folder))
        times: list[dict[str, float]] = []
        ends: list[float] = [time.process_time()]
        start = 0.0

        def after_round() -> None:
            nonlocal start
            ends.append(time.process_time())
            start = start or ends[-1] - began
            times.append({**parts.seconds, "round": ends[-1] - ends[-2]})
            parts.seconds.clear()

        play(after_round)
    found = {
        part: 1000 * statistics.median(each.get(part, 0.0) for each in times[1:])
        for part in dict.fromkeys(name for each in times[1:] for name in each)
    }
    whole = found.pop("round")
    found[REST] = max(0.0, whole - sum(found.values()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Column(path, selector, m, {**found, "round": whole}, start, peak)


def _recording(selector: str, rounds: int, folder: Path) -> Recording:
    own = {"selector": selector, "num-rounds": rounds, "clients-per-round": K, "num-clients": K}
    config = {**default_config(app_folder()), **own, "output-dir": str(folder)}
    return Recording(RunSettings.from_run_config(config))


class _Changing(Markov):
    """Round 1 has all clients, so that all are registered; each later round has those of a Markov chain."""

    def __init__(self, num_clients: int) -> None:
        super().__init__(num_clients, rates=0.5, memory=MEMORY)

    def _available(self, round: int) -> Ints:
        return np.arange(self.num_clients) if round == 1 else super()._available(round)


def _simulator(
    parts: Parts, selector: str, m: int, rounds: int, folder: Path
) -> Callable[[Callable[[], None]], None]:
    """Return a function that runs the rounds in the simulator, and calls its argument after each."""
    parts.measure("training", Softmax, "train", "losses")
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=m)
    data = FederatedData(rng.random((m, FEATURES), np.float32), labels, np.arange(m + 1))
    simulator = Simulator(
        data,
        Softmax(FEATURES, CLASSES),
        selector,
        clients_per_round=K,
        num_rounds=1000,
        learning_rate=0.01,
        batch_size=1,
        local_steps=1 if "gradient_variance" not in selector_type(selector).polls_for else 2,
        availability=_Changing(m),
        faults=Faults(),
    )
    recording = _recording(selector, rounds, folder)
    checkpoints = CheckpointFolder(folder / "state")
    clients = KnownClients([f"client-{i}" for i in range(m)], simulator.data_sizes, [None] * m)

    def play(after_round: Callable[[], None]) -> None:
        with recording:
            for _ in range(rounds):
                record = simulator.step()
                recording.round(record.round, simulator.arrays, Metrics(0.0, 0.0), record, clients)
                checkpoints.save(Checkpoint(record.round, simulator.state_dict()))
                after_round()

    return play


def _grid(
    parts: Parts, selector: str, m: int, rounds: int, folder: Path
) -> Callable[[Callable[[], None]], None]:
    """Return a function that runs the rounds on the in-process Grid, and calls its argument after each."""
    parts.measure("nodes (Flower's part)", InProcessGrid, "get_nodes", "get_node_ids")
    parts.measure("attendance", Attendance, "available", "wait_for_first")
    parts.measure("roster to selector", SelectorClients, "create", "update")
    parts.measure("messages and training", ClientTraining, "messages", "replies")
    parts.measure("evaluation messages", SelectionStrategy, "configure_evaluate")
    parts.measure("checkpoint: roster", Attendance, "state")
    grid = InProcessGrid(availability=_Changing(m))
    for _ in range(m):
        grid.add_node(handler=_trained)
    recording = _recording(selector, rounds, folder)
    assert recording.checkpoints is not None
    records: list[RoundRecord] = []
    strategy = SelectionStrategy(
        selector,
        clients_per_round=K,
        num_rounds=1000,
        polling=Polling(ask_status=False),
        checkpoints=Checkpoints(recording.checkpoints),
        on_round=records.append,
    )

    def play(after_round: Callable[[], None]) -> None:
        done = 0

        def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
            if records:
                clients = KnownClients(strategy.roster.ids(), strategy.data_sizes, strategy.groups())
                recording.round(round, {}, Metrics(0.0, 0.0), records.pop(), clients)
            return MetricRecord({"accuracy": 0.0})

        parts.measure("history", strategy, "groups")
        save = strategy._parts.saved.save

        def saved(progress: Any, num_rounds: int | None) -> None:
            nonlocal done
            save(progress, num_rounds)
            done += 1
            after_round()

        strategy._parts.saved.save = saved  # type: ignore[method-assign]
        with recording:
            arrays = ArrayRecord({"w": Array(np.zeros((FEATURES, CLASSES), np.float32))})
            strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)

    return play


def _trained(message: Message) -> Message:
    """Return the reply of a client: the model that it received, with one number changed."""
    values = message.content.array_records["arrays"]["w"].numpy().copy()
    values[message.metadata.dst_node_id % FEATURES] += 0.01
    metrics = MetricRecord({"num-examples": 1, "train-loss": 1.0})
    content = RecordDict({"arrays": ArrayRecord({"w": Array(values)}), "metrics": metrics})
    return Message(content, reply_to=message)


def compare(
    sizes: Sequence[int], names: Sequence[str], paths: Sequence[str], rounds: int
) -> Iterator[dict[str, Any]]:
    """Yield each column: of some of `PATHS`, of selectors, and of numbers of clients, each >= 2 K = 200."""
    for path in paths:
        for name in names:
            for m in sizes:
                yield fresh.call(measure, path, name, m, rounds)._asdict()
