"""Goals of speed and memory, and whether the results reach them: a table that is made from the data files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.experiments.report import markdown
from benchmarks.results.files import Measured, Result
from benchmarks.results.tables import PROGRAMS

STOCK = "Flower's FedAvg"
DEVICES = "cohort, each client by itself"  # the programs of `benchmarks.rounds`
NEEDED = {"ServerApp": 3, "SuperLink": 0, "SuperNode": 0, "ClientApp": 1}
"""Program -> how many models its memory must hold at least.

The ServerApp holds the model, the sum and a reply; the ClientApp holds the trained model.
"""
NOT_OURS = ("availability", "choose: selection", "nodes (Flower's part)")
"""Parts of a round that a goal leaves out, since simulated clients, a paper's algorithm or Flower cause
them."""


class Goal(NamedTuple):
    """A goal."""

    what: str  # what is measured
    most: float  # the largest value that reaches the goal
    name: str  # the data file with the value
    value: Callable[[Sequence[Any]], float]  # output in the data file -> the value


def _cell(*path: str, **record: Any) -> Callable[[Sequence[Any]], float]:
    """Return a function that reads a number from an output.

    It takes the first record that has the values ``record``, and in this record follows the keys ``path``.
    """

    def value(output: Sequence[Any]) -> float:
        found = next(each for each in output if all(each[key] == wanted for key, wanted in record.items()))
        for key in path:
            found = found[key]
        return float(found)

    return value


def _ratio(
    one: Callable[[Sequence[Any]], float], other: Callable[[Sequence[Any]], float]
) -> Callable[[Sequence[Any]], float]:
    return lambda output: one(output) / other(output)


def _messages(app: str, most: float) -> Goal:
    what = f"CPU seconds of a message beyond the app's own, {app} app"
    return Goal(what, most, "messages", _cell(app, "cohort_cpu_s"))


def _rounds(what: str, most: float, cell: str, nodes: int, programs: str = "cohort") -> Goal:
    return Goal(f"no-op round, {what}, s", most, "rounds", _cell(cell, programs=programs, nodes=nodes))


def _devices(what: str, most: float, cell: str) -> Goal:
    return Goal(f"1,000 devices online, 50 a round, 1 MB: {what}", most, "devices", _cell(cell))


def _models(megabytes: float) -> Iterator[Goal]:
    for program, needed in NEEDED.items():
        what = f"{megabytes} MB to 5 clients: memory growth of a {program}, in models (at least {needed})"
        cell = _cell("copies", PROGRAMS[program], megabytes=megabytes, programs="cohort")
        yield Goal(what, needed + 2, "models", cell)


def _over_products(workload: str) -> Goal:
    what = f"{workload}: CPU of an update / of its matrix products alone"
    ours, least = (_cell(workload, engine, "cpu_ms") for engine in ("batched", "products"))
    return Goal(what, 1.25, "throughput", _ratio(ours, least))


def _population(path: str) -> Goal:
    def of_this_project(clients: int) -> Callable[[Sequence[Any]], float]:
        parts = (_cell("milliseconds", part, path=path, clients=clients) for part in ("round", *NOT_OURS))
        whole, *others = parts
        return lambda output: whole(output) - sum(_or_zero(other, output) for other in others)

    what = f"CPU of a round among 10^6 clients / among 10^5, {path}, without {', '.join(NOT_OURS)}"
    return Goal(what, 1, "population", _ratio(of_this_project(10**6), of_this_project(10**5)))


def _or_zero(cell: Callable[[Sequence[Any]], float], output: Sequence[Any]) -> float:
    try:
        return cell(output)
    except KeyError:
        return 0.0


GOALS = (
    _messages("numpy", 0.06),
    _messages("torch", 0.075),
    _rounds("4 nodes: train", 0.12, "train_s", 4),
    _rounds("4 nodes: poll, then train", 0.22, "poll_s", 4),
    _rounds("16 nodes, 4 a round, each by itself: poll all, then train", 0.5, "poll_s", 16, DEVICES),
    _devices("until all are online, s", 5, "online_s"),
    _devices("the first round, s", 10, "first_round_s"),
    _devices("a round, s", 2, "round_s"),
    _devices("CPU seconds of the SuperLink in a round", 2.5, "superlink_cpu_s_per_round"),
    _devices("memory of the SuperLink, MB", 1500, "superlink_mb"),
    _devices("lost messages", 0, "lost"),
    *_models(100),
    *_models(500),
    Goal(
        "aggregation of 100 replies of 10M parameters: CPU / FedAvg's",
        1,
        "aggregation",
        _cell("ratio", name="uniform"),
    ),
    Goal(
        "memory of this aggregation / FedAvg's",
        1,
        "aggregation",
        _ratio(_cell("megabytes", name="uniform"), _cell("megabytes", name=STOCK)),
    ),
    Goal("W1: CPU ms of a client's update", 0.025, "throughput", _cell("W1", "batched", "cpu_ms")),
    _over_products("W2"),
    _over_products("W3"),
    _population("simulator"),
    _population("grid"),
)


def goals_table(results: Mapping[str, Result]) -> list[str]:
    """Return the lines of a Markdown table of the goals: what, goal, measured, reached and data file."""
    lines = [["", "goal, at most", "measured", "reached", "data file"]]
    for goal in GOALS:
        value = _value(goal, results.get(goal.name))
        shown, reached = "not recorded", ""
        if value is not None:
            shown = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
            reached = "yes" if value <= goal.most else "no"
        lines.append([goal.what, f"{goal.most:g}", shown, reached, f"`{goal.name}`"])
    return markdown(lines, "lrrll")


def _value(goal: Goal, result: Result | None) -> float | None:
    """Return the value of a goal; None if its data file is missing or has no such cell."""
    if not isinstance(result, Measured):
        return None
    try:
        return goal.value(result.output)
    except (KeyError, StopIteration):
        return None
