"""The tables of `cohort bench front-ends` and `waiting`, and what more devices would need by them."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from statistics import fmean, median
from typing import Any, NamedTuple

from benchmarks.devices.front_ends import POSTGRES, SQLITE
from benchmarks.experiments.report import markdown
from benchmarks.results.files import Measured, Result

DEVICES = (10_000, 100_000)  # for which `needs` computes
SHARE = 0.01  # of the devices train in a round
ROUND = 60.0  # s between the beginnings of two rounds
BUSY = 0.5  # of the time at most, a SuperLink is to compute
# Heads and values of the columns of `table`
_COLUMNS: tuple[tuple[str, Callable[[Mapping[str, Any]], float]], ...] = (
    ("first round, s", lambda cell: cell["first_round_s"]),
    ("round, s", lambda cell: cell["round_s"]),
    ("SuperLinks, CPU s", lambda cell: sum(cell["superlinks_cpu_s"])),
    ("the busiest", lambda cell: max(cell["superlinks_cpu_s"])),
    ("PostgreSQL, CPU s", lambda cell: cell["postgres_cpu_s"]),
    ("ServerApp, CPU s", lambda cell: cell["apps_cpu_s"]),
    ("devices, CPU s", lambda cell: cell["load_cpu_s"]),
    ("statements", lambda cell: cell["statements"]),
    ("lock held, %", lambda cell: 100 * cell["lock_share"]),
    ("loopback, MB", lambda cell: cell["loopback_mb"]),
    ("files, MB", lambda cell: cell["written_mb"]),
    ("MB each", lambda cell: max(cell["superlinks_mb"])),
    ("lost", lambda cell: cell["lost"] + cell["refused"]),
)


def table(output: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of `cohort bench front-ends`: medians over the turns, then the pairs with SQLite."""
    cells: dict[tuple[str, int, int], list[Mapping[str, Any]]] = {}
    for each in output:
        cells.setdefault((each["database"], each["front_ends"], each["per_round"]), []).append(each)
    lines = [["database", "front ends", "a round", *(head for head, _ in _COLUMNS)]]
    for (database, fronts, number), turns in cells.items():
        values = (f"{median(map(value, turns)):.3g}" for _, value in _COLUMNS)
        lines.append([database, str(fronts), str(number), *values])
    found = markdown(lines, "l" + "r" * (len(lines[0]) - 1))
    for number in dict.fromkeys(each["per_round"] for each in output):
        one, other = (cells.get((database, 1, number), []) for database in (POSTGRES, SQLITE))
        pairs = [(a, b) for a in one for b in other if a["turn"] == b["turn"]]
        if pairs:
            found += [
                "",
                f"PostgreSQL / SQLite, one SuperLink, {number} a round, in pairs: {_ratios(pairs)}.",
            ]
    return found


