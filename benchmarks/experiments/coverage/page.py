"""The text of docs/papers.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from benchmarks.experiments import EXPERIMENTS
from benchmarks.experiments.coverage.row import MEANINGS, Paper, Row, Status

_START = """\
# Which parts of the papers are here?

Every algorithm, variant, figure, table and bound of the papers, with the command that runs it, if any. Lemmas
that only serve a proof are left out. `cohort bench papers --coverage` prints this page: change the rows in
`benchmarks/experiments/coverage/`, not the page. Tests compare the names in it with the registries of
selectors, settings and experiments.

[results.md](results.md#the-papers-claims) has what was measured. Commands that begin with `cohort up` train a
federation on this machine over gRPC; `cohort simulate` takes these options too. FOLDER holds the data files
of experiments, FILE is a file of yours.

The commands that begin with `cohort up` run with the guard, which no paper has. With honest clients, its
default level `sane` changes nothing: weights, selections and models are those of the papers' algorithms. With
`--set guard=strict`, selectors learn from clipped values, and under `pow-d`, its variants, `afl`, `oort` and
`tifl` a client rests after more than twice the draws that correspond to its share of the data. The
experiments run without the guard.
"""


def page(papers: Sequence[Paper]) -> str:
    """Return docs/papers.md, as Markdown.

    Raises
    ------
    KeyError
        If a row names an experiment that is not registered.
    """
    statuses: tuple[Status, ...] = get_args(Status)
    lines = [_START, "| status | meaning |", "|---|---|"]
    lines += [f"| {status} | {MEANINGS[status]} |" for status in statuses]
    lines += ["", f"| number of items | {' | '.join(statuses)} |", "|---" * (len(statuses) + 1) + "|"]
    for paper in papers:
        counts = Counter(row.status for row in paper.rows)
        lines.append(f"| {paper.name} | {' | '.join(str(counts[status]) for status in statuses)} |")
    for paper in papers:
        lines += ["", f"## {paper.name}", "", f"{paper.title}.", ""]
        lines += ["| item | what it is | status | reason | command |", "|---|---|---|---|---|"]
        for row in paper.rows:
            run_by = "<br>".join(f"`{command}`" for command in commands(row))
            lines.append(f"| {row.item} | {row.what} | {row.status} | {row.why} | {run_by} |")
    return "\n".join(lines) + "\n"


def commands(row: Row) -> list[str]:
    """Return the commands of a row: `cohort up` runs its selectors, `cohort bench papers` its experiments.

    Experiments that need the same data set are in one command, and so are those that need none.
    """
    found = []
    if row.selectors:
        options = [f"--selector {each}" for each in row.selectors]
        options += [f"--set {each}" for each in row.settings]
        found.append(" ".join(["cohort up", *options]))
    files = {name: EXPERIMENTS[name].data for name in row.experiments}
    # `cohort bench papers` refuses a list of experiments if the data of one of them is missing.
    for file in dict.fromkeys(files.values()):
        names = " ".join(name for name in row.experiments if files[name] == file)
        found.append(f"cohort bench papers {names}{' --data FOLDER' if file else ''}")
    return found
