"""Writes the pages in docs/reference/ from the code: `make reference`. tests/test_docs.py compares them."""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import typer

from benchmarks.command import bench
from deploy.check.requirements import designs_of
from deploy.cli import cli
from deploy.metrics.catalogue import METRICS
from deploy.runs.selectors import describe
from server.history.field_checks import ALIGNED, MAYBE_ALIGNED, ROUND
from server.settings import GROUPS, MAY_CHANGE, RunSettings
from strategies.designs import DESIGNS
from strategies.options import Buffered, Faults
from strategies.selectors import available, selector_type
from strategies.server_steps.compatibility import check_buffered, check_masked, table

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
_BOUNDS = {"Ge": ">= {.ge}", "Gt": "> {.gt}", "Le": "<= {.le}", "Lt": "< {.lt}"}
_KINDS = {int: "whole number", float: "number", bool: "true, false", str: "text"}
_SAME = "`COMMAND --help` prints the same."
_SETTINGS = """\
`cohort up --set NAME=VALUE`, also with `simulate` and `server run`; a key of the file of a
[sweep](../sweeps.md); in containers `COHORT_SET="NAME=VALUE ..."`. "Library" names the option of
`SelectionStrategy` with the same effect ([options](../api/options.md)). `*`: a resume may change it."""
_FIELDS = """\
[The history](../history.md) has one line for each round. Fields marked "each" are lists with a value for
each client in `clients`; those marked "each or none" may be empty instead."""
_METRICS = "[How to offer them](../metrics.md). `run` is the run's folder; in containers COMPARISON/TRIAL."
_SELECTORS = """\
[Which selector should I use?](../selectors.md) "Needs" are numbers that a selector must know of clients.
"Designs" are the values of its setting [`design`](../draws.md) beside `own`. "Buffered", "masked": whether
it goes with [buffered rounds](../slow-clients.md#buffered-rounds) and [masked updates](../privacy.md).
`cohort selectors NAME` prints the settings of one."""


def pages() -> dict[str, str]:
    """Return the text of each page, by the name of its file."""
    found = {
        "options": ("Options of the commands", _SAME, _command(typer.main.get_command(cli), "cohort")),
        "benchmarks": (
            "Options of the benchmarks",
            _SAME,
            _command(typer.main.get_command(bench), "cohort bench"),
        ),
        "settings": ("Settings of a run", _SETTINGS, _settings()),
        "history": ("Fields of a round in the history", _FIELDS, _fields()),
        "metrics": ("Metrics for Prometheus", _METRICS, _metrics()),
        "selectors": ("Selectors, designs and server strategies", _SELECTORS, _selectors()),
    }
    return {
        f"{name}.md": "\n".join([f"# {title}", "", about, "", *lines]).rstrip() + "\n"
        for name, (title, about, lines) in found.items()
    }


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {head} |"
    yield "|---" * len(head.split("|")) + "|"
    for row in rows:
        yield f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _command(command: click.Command, path: str) -> Iterator[str]:
    """Yield a section for a command, or for each command of a group."""
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from _command(each, f"{path} {name}")
        return
    yield from (f"## {path}", "", " ".join(f"{command.help or ''} {command.epilog or ''}".split()), "")
    rows = [(*_option(each), getattr(each, "help", None) or "") for each in command.params]
    yield from _table("option | default | meaning", rows)


def _option(param: Any) -> tuple[str, str]:
    default = param.default() if callable(param.default) else param.default
    shown = "" if not param.show_default or default in (None, False, (), "") else str(default)
    if isinstance(param, click.Argument):
        return f"`{(param.metavar or param.name).upper()}`", shown
    value = param.metavar or "/".join(getattr(param.type, "choices", ()))
    names = " ".join([*param.opts, *param.secondary_opts, value]).strip()
    return f"`{names}`", param.opts[0] if default is True else shown


def _settings() -> Iterator[str]:
    text = (ROOT / "pyproject.toml").read_text("utf-8").partition("[tool.flwr.app.config]\n")[2]
    meanings = dict(re.findall(r"^([\w-]+) = .*?  +# (.*)$", text, re.MULTILINE))
    defaults = tomllib.loads(text)
    options = {
        setting: f"`{kind.__name__}({option}=)`"
        for kind, settings in GROUPS.values()
        for option, setting in settings.items()
    }
    rows = []
    for key, field in RunSettings.model_fields.items():
        name = field.alias or key
        default = str(defaults[name]).lower() if isinstance(defaults[name], bool) else str(defaults[name])
        mark = f"`{name}`" + " *" * (key in MAY_CHANGE)
        rows.append((mark, default, _allowed(field), meanings[name], options.get(key, "")))
    yield from _table("setting | default | allowed | meaning | library", rows)


def _allowed(field: Any) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(f'"{each}"' for each in get_args(field.annotation))
    bounds = [
        _BOUNDS[name].format(each) for each in field.metadata if (name := type(each).__name__) in _BOUNDS
    ]
    kind = _KINDS.get(field.annotation, "")
    return f"{kind} {', '.join(each for each in bounds if each != f'< {2**63}')}".strip()


def _fields() -> Iterator[str]:
    aligned = dict.fromkeys(ALIGNED, "each") | dict.fromkeys(MAYBE_ALIGNED, "each or none")
    rows = [(f"`{name}`", aligned.get(name, ""), meaning) for name, (_, meaning) in ROUND.items()]
    yield from _table("field | clients | meaning", rows)


def _metrics() -> Iterator[str]:
    rows = [
        (f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), about)
        for name, (kind, about, labels) in METRICS.items()
    ]
    yield from _table("metric | type | labels | meaning", rows)


def _selectors() -> Iterator[str]:
    rows = []
    for name in available():
        kind, about, drawn = selector_type(name), describe(name), designs_of(selector_type(name))
        if kind.__module__.startswith("strategies."):  # not a selector of another package
            needs = ", ".join(about["needs"] + [kind.report_used] * bool(kind.report_used))
            designs = "all" if len(drawn) == len(DESIGNS) else ", ".join(drawn)
            buffered = _works(check_buffered, Buffered(10), kind, {}, None, Faults(), size=3)
            masked = _works(check_masked, kind, {}, None, None, Faults())
            rows.append((f"`{name}`", about["selects"], about["unbiased"], needs, designs, buffered, masked))
    yield from _table("selector | selects clients | unbiased | needs | designs | buffered | masked", rows)
    yield from ("## Designs", "")
    answers = {True: "yes", False: "no"}
    rows = [
        (f"`{each.name}`", answers[each.fixed_size], answers[each.uses_features]) for each in DESIGNS.values()
    ]
    yield from _table("design | always K distinct clients | uses what is remembered of updates", rows)
    yield from (
        "## Server strategies",
        "",
        table(),
        "",
        "## Server strategies with `variates`",
        "",
        table("fedvarp"),
    )


def _works(check: Callable[..., None], *arguments: object, **more: object) -> str:
    try:
        check(*arguments, **more)
    except ValueError:
        return "no"
    return "yes"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, "utf-8")
