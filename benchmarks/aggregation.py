"""The cost of aggregating a round of replies, with this project's strategy and with Flower's own FedAvg.

The other sides are `SelectionStrategy` with `uniform` and with `adaptive-osmd`, which also check every update
and compute its norm. All sides get the same messages with serialised float32 arrays, and take turns on one
thread. The work between the last reply and the new model is measured, ``aggregate_train``. The peak memory of
each side is measured in a process of its own, without the memory of the replies. With fewer payloads than
replies, several replies share the bytes of one model, which saves memory.
"""

import logging
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from benchmarks import fresh
from simulation.grid import InProcessGrid
from strategies import Polling, SelectionStrategy

LAYOUTS = ("layers", "one")


class Side(NamedTuple):
    """One side of the comparison."""

    ask: Callable[[int], Sequence[Message]]  # round -> the TRAIN messages to all clients; not measured
    # (round, replies) -> (the new model, metrics); measured
    aggregate: Callable[[int, list[Message]], tuple[ArrayRecord | None, MetricRecord | None]]


FLOWER = "Flower's FedAvg"
DIFFERENCE = 0.01  # standard deviation of an update's numbers; that of the global model's numbers is 1


class Row(NamedTuple):
    """The cost of one side."""

    name: str
    seconds: float  # CPU seconds to aggregate a round, median over the repeats
    fastest: float  # the least CPU seconds of a repeat
    slowest: float  # the most CPU seconds of a repeat
    ratio: float  # `seconds` divided by FedAvg's
    megabytes: float  # growth of the resident memory up to its peak
    models: float  # `megabytes` divided by the size of the model


def shapes(layout: str, parameters: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's arrays, by name: one array, or the layout "layers".

    This has four stages of three square layers; each is about four times as large as the one before.
    """
    if layout == "one":
        return {"weights": (parameters,)}
    stages: dict[str, tuple[int, ...]] = {}
    for stage, share in enumerate((0.01, 0.05, 0.19, 0.75)):
        for layer in range(3):
            width = max(1, int((parameters * share / 3) ** 0.5))
            stages[f"stage{stage}.layer{layer}.weight"] = (width, width)
            stages[f"stage{stage}.layer{layer}.bias"] = (width,)
    return stages


def models(layout: str, parameters: int, count: int) -> tuple[ArrayRecord, list[ArrayRecord]]:
    """Return the global model w_t, and `count` models that clients send back."""
    rng = np.random.default_rng(0)
    forms = shapes(layout, parameters)
    sent = {name: rng.standard_normal(form, np.float32) for name, form in forms.items()}

    def trained() -> ArrayRecord:
        record = ArrayRecord()
        for name, array in sent.items():
            record[name] = Array(array + DIFFERENCE * rng.standard_normal(array.shape, np.float32))
        return record

    return ArrayRecord({name: Array(array) for name, array in sent.items()}), [
        trained() for _ in range(count)
    ]


def flower(replies: int) -> Side:
    """Return the side of Flower's FedAvg, with a TRAIN message for each of `replies` clients."""
    asked = [Message(RecordDict(), node + 1, "train") for node in range(replies)]
    return Side(lambda round: asked, FedAvg(fraction_evaluate=0.0).aggregate_train)


def ours(selector: str, arrays: ArrayRecord, replies: int) -> Side:
    """Return the side of this project with a selector, which selects all of `replies` clients."""
    polling = Polling(ask_status=False)
    strategy = SelectionStrategy(selector, clients_per_round=replies, num_rounds=100, polling=polling)
    grid = InProcessGrid(lambda message, _: message, ({} for _ in range(replies)))  # never sends

    def ask(round: int) -> list[Message]:
        messages = list(strategy.configure_train(round, arrays, ConfigRecord(), grid))
        for message in messages:  # a grid gives such ids to the messages that it sends
            message.metadata.__dict__["_message_id"] = f"{round}-{message.metadata.dst_node_id}"
        return messages

    return Side(ask, strategy.aggregate_train)


def answers(asked: Sequence[Message], payloads: Sequence[ArrayRecord]) -> list[Message]:
    """Return a reply to each message in `asked`; node n sends payload n modulo the number of payloads."""
    metrics = MetricRecord({"num-examples": 1, "train-loss": 1.0})
    replies = []
    for message in asked:
        arrays = payloads[message.metadata.dst_node_id % len(payloads)]
        replies.append(Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message))
    return replies


def seconds(side: Side, round: int, payloads: Sequence[ArrayRecord]) -> float:
    """Return the CPU seconds that a side takes to aggregate the replies of a round."""
    replies = answers(side.ask(round), payloads)
    start = time.process_time()
    arrays, _ = side.aggregate(round, replies)
    taken = time.process_time() - start
    assert arrays is not None
    return taken


def peak(side: Side, payloads: Sequence[ArrayRecord]) -> float:
    """Return how many MB a forked process grows, up to its peak, while a side aggregates a round."""

    def measure(queue: Any) -> None:
        replies = answers(side.ask(1), payloads)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        side.aggregate(1, replies)
        queue.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)

    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=measure, args=(queue,))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the fork ended with exit code {process.exitcode}")
    megabytes: float = queue.get()
    return megabytes


def compare(
    replies: int, parameters: int, layout: str, payloads: int, repeats: int, selectors: Sequence[str]
) -> list[Row]:
    """Measure all sides as the module's docstring says, in a process whose linear algebra has one thread."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # `Message` needs these ids
    arrays, sent = models(layout, parameters, payloads)
    size = sum(len(array.data) for array in arrays.values()) / 1024**2
    sides = {FLOWER: lambda: flower(replies)} | {
        name: lambda name=name: ours(name, arrays, replies) for name in selectors
    }
    megabytes = {name: peak(side(), sent) for name, side in sides.items()}
    running = {name: side() for name, side in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round in range(repeats + 1):
        for name, side in running.items():
            times[name].append(seconds(side, round + 1, sent))
    rows = []
    for name in sides:
        kept = times[name][1:]  # the first round allocates memory for the later ones, so it does not count
        median = statistics.median(kept)
        ratio = median / statistics.median(times[FLOWER][1:])
        rows.append(Row(name, median, min(kept), max(kept), ratio, megabytes[name], megabytes[name] / size))
    return rows


def measure(
    replies: int, parameters: int, layout: str, payloads: int, repeats: int, selectors: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the rows of `compare`, measured in a fresh process."""
    rows = fresh.call(compare, replies, parameters, layout, payloads, repeats, selectors)
    return [row._asdict() | {"layout": layout, "payloads": payloads} for row in rows]
