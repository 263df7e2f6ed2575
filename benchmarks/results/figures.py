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
from benchmarks.experiments.figure import Band, draw_bands

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

COLOURS = 48  # of a figure, so that its file is small
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
    panels = {
        panel: {
            label: Band(*(_array(points[key]) for key in ("x", "mean", "deviation")))
            for label, points in lines.items()
        }
        for panel, lines in result.curves.items()
    }
    draw_bands(EXPERIMENTS[result.name], panels, len(result.seeds), path, dpi=70)
    from PIL import Image  # matplotlib needs it, too
    from PIL.PngImagePlugin import PngInfo

    text = PngInfo()
    text.add_text(_KEY, _digest(result))
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(COLOURS)
    small.save(path, optimize=True, pnginfo=text)


def _array(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([math.nan if value is None else float(value) for value in values])


def _digest(result: Recorded) -> str:
    return sha256(json.dumps(result.curves, sort_keys=True).encode()).hexdigest()[:16]
