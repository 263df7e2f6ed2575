"""The directive ``selector-settings``: all selectors, what each states about itself, and its settings."""

import math
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from flwr_cohort.selectors import available, selector_type
from flwr_cohort.selectors.settings import Schedule

_UNBIASED = {"round": "in every round", "long-run": "over time", "none": "no"}


def _value(value: Any) -> str:
    if isinstance(value, Schedule):
        return "/".join(f"{number}@{first}" if first else f"{number}" for first, number in value.steps)
    return {None: "none", "": "none"}.get(value, f"{value}")


def _range(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    if math.isinf(high):
        return f">= {low:g}"
    return f"<= {high:g}" if math.isinf(low) else f"{low:g} to {high:g}"


def _allowed(setting: Any) -> str:
    if isinstance(setting.default, bool):
        return "True, False"
    return ", ".join(setting.choices) or _range(setting.low, setting.high)


def _rows(name: str) -> list[tuple[str, str, str, str]]:
    kind = selector_type(name)
    rows = [
        (
            each,
            _value(allowed.default),
            _allowed(allowed),
            allowed.doc,
        )
        for each, allowed in kind.settings_type.allowed().items()
    ]
    return rows + [
        (
            each,
            "given" if of.default is None else f"{of.default:g}",
            f"{_range(of.low, of.high)}, per client",
            of.doc,
        )
        for each, of in kind.per_client.items()
    ]


def lines_of(name: str) -> list[str]:
    """Return the entry of one selector in reStructuredText."""
    kind = selector_type(name)
    lines = [f".. _selector-{name}:", "", name, "^" * len(name), "", f"Selects clients: {kind.summary}.", ""]
    lines += [f"Unbiased: {_UNBIASED[kind.unbiased]}."]
    for label, values in (
        ("Polls clients for", kind.polls_for),
        ("Learns from reported", kind.feedback_used),
    ):
        if values:
            lines[-1] += f" {label}: {', '.join(sorted(each.replace('_', ' ') for each in values))}."
    lines.append("")
    if rows := _rows(name):
        lines += [".. list-table::", "   :header-rows: 1", "   :widths: 22 14 20 44", ""]
        for row in (("setting", "default", "allowed", "meaning"), *rows):
            cells = [f"``{row[0]}``" if row[0] != "setting" else row[0], *row[1:]]
            lines += [f"   {'* -' if not n else '  -'} {cell}" for n, cell in enumerate(cells)]
        lines.append("")
    return lines


class SelectorSettings(Directive):
    """Lists all selectors."""

    def run(self) -> list[Any]:
        """Return the parsed entries."""
        text = [line for name in available() for line in lines_of(name)]
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(text, "registry"), self.content_offset, node, match_titles=True)
        return list(node.children)


def setup(app: Any) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("selector-settings", SelectorSettings)
    return {"parallel_read_safe": True}
