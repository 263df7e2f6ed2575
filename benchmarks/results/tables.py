"""The table of a benchmark, made from the JSON that it printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.advice.measure import LOGS, Case, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.results.files import Measured


def output_table(result: Measured) -> list[str]:
    """Return the output of a benchmark as Markdown: its own table (`OWN`), else a row for each record.

    Records are the lines of JSON, or the members of the only line. A value that is itself a mapping gets a
    column for each of its keys.
    """
    if result.name in OWN:
        return OWN[result.name](result.output)
    records = _records(result.output)
    columns = list(dict.fromkeys(key for record in records for key in record))
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for record in records:
        lines.append("| " + " | ".join(_shown(record.get(column)) for column in columns) + " |")
    return lines


def _advice(output: Sequence[Any]) -> list[str]:
    cases = [Case(**each) for each in output]
    lines = [
        "[`cohort advise`](../advice.md) on the streams of norms of `forecast-streams`, where the norms",
        "of all clients are known. A cell has the share of the 95 % intervals that hold their truth, in",
        "brackets ± the median of log(high / low) / 2, and the median error of the replay, |log(replayed",
        "/ own)|, all in percent. The truth of an interval is the variance with the replayed",
        "probabilities, relative to uniform sampling; the truth of the advice is the variance of each",
        "selector that draws for itself. Advice is right if the advised selector's variance is at most 5",
        "% above the smallest.",
    ]
    for log in LOGS:
        lines += ["", f"The log was drawn by `{log}`:", "", *table(cases, log).splitlines()]
    return lines


NOTES = {
    "rounds": ("Seconds of a round without training, with gRPC, TLS, node authentication and database."),
    "throughput": (
        "`updates per s`: client updates a second; `cpu ms`: CPU time of an update; `start s`: until "
        "the first round; `peak mb`: of the process. `benchmarks/throughput/workloads.py` describes "
        "W1 to W4."
    ),
    "aggregation": (
        "CPU seconds of the aggregation of a round on one thread, and memory above that of the replies."
    ),
    "selection": (
        "CPU milliseconds of select + update among M clients, the median and the slowest, and the "
        "peak MB of the process. `without`: without replacement; `asleep`: 3,000 clients are "
        "unavailable; `left`: 2,000 have left."
    ),
    "population": ("CPU milliseconds of each part of a round, without the parts that it calls."),
    "devices": ("[How many devices a server can have](../scale.md) explains the options."),
    "models": (
        "A model of float32 to each node and back; memory is the growth of a process in sizes of the model."
    ),
    "over-selection": (
        "100 clients whose speed depends on their data, 10 a round. `spread`: the standard deviation "
        "of the logarithm of their reply times; `factor`: how many times 10 are selected; `way`: "
        "whether weights are multiplied by S/S' (equal), or divided by estimated response rates "
        "(rates), normalised or not; `time`: of a round, over that with factor 1; `bias` and `rmse` "
        "of the aggregate are relative to its norm, with standard errors over the seeds."
    ),
    "time-to-accuracy": (
        "Ten client processes over gRPC, which sleep before they train, and the simulation of the same "
        "federation: seconds to 90 % of the best accuracy, and of a round, with each seed."
    ),
}
"""What the columns mean."""

OWN: dict[str, Callable[[Sequence[Any]], list[str]]] = {"advice": _advice}


def _records(output: Sequence[Any]) -> list[dict[str, Any]]:
    values: list[Any] = list(output)
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    elif len(values) == 1:
        values = list(_named(values[0]))
    return [_flat(each) for each in values]


def _named(record: Mapping[str, Any], name: str = "") -> Iterator[dict[str, Any]]:
    """Yield the records inside a record of records, each with its names; else the record itself."""
    if record and all(isinstance(each, dict) for each in record.values()):
        for key, value in record.items():
            yield from _named(value, f"{name}, {key}" if name else key)
    else:
        yield {"": name, **record} if name else dict(record)


def _flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{before}{key}".replace("_", " ")
        found |= _flat(value, f"{name}, ") if isinstance(value, dict) else {name: value}
    return found


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return str(value)
