"""The figure of a sweep: for each combination of settings, the accuracy with each selector."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from deploy.sweeps.statistics import Cell, Result
from strategies.checkpoint import replacing


def draw(found: Sequence[Cell], results: Sequence[Result], path: Path) -> None:
    """Draw the mean accuracy of each cell with its 95 % interval, and a dot for each trial."""
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys(cell.case for cell in found))
    selectors = list(dict.fromkeys(cell.selector for cell in found))
    height = 1.2 + 0.28 * len(cases) * (len(selectors) + 1)
    figure = Figure(figsize=(8, max(2.5, height)), layout="constrained")
    axes = figure.add_subplot()
    for number, selector in enumerate(selectors):
        color, offset = f"C{number % 10}", (number + 1) / (len(selectors) + 1) - 0.5
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
