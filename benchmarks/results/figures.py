"""The figures of the pages, drawn from the curves in the data files.

A figure's file holds the digest of its curves, so that a check need not draw it.
"""

from __future__ import annotations

import json
import math
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.experiments import EXPERIMENTS
from deploy.runs.figure import COLOURS, STYLES, figure_file

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.results.files import Recorded

FIGURES = (
    "osmd-f1",
    "osmd-f2",
    "osmd-f-authors",
    "osmd-scaffold",
    "poc-quadratic",
    "poc-synthetic",
    "poc-mnist",
    "delta-regression",
    "delta-mnist",
    "flics-variance",
    "flics-synthetic",
    "forecast-streams",
)
"""The experiments whose figures are committed: those where a curve says more than the table."""

_KEY = "Curves"  # the field of the PNG file with the digest


def is_current(result: Recorded, path: Path) -> bool:
    """Return whether a figure's file was drawn from the curves of `result`."""
    try:
        return _digest(result).encode() in path.read_bytes()
    except FileNotFoundError:
        return False


def draw_curves(result: Recorded, path: Path) -> None:
    """Draw the recorded curves of an experiment as a PNG file: means over the seeds ± a standard deviation.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is missing.
    """
    experiment, panels = EXPERIMENTS[result.name], result.curves
    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)
    size = {"width": 1 + 3.4 * across, "height": 0.6 + 2.7 * down}
    with figure_file(path, **size, dpi=75, metadata={_KEY: _digest(result)}) as figure:
        figure.suptitle(
            f"{experiment.title}; mean ± standard deviation over {len(result.seeds)} seeds", fontsize=9
        )
        every = figure.subplots(down, across, squeeze=False).flat
        for (panel, lines), axes in zip(panels.items(), every, strict=False):
            looks = ((colour, style) for style in STYLES for colour in COLOURS)
            for (label, points), (colour, style) in zip(lines.items(), looks, strict=False):
                x, mean, deviation = (_array(points[key]) for key in ("x", "mean", "deviation"))
                band = [mean, mean - deviation, mean + deviation]
                middle, low, high = map(np.exp, band) if experiment.log_y else band
                axes.plot(x, middle, color=colour, linestyle=style, label=label, linewidth=1.2)
                axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
            axes.set_title(panel, loc="left", fontsize=9)
            axes.set_xlabel(experiment.x, fontsize=8)
            axes.set_ylabel(experiment.y, fontsize=8)
            axes.set_yscale("log" if experiment.log_y else "linear")
            axes.tick_params(labelsize=7)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        for axes in every:
            axes.set_axis_off()
        figure.axes[0].legend(frameon=False, fontsize=6)


def _array(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([math.nan if value is None else float(value) for value in values])


def _digest(result: Recorded) -> str:
    return sha256(json.dumps(result.curves, sort_keys=True).encode()).hexdigest()[:16]
