"""The figure of an experiment, drawn from the curves of its seeds."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.experiments.report import Experiment, Report
from deploy.runs.figure import COLOURS, STYLES, figure_file
from strategies.numerics.arrays import Floats


class Band(NamedTuple):
    """A curve over the seeds. If the y axis is logarithmic, mean and deviation are those of log y."""

    x: Floats  # (P,)
    mean: Floats  # (P,)
    deviation: Floats  # (P,) the standard deviation


def bands(report: Report) -> dict[str, dict[str, Band]]:
    """Return an experiment's curves over its seeds: panel -> line -> band. One seed has deviations of 0."""
    outcomes, found = report.outcomes, dict[str, dict[str, Band]]()
    for panel, lines in outcomes[0].curves.items():
        for label, curve in lines.items():
            y = np.stack([each.curves[panel][label].y for each in outcomes])
            with np.errstate(divide="ignore", invalid="ignore"):
                y = np.log(y) if report.experiment.log_y else y
                band = Band(curve.x, y.mean(axis=0), y.std(axis=0, ddof=min(1, len(outcomes) - 1)))
            found.setdefault(panel, {})[label] = band
    return found


def draw(report: Report, path: Path) -> None:
    """Draw an experiment's curves as a PNG file: means over the seeds ± a standard deviation."""
    draw_bands(report.experiment, bands(report), len(report.outcomes), path)


def draw_bands(
    experiment: Experiment, panels: Mapping[str, Mapping[str, Band]], seeds: int, path: Path, **file: Any
) -> None:
    """Draw at least one panel (title -> label -> band) as a PNG file; `file` goes to `figure_file`."""
    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)
    with figure_file(path, width=1 + 4.2 * across, height=0.8 + 3.2 * down, **file) as figure:
        text = experiment.text
        of = " of log y" if experiment.log_y else ""
        spread = "one seed" if seeds == 1 else f"mean ± standard deviation{of} over {seeds} seeds"
        figure.suptitle(f"{text.title or experiment.name}\n{text.source}; {spread}", fontsize=10)
        every = figure.subplots(down, across, squeeze=False).flat
        for (panel, lines), axes in zip(panels.items(), every, strict=False):
            # All colours in one line style, then all colours in the next.
            looks = ((colour, style) for style in STYLES for colour in COLOURS)
            for (label, (x, mean, deviation)), (colour, style) in zip(lines.items(), looks, strict=False):
                band = [mean, mean - deviation, mean + deviation]
                middle, low, high = map(np.exp, band) if experiment.log_y else band
                axes.plot(x, middle, color=colour, linestyle=style, label=label, linewidth=1.3)
                axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
            axes.set_title(panel, loc="left", fontsize=10)
            axes.set_xlabel(experiment.x)
            axes.set_ylabel(experiment.y)
            axes.set_yscale("log" if experiment.log_y else "linear")
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        for axes in every:
            axes.set_axis_off()
        figure.axes[0].legend(frameon=False, fontsize=7)
