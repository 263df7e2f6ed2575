"""The figure of a comparison: loss and accuracy over the rounds, and the selected clients of each round."""

from __future__ import annotations

import contextlib
import os
import tempfile
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from deploy.runs.groups import worst_accuracy
from server.history import FILE_NAME
from strategies.clients.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from server.history import RunHistory

# Okabe and Ito's palette: people with any colour vision can tell these colours apart. In greyscale, the line
# styles distinguish the trials.
COLOURS = ("#000000", "#0072B2", "#E69F00", "#CC79A7", "#009E73", "#D55E00", "#56B4E9")
FIGURE = "cohort.png"  # the file name of a comparison's figure
MOST_ROWS = 40  # rows of a panel with selections; more clients than this share rows
LONGEST_LABEL = 30  # characters of a group's name
STYLES = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)), ":")


def draw(trials: Sequence[RunHistory], path: Path) -> None:
    """Draw the trials and write the figure to a file.

    Parameters
    ----------
    trials : Sequence[RunHistory]
        The trials to draw. Trials in which no client has trained yet are left out.
    path : Path
        The PNG file.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is missing.
    ValueError
        If no trial has a round in which clients trained.
    """
    trials = [trial for trial in trials if trial.trained]
    if not trials:
        raise ValueError(f"nothing to draw: no {FILE_NAME} has a round yet")
    panels = (len(trials) + 1) // 2
    # The height of one panel with selections, inches.
    tall = 0.2 * max(len(rows_of(trial)) for trial in trials) + 1.0
    with figure_file(path, width=12, height=4.2 + panels * tall) as figure:
        parts = figure.add_gridspec(2, 1, height_ratios=(4.2, panels * tall))
        above, below = figure.add_subfigure(parts[0]), figure.add_subfigure(parts[1])
        has_groups = any(line.get("group_metrics") for trial in trials for line in trial.trained)
        _draw_curves(trials, *above.subplots(1, 3 if has_groups else 2))
        for axes, trial in zip(below.subplots(panels, 2, squeeze=False).flat, trials, strict=False):
            _draw_selections(trial, axes)
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
def figure_file(path: Path, width: float, height: float) -> Iterator[Figure]:
    """Yield an empty figure, and write it into a PNG file when the block ends.

    Parameters
    ----------
    path : Path
        The PNG file.
    width, height : float
        The size of the figure, inches.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is missing.
    """
    with tempfile.TemporaryDirectory() as cache:
        # matplotlib writes a list of fonts into this folder. By default, the folder is in the user's home.
        os.environ.setdefault("MPLCONFIGDIR", cache)
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(path, dpi=130)


def _draw_curves(
    trials: Sequence[RunHistory], losses: Axes, accuracies: Axes, worst: Axes | None = None
) -> None:
    """Draw test loss and test accuracy of all trials; in `worst`, if given, the worst group's accuracy."""
    for trial, colour, style in zip(trials, cycle(COLOURS), cycle(STYLES), strict=False):
        rounds = [line["round"] for line in trial.rounds]
        for axes, metric, scale in ((losses, "test_loss", 1), (accuracies, "test_accuracy", 100)):
            values = [scale * _value(line[metric]) for line in trial.rounds]
            axes.plot(rounds, values, color=colour, linestyle=style, linewidth=1.8, label=trial.label)
        if worst is not None:
            values = [100 * worst_accuracy(line) for line in trial.rounds]
            worst.plot(rounds, values, color=colour, linestyle=style, linewidth=1.8, label=trial.label)
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
    """A row in the panel of selections: one client, or several."""

    label: str
    clients: list[int]
    """Indexes."""


def rows_of(trial: RunHistory) -> list[Row]:
    """Return the rows for the clients of a trial: at most `MOST_ROWS`, the largest clients on top.

    If there are more clients than rows, a row is a group of clients. If there are no groups, or too many, a
    row is a set of clients of similar size; all sets have about the same number of clients.
    """
    ids, sizes = trial.client_ids, trial.client_sizes
    order = sorted(range(len(ids)), key=lambda i: -sizes[i])
    if len(order) <= MOST_ROWS:
        return [Row(f"{ids[i].removeprefix('client-')} ({sizes[i]:g})", [i]) for i in order]
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


def _draw_selections(trial: RunHistory, axes: Axes) -> None:
    """Draw the selected clients of a trial: the rows of `rows_of`, and a column per round."""
    rows = rows_of(trial)
    row_of = {client: at for at, row in enumerate(rows) for client in row.clients}
    last = trial.trained[-1]["round"]
    counts = np.zeros((len(rows), last))
    missing = set()
    for line in trial.trained:
        for client, count, responded in zip(line["clients"], line["counts"], line["responded"], strict=True):
            counts[row_of[client], line["round"] - 1] += count
            if not responded:
                missing.add((line["round"], row_of[client]))
    if missing:
        axes.plot(*zip(*sorted(missing), strict=True), "x", color="#D55E00", markersize=5)
    axes.imshow(
        counts,
        cmap="Blues",
        vmin=0,
        # The same count has the same shade in all panels, unless a row is drawn more than 3 times.
        vmax=max(3.0, counts.max()),
        aspect="auto",
        interpolation="nearest",
        extent=(0.5, last + 0.5, len(rows) - 0.5, -0.5),
    )
    axes.set_title(trial.label, loc="left", fontsize=10)
    # Names are no formulas, which matplotlib would raise an error for.
    axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=8, parse_math=False)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("round")


def _value(number: float | None) -> float:
    """Return a number of a history as a float. A history has null instead of a non-finite number."""
    return float("nan") if number is None else float(number)
