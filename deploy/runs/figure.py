"""The figure of a comparison: loss and accuracy over the rounds, and the selected clients of each round."""

from __future__ import annotations

import contextlib
import os
import tempfile
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from deploy.runs.groups import worst_accuracy
from deploy.runs.seed_statistics import by_selector, interval
from server.history import FILE_NAME
from strategies.clients.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from server.history import Line, RunHistory

# Okabe and Ito's palette: people with any colour vision can tell these colours apart. In greyscale, the line
# styles distinguish the trials.
COLOURS = ("#000000", "#0072B2", "#E69F00", "#CC79A7", "#009E73", "#D55E00", "#56B4E9")
FIGURE = "cohort.png"  # the file name of a comparison's figure
MOST_COLUMNS = 4000  # columns of a panel with selections; if there are more rounds, rounds share a column
MOST_ROWS = 40  # rows of a panel with selections; if there are more clients, clients share a row
LONGEST_LABEL = 30  # characters of a name that are shown; longer names would leave no room for the panels
STYLES = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)), ":")


def draw(trials: Sequence[RunHistory], path: Path) -> None:
    """Draw the trials and write the figure to a file."""
    trials = [trial for trial in trials if trial.trained]
    if not trials:
        raise ValueError(f"nothing to draw: no {FILE_NAME} has a round yet")
    seeds = by_selector(trials)
    curves = [[trial] for trial in trials] if seeds is None else list(seeds.values())
    trials = [each[0] for each in curves]  # the panels with selections show the first seed
    panels = (len(trials) + 1) // 2
    # The height of one panel with selections, inches.
    tall = 0.2 * max(len(rows_of(trial)) for trial in trials) + 1.0
    with figure_file(path, width=12, height=4.2 + panels * tall) as figure:
        parts = figure.add_gridspec(2, 1, height_ratios=(4.2, panels * tall))
        above, below = figure.add_subfigure(parts[0]), figure.add_subfigure(parts[1])
        has_groups = any(line.get("group_metrics") for trial in trials for line in trial.trained)
        _draw_curves(curves, *above.subplots(1, 3 if has_groups else 2))
        for axes, trial in zip(below.subplots(panels, 2, squeeze=False).flat, trials, strict=False):
            title = trial.label if seeds is None else f"{trial.label}, seed {trial.settings['seed']}"
            _draw_selections(trial, axes, title)
        if len(trials) % 2:
            below.axes[-1].set_axis_off()
        below.suptitle(
            "Selected clients (samples held) in each round; darker = drawn more often, × = no usable reply",
            x=0.01,
            ha="left",
            fontsize=12,
            fontweight="bold",
        )


@contextlib.contextmanager
def figure_file(path: Path, width: float, height: float, dpi: int = 130) -> Iterator[Figure]:
    """Yield an empty figure, and write it into a PNG file when the block ends.

    `width`, `height`: the size of the figure, inches.
    """
    with tempfile.TemporaryDirectory() as cache:
        # matplotlib writes a list of fonts into this folder. By default, the folder is in the user's home.
        os.environ.setdefault("MPLCONFIGDIR", cache)
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(path, dpi=dpi)


def _draw_curves(
    selectors: Sequence[Sequence[RunHistory]], losses: Axes, accuracies: Axes, worst: Axes | None = None
) -> None:
    """Draw test loss and test accuracy of each selector; in `worst`, if given, the worst group's accuracy.

    If a selector has trials of several seeds, the curve is their mean, with its 95 % interval.
    """
    for trials, colour, style in zip(selectors, cycle(COLOURS), cycle(STYLES), strict=False):
        measures: list[tuple[Axes | None, Callable[[Line], float]]] = [
            (losses, lambda line: _value(line["test_loss"])),
            (accuracies, lambda line: 100 * _value(line["test_accuracy"])),
            (worst, lambda line: 100 * worst_accuracy(line)),
        ]
        for axes, value in measures:
            if axes is None:
                continue
            found: dict[int, list[float]] = {}
            for trial in trials:
                for line in (each for each in trial.rounds if "test_loss" in each):
                    found.setdefault(line["round"], []).append(value(line))
            # A round counts if all seeds have reached it: a mean over fewer seeds would jump.
            rounds = [round for round, values in found.items() if len(values) == len(trials)]
            over = [interval(found[round]) for round in rounds]
            means = np.array([each.mean for each in over])
            axes.plot(rounds, means, color=colour, linestyle=style, linewidth=1.8, label=trials[0].label)
            if len(trials) > 1:
                half = np.array([each.half for each in over])
                most = (
                    np.inf if axes is losses else 100.0
                )  # losses are at least 0, accuracies are from 0 to 100 %
                low, high = np.clip([means - half, means + half], 0.0, most)
                axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    if worst is not None:
        worst.set_title("Accuracy of the worst group (%)", loc="left", fontweight="bold")
    losses.set_title("Test loss", loc="left", fontweight="bold")
    accuracies.set_title("Test accuracy (%)", loc="left", fontweight="bold")
    losses.legend(frameon=False)
    losses.set_ylim(bottom=0)
    for axes in filter(None, (losses, accuracies, worst)):
        axes.set_xlabel("round")
        axes.locator_params(axis="x", integer=True)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)


