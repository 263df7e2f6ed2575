"""What `cohort selectors` shows: the selectors, what each needs, and the settings of one selector."""

import math
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from strategies.selectors.base import Selector
from strategies.selectors.checks import interval
from strategies.selectors.flics.groups import GroupNumbers
from strategies.selectors.registry import available, selector_type
from strategies.selectors.settings import Schedule, Setting, SettingValue

_UNBIASED = {"round": "each round", "long-run": "over time", "none": "no"}
_POLLED = {
    "loss": "losses",
    "update_norm": "norms of all",
    "gradient_variance": "variances of all",
    "diversity": "updates of all",
    "group": "randomised groups",
}


def describe(name: str) -> dict[str, Any]:
    """Return what a selector does and needs, as plain values.

    The keys are "selects" (a text that follows "selects clients"), "needs" (the numbers that the selector
    must know about clients before it selects; a list of texts), "unbiased" (a text) and "settings" (for each
    setting: "default", "allowed" and "meaning").
    """
    kind = selector_type(name)
    return {
        "selects": kind.summary or (kind.__doc__ or "").strip().partition("\n")[0],
        "needs": _needs(kind),
        "unbiased": _UNBIASED[kind.unbiased],
        "settings": {
            key.replace("_", "-"): {
                "default": _text(each.default),
                "allowed": _allowed(each),
                "meaning": each.doc,
            }
            for key, each in kind.settings_type.allowed().items()
        },
    }


def _text(default: SettingValue) -> str:
    if isinstance(default, Schedule):
        return "/".join(f"{value}@{first}" if first else f"{value}" for first, value in default.steps)
    return "" if default is None else str(default)


def _needs(kind: type[Selector]) -> list[str]:
    needs = [_POLLED[each] for each in sorted(kind.polls_for)]
    if any(isinstance(each, GroupNumbers) for each in kind.settings_type.allowed().values()):
        needs.append("groups")
    required = {name for name, each in kind.per_client.items() if each.default is None}
    return needs + sorted(required - {"groups"})


def _allowed(setting: Setting) -> str:
    if isinstance(setting, GroupNumbers):
        return f"numbers of groups, {interval(setting.low, setting.high)}"
    if isinstance(setting.default, bool):
        return "True or False"
    if setting.choices:
        return ", ".join(setting.choices)
    return (
        "any number"
        if math.isinf(setting.low) and math.isinf(setting.high)
        else interval(setting.low, setting.high)
    )


def table_of_selectors() -> Table:
    """Return a table of all selectors."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for title in ("selector", "unbiased"):
        table.add_column(title, no_wrap=True)
    table.add_column("selects clients")
    for name in available():
        about = describe(name)
        needs = f" (needs {', '.join(about['needs'])})" if about["needs"] else ""
        table.add_row(name, about["unbiased"], Text(about["selects"] + needs))
    return table


def table_of_settings(name: str) -> Table:
    """Return a table of a selector's settings. Raises ValueError if there is no such selector."""
    about = describe(name)
    title = Text(f"{name} selects clients {about['selects']}")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_justify="left")
    table.add_column("setting", no_wrap=True)
    for head in ("default", "allowed", "meaning"):
        table.add_column(head, overflow="fold")
    for setting, each in about["settings"].items():
        table.add_row(setting, Text(each["default"]), Text(each["allowed"]), Text(each["meaning"]))
    return table