def _ratios(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    found = []
    for name, value in (("CPU of the server", _server_cpu), ("seconds of a round", _seconds)):
        ratios = [value(one) / value(other) for one, other in pairs]
        found.append(f"{name} {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return ", ".join(found)


def _server_cpu(cell: Mapping[str, Any]) -> float:
    return float(sum(cell["superlinks_cpu_s"]) + cell["postgres_cpu_s"] + cell["apps_cpu_s"])


def _seconds(cell: Mapping[str, Any]) -> float:
    return float(cell["round_s"])


def _for_the_app(cell: Mapping[str, Any]) -> float:
    """Return the CPU seconds by which the last SuperLink, which serves the ServerApp, exceeds the others."""
    *others, last = cell["superlinks_cpu_s"]
    return float(last - fmean(others)) if others else 0.0


class _Line(NamedTuple):
    """A number of a round, as a straight line through two measured numbers of devices that train."""

    start: float
    slope: float

    def at(self, devices: float) -> float:
        return max(0.0, self.start + self.slope * devices)


def needs(results: Mapping[str, Result]) -> list[str]:
    """Return what `DEVICES` need, part by part, and which part is at its limit first."""
    found = [results.get(name) for name in ("front-ends", "waiting")]
    if not all(isinstance(each, Measured) for each in found):
        return ["No results yet. `cohort bench results --measure front-ends` and `waiting` make them."]
    rounds, waiting = (list(each.output) for each in found if isinstance(each, Measured))
    most = max(each["front_ends"] for each in rounds)
    cells = [each for each in rounds if (each["database"], each["front_ends"]) == (POSTGRES, most)]
    idle = max(waiting, key=lambda each: each["front_ends"])
    rates = {  # of a device that waits: CPU seconds of a second
        name: cpu / 1000 / idle["devices"]
        for name, cpu in (
            ("SuperLinks", sum(idle["superlinks_cpu_ms"])),
            ("PostgreSQL", idle["postgres_cpu_ms"]),
        )
    }
    superlinks = _line(cells, lambda cell: sum(cell["superlinks_cpu_s"]))
    single = {  # of each of these, a run has one
        "the lock of PostgreSQL, s held": _line(cells, lambda cell: cell["lock_share"] * cell["round_s"]),
        "the ServerApp, CPU s": _line(cells, lambda cell: cell["apps_cpu_s"]),
        "the SuperLink of the ServerApp, CPU s for it": _line(cells, _for_the_app),
    }
    rounds_of = {
        "SuperLinks, CPU s": superlinks,
        "PostgreSQL, CPU s": _line(cells, lambda cell: cell["postgres_cpu_s"]),
        **single,
    }
    lines = [["", *(f"{count:,} devices, {SHARE * count:,.0f} a round" for count in DEVICES)]]
    for name, rate in rates.items():
        lines.append([f"waiting: {name}, cores", *(f"{rate * count:.2g}" for count in DEVICES)])
    gigabytes = (f"{idle['kb_per_device'] * count / 1e6:.2g}" for count in DEVICES)
    lines.append(["waiting: all SuperLinks, GB", *gigabytes])
    for name, line in rounds_of.items():
        lines.append([f"a round: {name}", *(f"{line.at(SHARE * count):.3g}" for count in DEVICES)])
    cores = (rates["SuperLinks"] * count + superlinks.at(SHARE * count) / ROUND for count in DEVICES)
    needed = [f"{ceil(each / BUSY)}" for each in cores]
    lines.append([f"SuperLinks, if a round begins every {ROUND:g} s and each is {BUSY:.0%} busy", *needed])
    first = max(single, key=lambda name: single[name].at(SHARE * DEVICES[-1]))
    seconds = single[first].at(SHARE * DEVICES[-1])
    return [
        *markdown(lines, "lrr"),
        "",
        "SuperLinks divide the devices, and PostgreSQL's processes use many cores; but a run has one "
        f"ServerApp, which one SuperLink serves, and the lock is one. With more devices, "
        f"{first.partition(',')[0]} is at its limit first: a round of {SHARE * DEVICES[-1]:,.0f} keeps it "
        f"busy for {seconds:.3g} s, with any number of SuperLinks.",
        "",
        f"Straight lines through the medians with {most} SuperLinks and {_numbers(cells)} devices a round, "
        f"and through {idle['devices']:,} devices that wait on {idle['front_ends']} SuperLinks.",
    ]


def _numbers(cells: Sequence[Mapping[str, Any]]) -> str:
    return " and ".join(map(str, sorted({each["per_round"] for each in cells})))


def _line(cells: Sequence[Mapping[str, Any]], value: Callable[[Mapping[str, Any]], float]) -> _Line:
    found: dict[int, list[float]] = {}
    for each in cells:
        found.setdefault(each["per_round"], []).append(value(each))
    (few, low), (many, high) = ((number, median(found[number])) for number in (min(found), max(found)))
    slope = (high - low) / (many - few) if many > few else high / many
    return _Line(high - slope * many, slope)
