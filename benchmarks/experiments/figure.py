"""The figure of an experiment, drawn from the curves of its seeds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from deploy.runs.figure import COLOURS, STYLES, figure_file

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.experiments.report import Report


def draw(report: Report, path: Path) -> None:
    """Draw an experiment's curves as a PNG file: means over the seeds, with bands of ± a standard deviation.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is missing.
    ValueError
        If the experiment has no curves.
    """
    experiment, panels = report.experiment, report.outcomes[0].curves
    if not panels:
        raise ValueError(f"{experiment.name} has no curves")
    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)
    with figure_file(path, width=1 + 4.2 * across, height=0.8 + 3.2 * down) as figure:
        seeds = len(report.outcomes)
        of = " of log y" if experiment.log_y else ""
        spread = "one seed" if seeds == 1 else f"mean ± standard deviation{of} over {seeds} seeds"
        figure.suptitle(f"{experiment.title}\n{experiment.source}; {spread}", fontsize=10)
        every = figure.subplots(down, across, squeeze=False).flat
        for (panel, lines), axes in zip(panels.items(), every, strict=False):
            # The lines first go through all colours in one style, then through all in the next style.
            looks = ((colour, style) for style in STYLES for colour in COLOURS)
            for (label, curve), (colour, style) in zip(lines.items(), looks, strict=False):
                y = np.stack([each.curves[panel][label].y for each in report.outcomes])
                y = np.log(y) if experiment.log_y else y
                mean, deviation = y.mean(axis=0), y.std(axis=0, ddof=min(1, seeds - 1))
                band = [mean, mean - deviation, mean + deviation]
                middle, low, high = map(np.exp, band) if experiment.log_y else band
                axes.plot(curve.x, middle, color=colour, linestyle=style, label=label, linewidth=1.3)
                axes.fill_between(curve.x, low, high, color=colour, alpha=0.12, linewidth=0)
            axes.set_title(panel, loc="left", fontsize=10)
            axes.set_xlabel(experiment.x)
            axes.set_ylabel(experiment.y)
            axes.set_yscale("log" if experiment.log_y else "linear")
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        for axes in every:
            axes.set_axis_off()
        figure.axes[0].legend(frameon=False, fontsize=7)