class Row(NamedTuple):
    """A row in the panel of selections, for one client or several."""

    label: str
    clients: list[int]
    """Indexes."""


def rows_of(trial: RunHistory) -> list[Row]:
    """Return the rows for the clients of a trial: at most `MOST_ROWS`, the largest clients on top.

    If there are more clients, a row is a group of clients. If a client has no group, or there is one group or
    too many, a row is a set of clients of similar size; all sets have about the same number of clients.
    """
    ids, sizes = trial.client_ids, trial.client_sizes
    order = sorted(range(len(ids)), key=lambda i: -sizes[i])
    if len(order) <= MOST_ROWS:
        names = [printable(each.removeprefix("client-"), LONGEST_LABEL) for each in ids]
        return [Row(f"{names[i]} ({sizes[i]:g})", [i]) for i in order]
    members: dict[str, list[int]] = {}
    for i in order:
        members.setdefault(trial.client_groups[i] or "", []).append(i)
    if "" not in members and 1 < len(members) <= MOST_ROWS:
        return [
            Row(f"{printable(group, LONGEST_LABEL)}: {_range(sizes, clients)}", clients)
            for group, clients in members.items()
        ]
    parts = [part.tolist() for part in np.array_split(np.array(order), MOST_ROWS)]
    return [Row(_range(sizes, clients), clients) for clients in parts]


def _range(sizes: Sequence[float], clients: Sequence[int]) -> str:
    """Describe clients by their number and sizes, for example "25 clients (12 to 14)"."""
    held = [sizes[i] for i in clients]
    least, most = f"{min(held):g}", f"{max(held):g}"
    span = least if least == most else f"{least} to {most}"
    return f"{len(clients)} client{'s' if len(clients) > 1 else ''} ({span})"


def _draw_selections(trial: RunHistory, axes: Axes, title: str) -> None:
    """Draw the selected clients of a trial: rows as in `rows_of`, a column for each round or for several."""
    rows = rows_of(trial)
    row_of = {client: at for at, row in enumerate(rows) for client in row.clients}
    last = trial.trained[-1]["round"]
    columns = min(last, MOST_COLUMNS)
    counts = np.zeros((len(rows), columns))
    missing = set()
    for line in trial.trained:
        for client, count, responded in zip(line["clients"], line["counts"], line["responded"], strict=True):
            if client not in row_of:  # the roster is damaged
                continue
            counts[row_of[client], (line["round"] - 1) * columns // last] += count
            if not responded:
                missing.add((line["round"], row_of[client]))
    if missing:
        axes.plot(*zip(*sorted(missing), strict=True), "x", color="#D55E00", markersize=5)
    axes.imshow(
        counts,
        cmap="Blues",
        vmin=0,
        # The same count has the same shade in all panels, unless a count is above 3.
        vmax=max(3.0, counts.max()),
        aspect="auto",
        interpolation="nearest",
        extent=(0.5, last + 0.5, len(rows) - 0.5, -0.5),
    )
    axes.set_title(title, loc="left", fontsize=10)
    # parse_math=False: matplotlib would take $ signs in a name for a formula, and might raise an error.
    axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=8, parse_math=False)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("round")


def _value(number: float | None) -> float:
    """Return a number of a history as a float; NaN for null."""
    return float("nan") if number is None else float(number)
