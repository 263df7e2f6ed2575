"""The figures of the pages, drawn from the data files.

A figure's file holds the digest of the data that the figure shows, so a check need not draw the figure.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.experiments import EXPERIMENTS
from benchmarks.experiments.figure import Band, draw_bands
from benchmarks.results.claims import Finding
from benchmarks.results.files import Recorded, Result
from deploy.runs.figure import figure_file
from strategies import designs

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

COLOURS = 128  # of a figure; few, so that its file is small
CLAIMS_FIGURE, COHORTS_FIGURE, GAIN_FIGURE = "claims.png", "cohorts.png", "gain.png"
GAIN = {"md, balanced": "md, balanced draws", "md": "md, independent draws", "fedavg": "FedAvg"}
"""Rows of real-cifar-.1 -> what the figure calls them."""
CLOCK = {
    "buffered-md": "md, buffered rounds",
    "fedbuff": "FedBuff",
    "timed-forecast": "timed-forecast",
    "forecast": "forecast (default)",
    "md": "md",
    "fedavg": "FedAvg",
}
"""Rows of hours-cifar -> what the figure calls them."""


class Drawn(NamedTuple):
    """A figure of the pages, with the digest that its file should hold."""

    file: str  # the name of the PNG file
    digest: str  # of the data that the figure shows
    draw: Callable[[Path], None]

    def is_current(self, folder: Path) -> bool:
        """Return whether the file in the folder holds this digest."""
        try:
            return self.digest.encode() in (folder / self.file).read_bytes()
        except FileNotFoundError:
            return False

    def write(self, folder: Path) -> Path:
        """Draw the figure, and write its file into the folder."""
        from PIL import Image  # matplotlib needs it, too
        from PIL.PngImagePlugin import PngInfo

        path, text = folder / self.file, PngInfo()
        self.draw(path)
        text.add_text("Shows", self.digest)
        with Image.open(path) as image:
            small = image.convert("RGB").quantize(COLOURS)
        small.save(path, optimize=True, pnginfo=text)
        return path


def figures(results: Mapping[str, Result], findings: Sequence[Finding]) -> list[Drawn]:
    """Return the figures of all pages: one for each of `FIGURES` that has curves, cohorts, and the claims."""
    recorded = [each for name in FIGURES if isinstance(each := results.get(name), Recorded) and each.curves]
    found = [
        Drawn(f"{each.name}.png", _digest(each.curves), partial(_draw_curves, each)) for each in recorded
    ]
    cifar, hours = results.get("real-cifar-.1"), results.get("hours-cifar")
    if isinstance(cifar, Recorded) and isinstance(hours, Recorded):
        lines = {label: cifar.curves[""][row] for row, label in GAIN.items()}
        bars = {label: hours.values(row, "s to 90 %") for row, label in CLOCK.items()}
        found.append(Drawn(GAIN_FIGURE, _digest([lines, bars]), partial(_draw_gain, lines, bars)))
    cohorts = _cohorts()
    found.append(Drawn(COHORTS_FIGURE, _digest(cohorts), partial(_draw_cohorts, cohorts)))
    shown = ratios(findings)
    if shown:
        texts = [
            [each.claim.text, f"{each.effect:.4g} {each.low:.4g} {each.high:.4g}", each.verdict]
            for each in shown
        ]
        found.append(Drawn(CLAIMS_FIGURE, _digest(texts), partial(_draw_claims, shown)))
    return found


def ratios(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings whose effect is a ratio with an interval."""
    return [each for each in findings if each.claim.scale == "ratio" and each.high < math.inf]


def _draw_curves(result: Recorded, path: Path) -> None:
    """Draw means over the seeds ± a standard deviation."""
    panels = {
        panel: {
            label: Band(*(_array(points[key]) for key in Band._fields)) for label, points in lines.items()
        }
        for panel, lines in result.curves.items()
    }
    draw_bands(EXPERIMENTS[result.name], panels, len(result.seeds), path, dpi=70)


def _draw_claims(findings: Sequence[Finding], path: Path) -> None:
    """Draw the ratios of claims with their intervals, and the limit of each claim."""
    colours = {"yes": "#009E73", "not shown": "#777777", "no: the opposite": "#D55E00"}
    with figure_file(path, width=12, height=1.2 + 0.23 * len(findings), dpi=75) as figure:
        axes = figure.subplots()
        for y, each in enumerate(reversed(findings)):
            colour = colours[each.verdict]
            axes.plot([each.low, each.high], [y, y], color=colour, linewidth=1.5)
            axes.plot([each.effect], [y], "o", color=colour, markersize=4)
            axes.plot([each.claim.threshold], [y], "|", color="#000000", markersize=9)
        axes.set_xscale("log")
        axes.set_xlabel("ratio with its 95 % interval; | = limit of the claim")
        labels = [each.claim.text.replace("`", "") for each in reversed(findings)]
        axes.set_yticks(range(len(findings)), labels, fontsize=7, parse_math=False)
        axes.grid(alpha=0.25, axis="x")
        axes.spines[["top", "right"]].set_visible(False)
        handles = [
            axes.plot([], [], "o-", color=colour, label=verdict)[0] for verdict, colour in colours.items()
        ]
        axes.legend(handles=handles, frameon=False, fontsize=8, loc="best")


