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
