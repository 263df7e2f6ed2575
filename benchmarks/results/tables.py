"""The table of a benchmark, made from the JSON that the benchmark printed."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.advice.measure import LOGS, Case, table
from deploy.runs.seed_statistics import interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.results.files import Measured
    from deploy.runs.seed_statistics import Interval

PROGRAMS = {
    "ServerApp": "flwr-serverapp",
    "SuperLink": "flower-superlin",
    "SuperNode": "flower-supernod",
    "ClientApp": "flwr-clientapp",
}
"""Program -> its name among the processes of Linux, which keeps 15 characters."""


def output_table(result: Measured) -> list[str]:
    """Return the output of a benchmark as Markdown: by its function in `OWN`, else a row for each record.

    Records are the lines of JSON, or the members of the only line. A value that is itself a mapping gets a
    column for each of its keys.
    """
    if result.name in OWN:
        return OWN[result.name](result.output)
    return _rows(_records(result.output))


def _rows(records: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(key for record in records for key in record))
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for record in records:
        lines.append("| " + " | ".join(_shown(record.get(column)) for column in columns) + " |")
    return lines


def _advice(output: Sequence[Any]) -> list[str]:
    cases = [Case(**each) for each in output]
    lines = [
        "[`cohort advise`](../advice.md) on the streams of norms of `forecast-streams`, where the norms",
        "of all clients are known. It gives a 95 % interval [low, high] for each selector's variance,",
        "relative to uniform sampling. A cell reads `covered (± half-width, error)`, in percent. Covered:",
        "how many intervals contain the variance with the replayed probabilities. Half-width: the median",
        "of log(high / low) / 2. Error: the median of |log(a / b)|, where a is the variance with the",
        "replayed probabilities, and b the variance if the selector draws for itself. Advice is right if",
        "the advised selector, drawing for itself, has a variance at most 5 % above the smallest.",
    ]
    for log in LOGS:
        lines += ["", f"The log was drawn by `{log}`:", "", *table(cases, log).splitlines()]
    return lines


def _time_to_accuracy(output: Sequence[Any]) -> list[str]:
    (methods,) = output
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
    lines += ["", "| seconds of the first method / of the second | real | simulated | |", "|---|--:|--:|---|"]
    pairs = list(combinations(methods, 2))
    same = []  # for each pair that differs in the simulation: whether the real order is the same
    for one, other in pairs:
        real, simulated = (
            _ratio(methods[one][f"{way}_s"], methods[other][f"{way}_s"]) for way in ("real", "simulated")
        )
        if simulated.excludes_zero:
            same.append((real.mean > 0) == (simulated.mean > 0) and math.isfinite(real.mean))
            verdict = "same order" if same[-1] else "other order"
        else:
            verdict = "not apart in the simulation"
        cells = (_factor(each) for each in (real, simulated))
        lines.append(f"| `{one}`, `{other}` | {' | '.join(cells)} | {verdict} |")
    return [
        *lines,
        "",
        f"The simulation shows {len(same)} of {len(pairs)} pairs of methods apart: the 95 % interval of the "
        f"ratio excludes 1. Over real processes, {sum(same)} of these have the same order.",
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
    from benchmarks import half_precision  # not at the top, since it imports the apps

    return half_precision.table([half_precision.Row(**each) for each in output])


def _models(output: Sequence[Any]) -> list[str]:
    lines = [
        "| model | programs | seconds a round | of the loopback's time | CPU seconds | "
        + " | ".join(PROGRAMS)
        + " |",
        "|---|---|" + "--:|" * (3 + len(PROGRAMS)),
    ]
    for each in output:
        head = f"| {each['megabytes']:g} MB | {each['programs']} |"
        if "error" in each:
            lines.append(f"{head} {each['error']} |" + " |" * (2 + len(PROGRAMS)))
            continue
        times = (each["seconds"], each["seconds"] / each["loopback"], each["cpu"])
        copies = [each["copies"].get(name) for name in PROGRAMS.values()]
        cells = [*(f"{time:.1f}" for time in times), *("" if n is None else f"{n:.1f}" for n in copies)]
        lines.append(f"{head} {' | '.join(cells)} |")
    return lines


def _population(output: Sequence[Any]) -> list[str]:
    parts = list(dict.fromkeys(part for each in output for part in each["milliseconds"]))
    parts.sort(key=("the rest", "round").__contains__)  # these two come last
    lines = ["| | " + " | ".join(f"{each['path']}, M = {each['clients']:,}" for each in output) + " |"]
    lines.append("|---|" + "--:|" * len(output))
    for part in parts:
        cells = (each["milliseconds"].get(part) for each in output)
        lines.append(f"| {part} | " + " | ".join("" if ms is None else f"{ms:,.1f}" for ms in cells) + " |")
    for name, title in (("start_s", "start, s"), ("megabytes", "peak, MB")):
        lines.append(f"| {title} | " + " | ".join(f"{each[name]:,.1f}" for each in output) + " |")
    return lines


NOTES = {
    "rounds": (
        "Seconds of a round without training (`train s`) or with a poll (`poll s`), with gRPC, TLS, node "
        "authentication and database; then the CPU time and the memory of a client that waits."
    ),
    "messages": (
        "CPU seconds of a message, summed over all processes, with the programs of this project (`cohort`) "
        "and with Flower's (`stock`). `cpu s` leaves out the app's own work; `app cpu s` is this work. "
        "There are an app in NumPy, and one in torch of the shape of Flower's quickstart."
    ),
    "throughput": (
        "`updates per s`: client updates a second; `cpu ms`: CPU time of an update; `start s`: until the "
        "end of the first round; `peak mb`: of all its processes. `benchmarks/throughput/workloads.py` "
        "describes W1 to W4."
    ),
    "networks": (
        "20 of 300 clients a round, 5 steps on mini-batches of 32, as in DELTA's Table 2. The loop is plain "
        "PyTorch and keeps everything on the device; the simulator selects with Adaptive-OSMD and takes the "
        "server step in NumPy. Both compute in float32 without TF32; the simulator trains the same model "
        "each time, bit for bit."
    ),
    "aggregation": (
        "CPU seconds of the aggregation of a round on one thread, and memory above that of the replies."
    ),
    "selection": (
        "CPU milliseconds of select + update among M clients, the median and the slowest, and the peak MB "
        "of the process. `without`: without replacement; `by size`: a start in proportion to data; "
        "`asleep`: 3,000 clients are unavailable; `left`: 2,000 have left (a tenth of the clients, if that "
        "is fewer). `textbook` and `lists` are peers."
    ),
    "population": (
        "CPU milliseconds of each part of a round of `forecast`, without the parts that it calls. K = 100, "
        "and a tenth of all M clients come or go in each round. `nodes` is Flower's list of nodes, which "
        "attendance reads. Selection grows with M since half of the clients are absent: then `forecast` "
        "lists the available ones. A checkpoint holds the state of all clients, and on the Grid the roster."
    ),
    "devices": ("[How many devices a server can have](../scale.md) explains the options."),
    "models": (
        "A model of float32 in ten arrays to each of five nodes and back. `of the loopback's time`: the "
        "seconds of a round, divided by the seconds of the same bytes through the machine's loopback. The "
        "last columns: the most by which the memory of one process of a program has grown, in sizes of the "
        "float32 model. Arithmetic needs three models in the ServerApp (the model, the sum, a reply) and "
        "one in the ClientApp. Every ten seconds, a program logs how far a slow transfer has come: "
        "`Received 120 MB of a message of 41 objects in 20 s`."
    ),
    "half-precision": (
        "Trainings with `wire=float16` and without, with the same seeds, clients, draws and batches: the "
        "test accuracy after the last round in percent, mean differences with Student's 95 % intervals, and "
        "the bytes with float16 in percent of those with float32."
    ),
    "over-selection": (
        "100 clients whose updates depend on their speed, 10 a round. `spread`: the standard deviation of "
        "the logarithm of their typical reply times; `factor`: the number of selected clients, divided by "
        "10; `way`: how weights are corrected for missing replies: multiplied by the number of selected "
        "clients divided by the number of replies (`equal`), or divided by estimated response rates, then "
        "normalised (`rates`) or not (`not normalised`); `time`: of a round, divided by that with factor 1; "
        "`bias` and `rmse` of the aggregate are relative to the norm of its target, with standard errors "
        "over the seeds."
    ),
    "time-to-accuracy": (
        "Twenty client processes over gRPC, which sleep before they train (`real`), and the simulation of "
        "the same federation (`simulated`). `s`: the seconds to 90 % of the best accuracy (empty: never "
        "reached); `round s`: the seconds of a round. A cell lists the seeds."
    ),
}
"""Name of a benchmark -> the note above its table, which explains the columns that need an explanation."""

OWN: dict[str, Callable[[Sequence[Any]], list[str]]] = {
    "advice": _advice,
    "time-to-accuracy": _time_to_accuracy,
    "half-precision": _half_precision,
    "models": _models,
    "population": _population,
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
    return str(value)
