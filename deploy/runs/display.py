"""Shows the progress of the training in the terminal, and then the results."""

import math
import time
from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from deploy.runs.follow_and_resume import Watcher
from deploy.runs.groups import GROUP_NOTES, group_table
from deploy.runs.seed_statistics import by_selector, interval, paired_verdict
from deploy.runs.trial_statistics import (
    LAST,
    Summary,
    baseline_of,
    duration,
    faults,
    large_clients,
    number,
    summarise,
    verdict,
)
from deploy.runs.trials import Trial
from server.history import Line, RunHistory
from strategies.clients.printable import printable

SETTING_WIDTH = 18  # of a selector's settings in the table; longer ones continue in the next line
MOST = 5  # the largest number of clients with faults that are listed for one trial


class PlainDisplay(Watcher):
    """Prints messages and failures, and on request a line for each round of each trial."""

    def __init__(self, console: Console, *, rounds: bool) -> None:
        super().__init__(self._print)
        self._console = console
        self._rounds = rounds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def lines(self, trial: Trial, lines: Sequence[Line]) -> None:
        """Print the news in the new lines of a trial's history.

        Resumes, failures, skipped rounds and warnings are always printed, other rounds only on request.
        """
        for line in lines:
            if line["type"] == "resume":
                self._print(f"{trial.name}  resumes after round {line['round']}")
            if line["type"] == "warning":
                self._print(f"{trial.name}  {line['reason']}")
            if line["type"] != "round":
                continue
            for failure in line.get("failures", ()):
                self._print(
                    f"{trial.name}  round {line['round']}: {failure['client']} failed: {failure['reason']}"
                )
            if line.get("skipped"):
                self._print(f"{trial.name}  round {line['round']} skipped: {line['skipped']}")
            if self._rounds:
                self._print(
                    f"{trial.name}  round {line['round']}/{trial.history.settings['num_rounds']}  "
                    + "  ".join(filter(None, [selected(line).plain, metrics(line).plain]))
                )

    def waits(self, trial: Trial, seconds: float) -> None:
        """Print how long a round has taken so far, if a line is printed for each round."""
        if self._rounds:
            rounds = trial.history.rounds
            now = f"round {rounds[-1]['round'] + 1}" if rounds else "the start"
            self._print(f"{trial.name}  {now} has taken {seconds:.0f} s so far")

    def _print(self, text: str) -> None:
        shown = printable(text, None, keep="\n\t")
        self._console.print(shown, markup=False, highlight=False, soft_wrap=True)


class LiveDisplay(PlainDisplay):
    """Redraws the state of all trials in place. Messages and failures are printed above."""

    def __init__(self, console: Console, trials: Sequence[Trial], title: str) -> None:
        super().__init__(console, rounds=False)
        self._trials = trials
        self._title = title
        self._began = time.monotonic()
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        self.refresh()
        return self

    def __exit__(self, *_: object) -> None:
        self.refresh()
        self._live.stop()

    def refresh(self) -> None:
        """Draw the current state."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        parts: list[RenderableType] = [Text(f"{self._title} · {minutes}:{seconds:02d}", style="dim")]
        for trial in self._trials:
            try:
                parts += [Text(), *_state(trial.history)]
            except Exception as error:  # a trial that cannot be shown must not end the training
                parts.append(Text(f"{trial.name}: cannot be shown: {error!r}", style="red"))
        self._live.update(Group(*parts), refresh=True)


def _state(trial: RunHistory) -> list[RenderableType]:
    """Draw one trial in three lines: its progress, its metrics, and the clients of its last round."""
    if not trial.rounds:
        return [Text(trial.label, style="bold"), Text("  waiting to start", style="dim"), Text()]
    last, total = trial.rounds[-1], int(trial.settings["num_rounds"])
    head = Table.grid(padding=(0, 1), expand=True)
    head.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    head.add_column(width=16)
    head.add_column(justify="right", no_wrap=True)
    head.add_row(
        Text(trial.label, style="bold"),
        ProgressBar(total=total, completed=last["round"], width=16),
        f"round {last['round']:>{len(str(total))}}/{total}",
    )
    figures = Text("  ").append_text(metrics(last))
    if failures := sum(len(line["failures"]) for line in trial.trained):
        figures.append(f"  {failures} failed", style="red")
    return [head, figures, Text("  ", no_wrap=True, overflow="ellipsis").append_text(selected(last))]


def metrics(line: Line) -> Text:
    """Format a round's metrics: "test loss 0.612  accuracy 87.4 %  train loss 0.533  5.1 s"."""
    parts = [
        f"test loss {number(line.get('test_loss'), '.3f')}",
        f"accuracy {number(line.get('test_accuracy'), '.1f', ' %', scale=100)}",
    ]
    if "train_loss" in line:
        parts.append(f"train loss {number(line['train_loss'], '.3f')}")
    if "seconds" in line:
        parts.append(duration(line["seconds"], " s"))
    return Text("  ".join(parts))