def _draw_gain(
    lines: Mapping[str, Mapping[str, Any]], bars: Mapping[str, Sequence[float]], path: Path
) -> None:
    """Draw what a user gains on CIFAR-10: accuracy over rounds, and minutes to an accuracy."""
    with figure_file(path, width=12, height=3.8, dpi=80) as figure:
        rounds, clock = figure.subplots(1, 2, width_ratios=(3, 2))
        for colour, (label, points) in zip(("#0072B2", "#E69F00", "#777777"), lines.items(), strict=True):
            band = Band(*(_array(points[key]) for key in Band._fields))
            rounds.plot(band.x, band.mean, color=colour, linewidth=2, label=label)
            low, high = band.mean - band.deviation, band.mean + band.deviation
            rounds.fill_between(band.x, low, high, color=colour, alpha=0.15, linewidth=0)
        rounds.set_xlabel("round")
        rounds.set_ylabel("test accuracy, %")
        rounds.set_title("which clients train together", fontsize=10)
        rounds.legend(frameon=False, loc="lower right")
        for y, (label, seconds) in enumerate(bars.items()):
            there = np.array([value for value in seconds if not math.isnan(value)]) / 60
            colour = "#0072B2" if label == next(iter(bars)) else "#BBBBBB"
            clock.barh(y, there.mean(), color=colour, xerr=there.std(ddof=1), ecolor="#333333", height=0.6)
            if there.size < len(seconds):
                clock.text(1, y, f"{there.size} of {len(seconds)} seeds get there", va="center", fontsize=8)
        clock.set_yticks(range(len(bars)), list(bars))
        clock.set_ylim(len(bars) - 0.5, -0.5)
        clock.set_xlabel("minutes to 90 % of the best accuracy")
        clock.set_title("whether rounds wait for slow clients", fontsize=10)
        figure.suptitle("CIFAR-10, 100 unlike clients: mean ± deviation of ten seeds", fontsize=10)
        for axes in (rounds, clock):
            axes.grid(alpha=0.25, axis="both" if axes is rounds else "x")
            axes.spines[["top", "right"]].set_visible(False)


def _cohorts() -> dict[str, Any]:
    """Return made-up updates of 60 clients, and for two designs a cohort of 8 and 300 cohorts' aggregates."""
    rng = np.random.default_rng(1)
    angles = 2 * np.pi * np.arange(5) / 5
    kinds = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    updates = kinds[np.arange(60) % 5] + 0.22 * rng.normal(size=(60, 2))
    found: dict[str, Any] = {"updates": updates.round(6).tolist()}
    for design in ("independent", "balanced"):
        draws = [
            designs.draw(design, np.ones(60), 8, rng, lambda clients: updates[clients] / 60)
            for _ in range(300)
        ]
        found[design] = {
            "cohort": draws[0].clients.tolist(),
            "aggregates": [(d.importance @ updates[d.clients] / 60).round(6).tolist() for d in draws],
        }
    return found


def _draw_cohorts(cohorts: Mapping[str, Any], path: Path) -> None:
    """Draw the same clients, independent beside balanced draws."""
    updates = np.array(cohorts["updates"])
    with figure_file(path, width=9, height=4.6, dpi=80) as figure:
        for axes, design in zip(
            figure.subplots(1, 2, sharex=True, sharey=True), ("independent", "balanced"), strict=True
        ):
            aggregates, cohort = np.array(cohorts[design]["aggregates"]), cohorts[design]["cohort"]
            axes.plot(*updates.T, "o", color="#BBBBBB", markersize=5, label="clients")
            axes.plot(*updates[cohort].T, "o", color="#0072B2", markersize=9, label="one cohort of 8")
            axes.plot(*aggregates.T, ".", color="#D55E00", markersize=3, label="aggregates of 300 cohorts")
            axes.plot(*updates.mean(axis=0), "k*", markersize=13, label="mean of all clients")
            axes.set_title(f"{design} draws")
            axes.set_aspect("equal")
            axes.spines[["top", "right"]].set_visible(False)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False, fontsize=8)


def _array(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([math.nan if value is None else float(value) for value in values])


def _digest(shown: Any) -> str:
    return sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:16]
