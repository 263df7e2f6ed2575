"""The files of a sweep's results: CSV, JSON, Markdown and a figure; and the table in the terminal."""

import csv
import io
import json
import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from deploy.runs.seed_statistics import Interval
from deploy.runs.trial_statistics import number
from deploy.sweeps.statistics import LEVEL, METRICS, Cell, PairedTest, Result, cells, paired_tests
from strategies.checkpoint import replacing

VALUES = (
    *("accuracy", "loss", "last_accuracy", "last_loss", "train_loss"),
    *("rounds", "clients", "failures", "seconds", "digest"),
)
NOTE = (
    "Accuracy and loss are means of the last 5 evaluated rounds, on the test data. ±: 95 % interval of the "
    "mean over the seeds."
)
HOLM = (
    "Differences between trials of the same settings and seed, with 95 % intervals. p: two-sided paired t "
    "test, corrected by Holm's method for the {count} tests of this metric. A difference counts as shown if "
    f"p is below {LEVEL}."
)
FEW = 10  # of so many tests, the terminal also shows those without a difference


def write_results(
    folder: Path, results: Sequence[Result], axes: Sequence[str], baseline: str, planned: int
) -> list[str]:
    """Write `results.csv`, `.json`, `.md` and, with matplotlib, `.png`; return the names of the files.

    `axes` are the settings that vary, and `planned` is the number of trials of the sweep.
    """
    found, tests = cells(results), paired_tests(results, baseline)
    contents = {
        "results.csv": _csv(results, axes),
        "results.json": _json(results, found, tests, planned),
        "results.md": _markdown(found, tests, len(results), planned),
    }
    for name, content in contents.items():
        with replacing(folder / name) as file:
            file.write(content.encode())
    try:
        draw(found, results, folder / "results.png")
    except ModuleNotFoundError:
        return list(contents)
    return [*contents, "results.png"]


def table(found: Sequence[Cell]) -> Table:
    """Return the table of all cells for the terminal."""
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption=NOTE, caption_justify="left")
    for head in ("settings", "selector"):
        shown.add_column(head, overflow="fold")
    for head in ("accuracy, %", "loss", "seeds"):
        shown.add_column(head, justify="right")
    for cell in found:
        shown.add_row(cell.case, cell.selector, *_formatted(cell))
    return shown


def sentences(tests: Sequence[PairedTest]) -> list[str]:
    """Say which differences in accuracy the tests show; of few tests, also those that show none."""
    of_accuracy = [each for each in tests if each.metric == METRICS[0]]
    made = [each for each in of_accuracy if not math.isnan(each.corrected)]
    if not made:
        return ["No paired test is possible: give at least two selectors and two seeds."] if tests else []
    shown = [each for each in made if each.corrected < LEVEL]
    lines = [
        f"{each.selector}: accuracy {each.difference.shown('+z.1f', 100).replace('± +', '± ')} points "
        f"against {each.other}{f' ({each.case})' if each.case else ''}, p = {each.corrected:.3g}"
        for each in (made if len(made) <= FEW else shown)
    ]
    return [
        *lines,
        f"{len(shown)} of {len(made)} paired tests of accuracy show a difference, after Holm's correction.",
    ]


