"""Goals of speed and memory, and whether the results reach them: a table that is made from the data files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.experiments.report import markdown
from benchmarks.results.files import Measured, Result
from benchmarks.results.tables import PROGRAMS

UNIFORM = {"name": "uniform"}  # the record of an aggregation
DEVICES = "cohort, each client by itself"  # the programs of `benchmarks.rounds`
NEEDED = {"ServerApp": 3, "SuperLink": 0, "SuperNode": 0, "ClientApp": 1}
"""Program -> how many models its memory must hold at least.

The ServerApp holds the model, the sum and a reply; the ClientApp holds the trained model.
"""
NOT_OURS = ("availability", "choose: selection", "nodes (Flower's part)")
"""Parts of a round that a goal leaves out, since simulated clients, a paper's algorithm or Flower cause
them."""


class Goal(NamedTuple):
    """A goal: a number of an output, or the ratio of two numbers."""

    what: str  # what is measured
    most: float  # the largest value that reaches the goal
    name: str  # the data file with the value
    path: tuple[str, ...]  # the keys that lead to the number, in the first record with the values `record`
    record: Mapping[str, Any] = {}
    over: Goal | None = None  # whose number divides the first number
    without: tuple[str, ...] = ()  # the last keys of the numbers that are subtracted, where there are any

    def value(self, output: Sequence[Any]) -> float:
        """Return the number. KeyError or StopIteration: the output does not have it."""
        found = next(each for each in output if all(each[key] == it for key, it in self.record.items()))
        for key in self.path[:-1]:
            found = found[key]
        value = float(found[self.path[-1]]) - sum(float(found.get(key, 0.0)) for key in self.without)
        return value / self.over.value(output) if self.over else value


def _rounds(what: str, most: float, cell: str, nodes: int, programs: str = "cohort") -> Goal:
    return Goal(f"no-op round, {what}, s", most, "rounds", (cell,), {"programs": programs, "nodes": nodes})


def _devices(what: str, most: float, cell: str) -> Goal:
    return Goal(f"1,000 devices online, 50 a round, 1 MB: {what}", most, "devices", (cell,))


def _models(megabytes: float) -> Iterator[Goal]:
    for program, needed in NEEDED.items():
        what = f"{megabytes} MB to 5 clients: memory growth of a {program}, in models (at least {needed})"
        record = {"megabytes": megabytes, "programs": "cohort"}
        yield Goal(what, needed + 2, "models", ("copies", PROGRAMS[program]), record)


def _over_products(workload: str) -> Goal:
    what = f"{workload}: CPU of an update / of its matrix products alone"
    least = Goal("", 0, "throughput", (workload, "products", "cpu_ms"))
    return Goal(what, 1.25, "throughput", (workload, "batched", "cpu_ms"), over=least)


def _population(path: str) -> Goal:
    what = f"CPU of a round among 10^6 clients / among 10^5, {path}, without {', '.join(NOT_OURS)}"
    few = Goal(
        "", 0, "population", ("milliseconds", "round"), {"path": path, "clients": 10**5}, without=NOT_OURS
    )
    return few._replace(what=what, most=2, record={"path": path, "clients": 10**6}, over=few)


GOALS = (
    *(
        Goal(
            f"CPU seconds of a message beyond the app's own, {app} app",
            most,
            "messages",
            (app, "cohort_cpu_s"),
        )
        for app, most in (("numpy", 0.06), ("torch", 0.075))
    ),
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
        "aggregation of 100 replies of 10M parameters: CPU / FedAvg's", 1, "aggregation", ("ratio",), UNIFORM
    ),
    Goal(
        "memory of this aggregation / FedAvg's",
        1,
        "aggregation",
        ("megabytes",),
        UNIFORM,
        Goal("", 0, "aggregation", ("megabytes",), {"name": "Flower's FedAvg"}),
    ),
    Goal("W1: CPU ms of a client's update", 0.025, "throughput", ("W1", "batched", "cpu_ms")),
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