def selected(line: Line) -> Text:
    """Format the selected clients of a round: "selected 07 ×2 p=.31, 03 p=.12 ✗".

    In this example client-07 was drawn twice with probability 0.31, and client-03 sent no usable reply.
    """
    if line["round"] == 0:
        return Text()
    text = Text("selected ")
    columns = (line["client_ids"], line["counts"], line["probabilities"], line["responded"])
    for position, (client, count, probability, responded) in enumerate(zip(*columns, strict=True)):
        text.append(", " if position else "")
        text.append(client.removeprefix("client-"), style="bold")
        text.append(f" ×{count}" if count > 1 else "")
        text.append(f" p={_probability(probability)}", style="dim")
        text.append("" if responded else " ✗", style="red")
    return text if line["clients"] else text.append("nobody")


def _probability(value: float | None) -> str:
    """Format a probability without the zero before its decimal point.

    The result has two decimals, or one significant digit if the probability is below 0.005.
    """
    if value is not None and 0 < value < 0.005:
        return f"{value:.1g}".removeprefix("0")
    return number(value, ".2f").removeprefix("0")


def report(trials: Sequence[RunHistory]) -> Group:
    """Return the results of a comparison.

    The results are a table of all trials, a table of groups, a list of clients with faults, and sentences
    that compare each trial with uniform selection. Empty tables and lists are left out.
    """
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("selector", vertical="bottom", overflow="fold")
    for head in (
        "test\nloss",
        "test\nacc. %",
        "train\nloss",
        "clients\n/round",
        "s\n/round",
        "kB\n/round",
        "failed",
        "to\nlarge",
    ):
        table.add_column(head, justify="right")
    seeds = by_selector(trials)
    for each in [[trial] for trial in trials] if seeds is None else seeds.values():
        found = [summarise(trial) for trial in each]

        def mean(value: Callable[[Summary], float], found: Sequence[Summary] = tuple(found)) -> float:
            return interval([value(summary) for summary in found]).mean

        def spread(
            value: Callable[[Summary], float],
            form: str,
            scale: float = 1.0,
            found: Sequence[Summary] = tuple(found),
        ) -> str:
            return interval([value(summary) for summary in found]).shown(form, scale).replace(" ± ", "\n± ")

        selector, _, settings = each[0].label.removesuffix(")").partition(" (")
        name = Text("\n".join([selector, *wrap(settings, SETTING_WIDTH)]))  # at hyphens, unlike rich
        if unfinished := sum(not trial.finished for trial in each):
            name.append("\nnot finished" if len(each) == 1 else f"\n{unfinished} not finished", style="red")
        table.add_row(
            name,
            spread(lambda summary: summary.test_loss, ".3f"),
            spread(lambda summary: summary.test_accuracy, ".1f", 100),
            spread(lambda summary: summary.train_loss, ".3f"),
            number(mean(lambda summary: summary.distinct), ".1f"),
            duration(mean(lambda summary: summary.seconds)),
            number(mean(lambda summary: summary.bytes), ".0f", scale=1e-3),
            str(sum(summary.failures for summary in found)),
            number(mean(lambda summary: summary.large_share), ".0f", " %", scale=100),
        )
    evaluated = [sum("test_loss" in line for line in trial.trained) for trial in trials]
    fewest = min(evaluated, default=0)
    if fewest >= LAST:
        notes = f"Losses and accuracy are means of the last {LAST} rounds."
    else:
        notes = (
            f"Losses and accuracy are means of the last {LAST} rounds, or of all rounds if there are fewer."
        )
    if seeds is not None:
        notes += " ±: 95 % interval of the mean over the seeds. Failed: the sum over the seeds."
    if sizes := next((trial.client_sizes for trial in trials if trial.client_sizes), None):
        large = large_clients(sizes)
        share = sum(sizes[i] for i in large) / (sum(sizes) or math.nan)
        held = number(share, ".0f", " %", scale=100)
        counted = (
            f"The largest of {len(sizes)} clients counts as large; it holds {held} of the samples."
            if len(large) == 1
            else f"The {len(large)} largest of {len(sizes)} clients count as large; "
            f"they hold {held} of the samples."
        )
        notes += f" To large: the share of draws that selected a large client. {counted}"
    parts: list[RenderableType] = [table, Text(notes, style="dim")]
    if (groups := group_table(trials)) is not None:
        parts += [Text(), Text("Groups of clients", style="bold"), groups, Text(GROUP_NOTES, style="dim")]
    if fault_lines := [text for trial in trials if (text := _faults(trial, seeds is not None))]:
        parts += [Text(), Text("Rounds in which clients had faults", style="bold"), *fault_lines]
    if sentences := verdict(trials) if seeds is None else paired_verdict(seeds):
        parts += [
            Text(),
            Text(f"Compared with {baseline_of([trial.label for trial in trials])}", style="bold"),
            *(Text(f"  {each}") for each in sentences),
        ]
    return Group(*parts)


def _faults(trial: RunHistory, with_seed: bool) -> Text | None:
    """List the clients with the most faults in a trial; None if no client had any.

    An example is "uniform: client-03 12 failed, 2 quarantined", where 12 and 2 are numbers of rounds.
    """
    found = [
        f"{client} {', '.join(f'{count} {fault}' for fault, count in counts.items())}"
        for client, counts in faults(trial).items()
    ]
    if not found:
        return None
    others = [f"{len(found) - MOST} more clients"] if len(found) > MOST else []
    label = f"{trial.label}, seed {trial.settings['seed']}" if with_seed else trial.label
    return Text(f"  {label}: {'; '.join([*found[:MOST], *others])}")
