"""The pages of results, docs/results.md and docs/results/*.md, and docs/scale.md: text with blocks of data.

A block stands between ``<!--KIND NAME-->`` and ``<!--end-->``. `BLOCKS` has the kinds.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments import EXPERIMENTS
from benchmarks.experiments.report import markdown, rows
from benchmarks.results.claims import Finding, judge, read_claims
from benchmarks.results.figures import CLAIMS_FIGURE, FIGURES, ratios
from benchmarks.results.files import Measured, Recorded, Result
from benchmarks.results.first_to_accuracy import default_first, first
from benchmarks.results.front_ends import needs
from benchmarks.results.goals import goals_table
from benchmarks.results.recording import command_of
from benchmarks.results.tables import output_table
from deploy.flower.app_folder import CODE

DOCS = CODE / "docs"
BLOCK = re.compile(r"(<!--(\w+) ?([\w.-]*)-->\n)(.*?)(<!--end-->)", re.DOTALL)


def pages(results: Mapping[str, Result], docs: Path = DOCS) -> dict[Path, tuple[str, str]]:
    """Return of each page the text that it has, and the text that it should have.

    Raises KeyError if a claim names a cell that its data file does not have, or a block a result that is
    unknown; ValueError if the end of a block is missing.
    """
    findings = judge(read_claims(), results)

    found = {}
    for page in (docs / "results.md", *docs.glob("scale.md"), *sorted((docs / "results").glob("*.md"))):
        here = "" if page.parent == docs else "../"  # the way to docs/

        def filled(block: re.Match[str], here: str = here) -> str:
            start, kind, name, _, end = block.groups()
            lines = "\n".join(BLOCKS[kind](name, results, findings))
            return f"{start}{lines.replace('{here}', here)}\n{end}"

        text = page.read_text(encoding="utf-8")
        if len(BLOCK.findall(text)) != len(re.findall("<!--(?! |end-->)", text)):
            raise ValueError(f"{page.name}: each <!--KIND NAME--> must have its own <!--end-->")
        found[page] = text, BLOCK.sub(filled, text)
    return found


def shown(texts: Sequence[str]) -> set[str]:
    """Return the names of the experiments and benchmarks that have a block."""
    return {
        name for text in texts for _, kind, name, *_ in BLOCK.findall(text) if kind in ("table", "output")
    }


def _table(name: str, results: Mapping[str, Result], findings: Sequence[Finding]) -> list[str]:
    result, experiment = results.get(name), EXPERIMENTS[name]
    if not isinstance(result, Recorded):
        return [f"No results yet. `{command_of(experiment)}` makes them."]
    lines = [*rows(result.report(experiment)), "", *_origin(result)]
    if len(result.seeds) > experiment.seeds:
        usual = f"the text above may name {experiment.seeds}, the usual number"
        lines.append(f"Recorded with {len(result.seeds)} seeds; {usual}.")
    if name in FIGURES and result.curves:
        lines += ["", f"![{experiment.text.title}]({name}.png)"]
    return lines


def _output(name: str, results: Mapping[str, Result], findings: Sequence[Finding]) -> list[str]:
    result = results.get(name)
    if not isinstance(result, Measured):
        return [f"No results yet. `cohort bench results --measure {name}` makes them."]
    return [*output_table(name, result.output), "", *_origin(result)]


def _origin(result: Recorded | Measured) -> list[str]:
    """Say when, where and by which command a result was made."""
    machine = result.machine
    gpu = f"{machine['gpu']}, " if "gpu" in machine else ""
    lines = [
        f"`{result.command}`, {result.measured}, commit {result.commit}, {gpu}{machine['cpu']}, "
        f"{machine['cores']} cores, NumPy {machine['numpy']}; [raw values](../../results/{result.name}.json)."
    ]
    for each in result.renewed:
        if "rows" in each:
            rows = ", ".join(f"`{row}`" for row in each["rows"])
            lines.append(
                f"The rows {rows} are those of commit {each['rows_commit']}: on {each['measured']} seed "
                f"{each['seed']} ran again as a whole, and gave their recorded values, {each['equal']}."
            )
    if result.renewed and "rows" not in result.renewed[-1]:
        last = result.renewed[-1]
        rerun = "everything" if last["seed"] == "all" else f"seed {last['seed']}"
        lines.append(
            f"Since then the code has changed. On {last['measured']} {rerun} ran again (commit "
            f"{last['commit']}), and gave the recorded values, {last['equal']}."
        )
    return lines


def _claims(group: str, results: Mapping[str, Result], findings: Sequence[Finding]) -> list[str]:
    lines = [["claim", "effect", "95 % interval", "seeds", "verdict", "experiment"]]
    for each in (each for each in findings if each.claim.group == group):
        name = each.claim.experiment
        heading = f"{name}: {EXPERIMENTS[name].text.title}".lower()
        anchor = "".join(each for each in heading if each.isalnum() or each in "_- ").replace(" ", "-")
        link = f"[{name}]({{here}}results/{EXPERIMENTS[name].text.page}#{anchor})"
        lines.append(
            [each.claim.text, _effect(each), _interval(each), str(each.seeds or ""), each.verdict, link]
        )
    return markdown(lines, "lrlrll")


def _users(_: str, results: Mapping[str, Result], findings: Sequence[Finding]) -> list[str]:
    """List which claims are shown, which are not shown, and which are contradicted, and tabulate them."""
    heads = {
        "yes": "Shown:",
        "not shown": "Not shown with these seeds:",
        "no: the opposite": "Shown to be otherwise:",
    }
    lines = []
    for verdict, head in heads.items():
        those = [each for each in findings if each.claim.group == "users" and each.verdict == verdict]
        lines += [f"**{head}**", ""] if those else []
        lines += [
            f"- {each.claim.text}: {_effect(each)}, 95 % interval {_interval(each)}, {each.seeds} seeds."
            for each in those
        ]
        lines += [""] if those else []
    return [*lines, *_claims("users", results, findings)]


def _verdicts(_: str, results: Mapping[str, Result], findings: Sequence[Finding]) -> list[str]:
    counts = sorted(Counter(each.verdict for each in findings).items())
    lines = [f"Of all claims on this page: {', '.join(f'{count} {verdict}' for verdict, count in counts)}."]
    if ratios(findings):
        lines += ["", f"![Ratios of the claims with their intervals](results/{CLAIMS_FIGURE})"]
    return lines


BLOCKS: dict[str, Callable[[str, Mapping[str, Result], Sequence[Finding]], list[str]]] = {
    "table": _table,
    "output": _output,
    "claims": _claims,
    "users": _users,
    "verdicts": _verdicts,
    "goals": lambda _, results, findings: goals_table(results),
    "first": lambda _, results, findings: first(results),
    "default": lambda _, results, findings: default_first(results),
    "needs": lambda _, results, findings: needs(results),
}
"""Kind of a block -> function of the block's name, the results and the findings, which returns lines."""


def _effect(finding: Finding) -> str:
    if not finding.seeds:
        return ""
    if finding.claim.scale == "ratio":
        return f"× {_number(finding.effect)}"
    return f"{finding.effect:+.2f}{finding.claim.unit}"


def _interval(finding: Finding) -> str:
    if not finding.seeds or not (math.isfinite(finding.low) and math.isfinite(finding.high)):
        return ""
    form: Any = _number if finding.claim.scale == "ratio" else "{:+.2f}".format
    return f"[{form(finding.low)}, {form(finding.high)}]"


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"
