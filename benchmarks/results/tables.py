"""The table of a benchmark, made from the JSON that the benchmark gives: on a page, and in the terminal."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from benchmarks.experiments.report import markdown
from benchmarks.results import front_ends
from deploy.runs.seed_statistics import Interval, interval

PROGRAMS = {
    "ServerApp": "flwr-serverapp",
    "SuperLink": "flower-superlin",
    "SuperNode": "flower-supernod",
    "ClientApp": "flwr-clientapp",
}
"""Program -> its name among the processes of Linux, which keeps 15 characters."""


def output_table(name: str, output: Sequence[Any]) -> list[str]:
    """Return the output of a benchmark as Markdown: by its function in `OWN`, else a row for each record.

    Records are the lines of JSON, or the members of the only line. A value that is itself a mapping gets a
    column for each of its keys.
    """
    return OWN[name](output) if name in OWN else _rows(_records(output))


def _rows(records: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(key for record in records for key in record))
    return markdown([columns, *([_shown(record.get(column)) for column in columns] for record in records)])


def _advice(output: Sequence[Any]) -> list[str]:
    from benchmarks.advice.measure import LOGS, Case, table

    cases = [Case(**each) for each in output]
    return [line for log in LOGS for line in (f"The log was drawn by `{log}`:", "", *table(cases, log), "")][
        :-1
    ]


def _time_to_accuracy(output: Sequence[Any]) -> list[str]:
    (methods,) = output
    if any("real_s" not in each for each in methods.values()):  # a simulation alone, by setting and method
        return _rows(_records(output))
    ways = {
        way: {
            name: fmean(math.inf if value is None else value for value in each[f"{way}_s"])
            for name, each in methods.items()
        }
        for way in ("real", "simulated")
    }
    lines = _rows(_records(output))
    for way, seconds in ways.items():
        order = [f"`{name}` {seconds[name]:.1f}" for name in sorted(seconds, key=seconds.__getitem__)]
        lines += ["", f"Means, {way}: " + ", ".join(order).replace("inf", "not with every seed") + "."]
    rows = [["seconds of the first method / of the second", "real", "simulated", ""]]
    same = []  # for each pair that differs in the simulation: whether the real order is the same
    for one, other in combinations(methods, 2):
        real, simulated = (
            _ratio(methods[one][f"{way}_s"], methods[other][f"{way}_s"]) for way in ("real", "simulated")
        )
        verdict = "not apart in the simulation"
        if simulated.excludes_zero:
            same.append((real.mean > 0) == (simulated.mean > 0) and math.isfinite(real.mean))
            verdict = "same order" if same[-1] else "other order"
        rows.append([f"`{one}`, `{other}`", _factor(real), _factor(simulated), verdict])
    return [
        *[*lines, "", *markdown(rows, "lrrl"), ""],
        f"The simulation shows {len(same)} of {len(rows) - 1} pairs of methods apart: the 95 % interval of "
        f"the ratio excludes 1. Over real processes, {sum(same)} of these have the same order.",
    ]


def _ratio(ones: Sequence[float | None], others: Sequence[float | None]) -> Interval:
    """Return the mean over the seeds of log(seconds of one method / seconds of another), with its interval.

    The mean is NaN if a method has no seconds with one of the seeds.
    """
    pairs = [(one or math.nan, other or math.nan) for one, other in zip(ones, others, strict=True)]
    return interval([math.log(one / other) for one, other in pairs])


def _factor(ratio: Interval) -> str:
    if not math.isfinite(ratio.mean):
        return "not with every seed"
    if not math.isfinite(ratio.half):
        return f"{math.exp(ratio.mean):.2f}"
    low, high = (math.exp(ratio.mean + sign * ratio.half) for sign in (-1, 1))
    return f"{math.exp(ratio.mean):.2f} ({low:.2f} to {high:.2f})"


def _half_precision(output: Sequence[Any]) -> list[str]:
    lines = [["task", "seeds", "accuracy, float32", "float16"]]
    lines[0] += ["difference, points", "difference of loss", "bytes"]
    for task in dict.fromkeys(each["task"] for each in output):
        own = [each for each in output if each["task"] == task]
        full, half = (fmean(each["accuracy"][wire] for each in own) for wire in ("float32", "float16"))
        points, losses = (
            interval([each[what]["float16"] - each[what]["float32"] for each in own])
            for what in ("accuracy", "loss")
        )
        share = fmean(each["megabytes"]["float16"] / each["megabytes"]["float32"] for each in own)
        cells = [f"`{task}`", str(len(own)), f"{full:.2f}", f"{half:.2f}"]
        cells += [points.shown("+.2f"), losses.shown("+.5f"), f"{100 * share:.0f} %"]
        lines.append([cell.replace("± +", "± ") for cell in cells])
    return markdown(lines, "lrrrrrr")


def _models(output: Sequence[Any]) -> list[str]:
    lines = [["model", "programs", "seconds a round", "of the loopback's time", "CPU seconds", *PROGRAMS]]
    for each in output:
        head = [f"{each['megabytes']:g} MB", each["programs"]]
        if "error" in each:
            lines.append([*head, each["error"], *[""] * (2 + len(PROGRAMS))])
            continue
        times = (each["seconds"], each["seconds"] / each["loopback"], each["cpu"])
        copies = [each["copies"].get(name) for name in PROGRAMS.values()]
        lines.append(
            [*head, *(f"{time:.1f}" for time in times), *("" if n is None else f"{n:.1f}" for n in copies)]
        )
    return markdown(lines, "llrrrrrrr")


def _population(output: Sequence[Any]) -> list[str]:
    parts = list(dict.fromkeys(part for each in output for part in each["milliseconds"]))
    parts.sort(key=("the rest", "round").__contains__)  # these two come last
    lines = [["", *(f"{each['path']}, {each['selector']}, M = {each['clients']:,}" for each in output)]]
    for part in parts:
        cells = (each["milliseconds"].get(part) for each in output)
        lines.append([part, *("" if ms is None else f"{ms:,.1f}" for ms in cells)])
    for name, title in (("start_s", "start, s"), ("megabytes", "peak, MB")):
        lines.append([title, *(f"{each[name]:,.1f}" for each in output)])
    return markdown(lines, "l" + "r" * len(output))


OWN: dict[str, Callable[[Sequence[Any]], list[str]]] = {
    "advice": _advice,
    "time-to-accuracy": _time_to_accuracy,
    "half-precision": _half_precision,
    "models": _models,
    "population": _population,
    "front-ends": front_ends.table,
}


def _records(output: Sequence[Any]) -> list[dict[str, Any]]:
    values: list[Any] = list(output)
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    elif len(values) == 1:
        values = list(_named(values[0]))
    return [_flat(each) for each in values]


def _named(record: Mapping[str, Any], name: str = "") -> Iterator[dict[str, Any]]:
    """Yield each record inside a record of records, with the keys that lead to it; else the record itself."""
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
    return str(value).partition("\n")[0]
