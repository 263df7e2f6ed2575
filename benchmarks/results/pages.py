"""The pages of results, as Markdown: docs/results.md and docs/results/*.md."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.experiments import EXPERIMENTS
from benchmarks.experiments.report import table
from benchmarks.results import first_to_accuracy
from benchmarks.results.claim_list import CLAIMS
from benchmarks.results.claims import Finding, judge
from benchmarks.results.figures import CLAIMS_FIGURE, FIGURES, ratios
from benchmarks.results.files import Kept, Measured, Recorded
from benchmarks.results.goals import goals_table
from benchmarks.results.tables import NOTES, output_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.results.files import Result

FRONT = "results.md"


@dataclass(frozen=True)
class Page:
    """A page of results.

    Attributes
    ----------
    file : str
        The path of the page below ``docs/``.
    title : str
        The heading of the page.
    about : str
        What was measured: one line for the front page.
    prefixes : tuple of str
        The page has all experiments whose names begin with one of these texts.
    benchmarks : Mapping[str, str]
        Name of a benchmark's data file -> the heading above its table.
    group : str
        The group of claims (`Claim.group`) that the page shows.
    intro : str
        A paragraph below the heading.
    summary : callable, optional
        Returns, from all results, the lines of Markdown that precede the experiments.
    has_goals : bool
        Whether the page has the table of `goals`.
    """

    file: str
    title: str
    about: str
    prefixes: tuple[str, ...] = ()
    benchmarks: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    intro: str = ""
    summary: Callable[[Mapping[str, Result]], list[str]] | None = None
    has_goals: bool = False


_CELLS = "A cell reads ours [an independent implementation]. `cohort bench papers NAME` prints a table."

PAGES = (
    Page("results/osmd.md", "OSMD", "regret, loss, bounds, MNIST", ("osmd-",), group="osmd", intro=_CELLS),
    Page(
        "results/power-of-choice.md",
        "Power-of-Choice",
        "quadratics, Synthetic(1,1), MNIST",
        ("poc-",),
        group="poc",
        intro=_CELLS,
    ),
    Page(
        "results/delta.md",
        "DELTA",
        "toy, regression, bounds, MNIST",
        ("delta-",),
        group="delta",
        intro=_CELLS,
    ),
    Page(
        "results/flics.md",
        "FLICS",
        "variance, bounds, Synthetic, MNIST",
        ("flics-",),
        group="flics",
        intro=_CELLS,
    ),
    Page(
        "results/forecast.md",
        "The selector forecast, and advice",
        "streams that it was not tuned on; how often advice from a log is right",
        ("forecast-",),
        {"advice": "Advice from a log"},
        "forecast",
        "`forecast` is this project's own selector. It is also a row in the tables of the papers' pages.",
    ),
    Page(
        "results/speed.md",
        "Speed and memory",
        "rounds of messages, simulation, aggregation, selection, a million clients, devices",
        benchmarks={
            "rounds": "A round of messages",
            "messages": "CPU time of a message",
            "throughput": "Client updates a second",
            "networks": "The papers' networks on a GPU",
            "aggregation": "Aggregating large models",
            "selection": "A round of selection",
            "population": "A round among a million clients",
            "devices": "Many devices",
            "models": "Large models",
            "half-precision": "Half precision on the wire",
            "memory": "Memory of a device",
        },
        has_goals=True,
        intro="Times depend on the machine: compare a time only with the others in the same table. "
        "`make results-check` does not check them, since no machine repeats a time.",
    ),
    Page(
        "results/robustness.md",
        "Late clients, liars and noise",
        "over-selection, liars, noise on reports",
        ("liars-", "report-noise"),
        {"over-selection": "Over-selection"},
    ),
    Page(
        "results/slow-clients.md",
        "Slow clients",
        "time to accuracy of selectors, over-selection and buffered rounds; the bias of the aggregate",
        ("time-",),
        {"time-to-accuracy": "Over real processes"},
        intro="[My clients are slow](../slow-clients.md) says what to turn on. `devices` are the 200 devices "
        "of `benchmarks/time_to_accuracy/devices.json`. The file has the form of FedScale's, but its speeds "
        "were drawn at random.",
        summary=first_to_accuracy.section,
    ),
)

_FRONT = """\
# What was measured, and does it match the papers?