def draw(found: Sequence[Cell], results: Sequence[Result], path: Path) -> None:
    """Draw the mean accuracy of each cell with its 95 % interval, and a dot for each trial."""
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys(cell.case for cell in found))
    selectors = list(dict.fromkeys(cell.selector for cell in found))
    height = 1.2 + 0.28 * len(cases) * (len(selectors) + 1)
    figure = Figure(figsize=(8, max(2.5, height)), layout="constrained")
    axes = figure.add_subplot()
    for place, selector in enumerate(selectors):
        color, offset = f"C{place % 10}", (place + 1) / (len(selectors) + 1) - 0.5
        mine = [cell for cell in found if cell.selector == selector]
        rows = [cases.index(cell.case) + offset for cell in mine]
        halves = [100 * cell.accuracy.half for cell in mine]
        means = [100 * cell.accuracy.mean for cell in mine]
        axes.errorbar(means, rows, xerr=halves, fmt="o", color=color, capsize=3, markersize=5, label=selector)
        dots = [each for each in results if each.selector == selector and each.values["accuracy"] is not None]
        axes.plot(
            [100 * each.values["accuracy"] for each in dots],
            [cases.index(each.case) + offset for each in dots],
            ".",
            color=color,
            alpha=0.35,
            markersize=4,
        )
    axes.set_yticks(range(len(cases)), [case or "all" for case in cases])
    axes.set_ylim(len(cases) - 0.5, -0.5)
    axes.set_xlabel("test accuracy, %: mean and 95 % interval over the seeds; dots are trials")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper left", ncols=3, frameon=False)
    image = BytesIO()
    figure.savefig(image, format="png", dpi=150)
    with replacing(path) as file:
        file.write(image.getvalue())


def _formatted(cell: Cell) -> tuple[str, str, str]:
    return cell.accuracy.shown(".1f", 100), cell.loss.shown(".3f"), str(len(cell.seeds))


def _csv(results: Sequence[Result], axes: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["selector", "settings", *axes, "seed", *VALUES])
    for each in results:
        varied = [each.varied.get(name, "") for name in axes]
        values = ["" if each.values[name] is None else each.values[name] for name in VALUES]
        writer.writerow([each.selector, each.case, *varied, each.seed, *values])
    return text.getvalue()


def _json(results: Sequence[Result], found: Sequence[Cell], tests: Sequence[PairedTest], planned: int) -> str:
    def spread(value: Interval) -> dict[str, float | None]:
        return {"mean": _finite(value.mean), "half": _finite(value.half)}

    content: dict[str, Any] = {
        "version": 1,
        "trials_planned": planned,
        "trials": [
            {"selector": each.selector, "settings": dict(each.varied), "seed": each.seed, **each.values}
            for each in results
        ],
        "cells": [
            {
                "selector": cell.selector,
                "settings": cell.case,
                "seeds": cell.seeds,
                "accuracy": spread(cell.accuracy),
                "loss": spread(cell.loss),
            }
            for cell in found
        ],
        "comparisons": [
            {
                "settings": each.case,
                "selector": each.selector,
                "other": each.other,
                "metric": each.metric,
                "difference": spread(each.difference),
                "pairs": each.pairs,
                "p": _finite(each.p),
                "p_holm": _finite(each.corrected),
                "verdict": each.verdict,
            }
            for each in tests
        ],
    }
    return json.dumps(content, indent=1) + "\n"


def _markdown(found: Sequence[Cell], tests: Sequence[PairedTest], finished: int, planned: int) -> str:
    lines = ["# Results of a sweep", ""]
    if finished < planned:
        lines += [f"**Unfinished**: {finished} of {planned} trials.", ""]
    lines += ["| settings | selector | accuracy, % | loss | seeds |", "|---|---|--:|--:|--:|"]
    for cell in found:
        lines.append(_row(cell.case, cell.selector, *_formatted(cell)))
    lines += ["", NOTE]
    for metric in METRICS:
        chosen = [each for each in tests if each.metric == metric and not math.isnan(each.corrected)]
        if not chosen:
            continue
        scale, form, unit = (100, "+z.1f", ", points") if metric == "accuracy" else (1, "+z.3f", "")
        lines += ["", f"## Differences in {metric}", ""]
        lines += [f"| settings | selector | against | difference{unit} | pairs | p | verdict |"]
        lines += ["|---|---|---|--:|--:|--:|---|"]
        for each in chosen:
            difference = each.difference.shown(form, scale).replace("± +", "± ")
            p = number(each.corrected, ".3g")
            lines.append(
                _row(each.case, each.selector, each.other, difference, str(each.pairs), p, each.verdict)
            )
        lines += ["", HOLM.format(count=len(chosen))]
    return "\n".join(lines) + "\n"


def _row(*columns: str) -> str:
    return f"| {' | '.join(each.replace('|', chr(92) + '|') for each in columns)} |"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