`make results` writes this page from the data files in [results/](../results/README.md): do not edit it.
`make results-check` compares pages, sources and a sample of seeds with the data files.

An effect is the mean over the seeds of a difference, or the geometric mean of a ratio (×), between two
selectors with the same seeds, and its 95 % interval is Student's. A verdict is "yes" or "no" only if a
paired t test, corrected by Holm's method for all comparisons of its table that have values, shows the
effect on one side of the claim's limit (p < .05). The limit is 0, or 1 for a ratio, unless the claim
names another. Otherwise it is "not shown", which is all that a handful of
seeds can say about most differences. "Not rerun": the figures are from before results were recorded; the
paper's page has them, and they may be outdated.

Regret is the variance of the aggregate beyond that of the best probabilities of each round, summed over
the rounds.

## What a user gains
"""


def files_of(page: Page, results: Mapping[str, Result]) -> list[str]:
    """Return the names of the data files that a page shows, in the order of the page."""
    found = [name for name in EXPERIMENTS if name.startswith(page.prefixes) and name in results]
    return [*found, *(name for name in page.benchmarks if name in results)]


def pages(results: Mapping[str, Result]) -> dict[str, str]:
    """Return the text of each page by its path below ``docs/``.

    Raises
    ------
    KeyError
        If a claim names a cell that its data file does not have.
    """
    findings = judge(CLAIMS, results)
    return {FRONT: _front(findings, results), **{page.file: _page(page, findings, results) for page in PAGES}}


def claims_table(findings: Sequence[Finding]) -> list[str]:
    """Return a table of findings as lines of Markdown.

    In its links, ``{here}`` stands for the way from the page to ``docs/``.
    """
    lines = ["| claim | effect | 95 % interval | seeds | verdict | experiment |", "|---|--:|---|--:|---|---|"]
    for each in findings:
        claim = each.claim
        link = f"[{claim.experiment}]({{here}}{_page_of(claim.experiment)}#{_anchor(claim.experiment)})"
        lines.append(
            f"| {claim.text} | {_effect(each)} | {_interval(each)} | {each.seeds or ''} "
            f"| {each.verdict} | {link} |"
        )
    return lines


def _front(findings: Sequence[Finding], results: Mapping[str, Result]) -> str:
    lines = _FRONT.splitlines()
    users = [each for each in findings if each.claim.group == "users"]
    lines += ["", *_sentences(users), "", *claims_table(users), ""]
    verdicts = Counter(each.verdict for each in findings)
    lines += ["## The papers' claims", ""]
    lines += [
        "Of all claims on this page: "
        + ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        + ".",
    ]
    if ratios(findings):
        lines += ["", f"![Ratios of the claims with their intervals](results/{CLAIMS_FIGURE})"]
    for page in PAGES:
        chosen = [each for each in findings if page.group and each.claim.group == page.group]
        if chosen:
            lines += ["", f"### {page.title}", "", *claims_table(chosen)]
    lines += [
        "",
        "## All pages",
        "",
        "| page | what was measured | recorded | not rerun |",
        "|---|---|--:|--:|",
    ]
    for page in PAGES:
        names = files_of(page, results)
        kept = sum(isinstance(results[name], Kept) for name in names)
        lines.append(f"| [{page.title}]({page.file}) | {page.about} | {len(names) - kept} | {kept} |")
    lines += [
        "",
        "Where this project uses MNIST, the papers use FEMNIST, CIFAR-10, CIFAR-100, CelebA, EMNIST, Sent140",
        "or Fashion-MNIST. Their experiments run where their files are present, and have no results yet.",
        "[papers.md](papers.md) lists every item of the papers, and which are missing.",
    ]
    return "\n".join(lines).replace("{here}", "") + "\n"


def _sentences(users: Sequence[Finding]) -> list[str]:
    """Return lines of Markdown: which claims are shown, which are not shown, and which are contradicted."""
    found = {
        "Shown:": [each for each in users if each.verdict == "yes"],
        "Not shown with these seeds:": [each for each in users if each.verdict == "not shown"],
        "Shown to be otherwise:": [each for each in users if each.verdict.startswith("no:")],
    }
    lines = []
    for head, those in found.items():
        lines += [f"**{head}**", ""] if those else []
        lines += [
            f"- {each.claim.text}: {_effect(each)}, 95 % interval {_interval(each)}, {each.seeds} seeds."
            for each in those
        ]
        lines += [""] if those else []
    return lines[:-1]


def _page(page: Page, findings: Sequence[Finding], results: Mapping[str, Result]) -> str:
    lines = [f"# {page.title}", "", "Generated by `make results`: do not edit. [All results](../results.md)."]
    if page.intro:
        lines += ["", page.intro]
    if page.has_goals:
        lines += ["", "## Goals", "", *goals_table(results)]
    chosen = [each for each in findings if page.group and each.claim.group == page.group]
    if chosen:
        lines += ["", "## Claims", "", *claims_table(chosen)]
    if page.summary:
        lines += ["", *page.summary(results)]
    names = files_of(page, results)
    if any(name in EXPERIMENTS for name in names):
        lines += ["", "## Experiments"]
    for name in names:
        lines += ["", *_section(name, page, results[name])]
    return "\n".join(lines).replace("{here}", "../") + "\n"


def _section(name: str, page: Page, result: Result) -> list[str]:
    if isinstance(result, Kept):
        head = (
            f"### {name}: {EXPERIMENTS[name].title}" if name in EXPERIMENTS else f"## {page.benchmarks[name]}"
        )
        return [head, "", _outdated(result), "", *result.text]
    if isinstance(result, Measured):
        return [
            f"## {page.benchmarks[name]}",
            "",
            *([NOTES[name], ""] if name in NOTES else []),
            *output_table(result),
            "",
            *_origin(result),
        ]
    lines = table(result.report(EXPERIMENTS[name])).splitlines()
    lines += ["", *_origin(result)]
    usual = EXPERIMENTS[name].seeds
    if len(result.seeds) > usual:
        lines.append(
            f"Recorded with {len(result.seeds)} seeds; the text above may name {usual}, the usual number."
        )
    if name in FIGURES and result.curves:
        lines += ["", f"![{EXPERIMENTS[name].title}]({name}.png)"]
    return lines


def _origin(result: Recorded | Measured) -> list[str]:
    """Say when, where and by which command a result was made."""
    machine = result.machine
    gpu = f"{machine['gpu']}, " if "gpu" in machine else ""
    text = (
        f"`{result.command}`, {result.measured}, commit {result.commit}, {gpu}{machine['cpu']}, "
        f"{machine['cores']} cores, NumPy {machine['numpy']}; [raw values](../../results/{result.name}.json)."
    )
    lines = [text]
    if result.renewed:
        last = result.renewed[-1]
        rerun = "everything" if last["seed"] == "all" else f"seed {last['seed']}"
        lines.append(
            f"Since then the code has changed. On {last['measured']} {rerun} ran again (commit "
            f"{last['commit']}), and gave the recorded values, {last['equal']}."
        )
    return lines


def _outdated(result: Kept) -> str:
    return (
        f"> **Not rerun since {result.since}; may be outdated.** Measured before results were recorded, "
        f"without raw values. To repeat it: `{result.command}`."
    )


def _page_of(experiment: str) -> str:
    return next(page.file for page in PAGES if experiment.startswith(page.prefixes))


def _anchor(experiment: str) -> str:
    heading = f"{experiment}: {EXPERIMENTS[experiment].title}".lower()
    return "".join(each for each in heading if each.isalnum() or each in "_- ").replace(" ", "-")


def _effect(finding: Finding) -> str:
    if not finding.seeds:
        return ""
    if finding.claim.scale == "ratio":
        return f"× {_number(finding.effect)}"
    return f"{finding.effect:+.2f}{finding.claim.unit}"


def _interval(finding: Finding) -> str:
    if not finding.seeds or not (math.isfinite(finding.low) and math.isfinite(finding.high)):
        return ""
    form = _number if finding.claim.scale == "ratio" else "{:+.2f}".format
    return f"[{form(finding.low)}, {form(finding.high)}]"


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"
