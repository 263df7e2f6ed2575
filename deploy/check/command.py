"""The command `cohort check`."""

import json
import subprocess
import tomllib
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from deploy.flower.commands import python
from deploy.option_types import fail
from strategies.designs import DESIGNS


def check(
    clients: Annotated[
        int, typer.Option(min=1, help="The number of clients that the ServerApp finds. One of them trains.")
    ] = 10,
) -> None:
    """Let one client of the Flower app in this folder train, and say which selectors the app can use.

    For the other selectors, show what is missing, and the code that gives it.
    """
    console = Console(highlight=False, markup=False)
    try:
        app = {**_app(Path("pyproject.toml")), "clients": clients}
        with console.status("one client trains one round ..."):
            found = _first_round(app)
    except ValueError as error:
        fail(str(error))
    _show(console, found)


def _app(path: Path) -> dict[str, Any]:
    """Return an app's ``clientapp`` and ``serverapp``, each MODULE:ATTRIBUTE, and its run ``config``."""
    try:
        app = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
        names = {name: app["components"][name] for name in ("clientapp", "serverapp")}
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; run this in the folder of a Flower app") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    except KeyError as error:
        needed = "[tool.flwr.app.components] with clientapp and serverapp"
        raise ValueError(f"{path}: {error} is missing; a Flower app has {needed}") from None
    return {**names, "config": _flat(app.get("config", {}))}


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings in a table and its tables by Flower's names: {"a": {"b": 1}} is {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _first_round(app: dict[str, Any]) -> dict[str, Any]:
    """Return what `first_round` finds. A ValueError says what is wrong with the app."""
    command = python("-m", "deploy.check.first_round")
    done = subprocess.run(command, input=json.dumps(app), capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout or "{}")
    if not found:
        last = (done.stderr.split("\n")[-2:] or [""])[0]
        found["error"] = f"the app has ended its process with exit status {done.returncode}: {last}"
    if "error" in found:
        raise ValueError(found["error"])
    return found


def _show(console: Console, found: dict[str, Any]) -> None:
    usable = {name: designs for name, missing, designs in found["selectors"] if not missing}
    designs = [each for each in DESIGNS if any(each in drawn for drawn in usable.values())]
    every = f"all {len(DESIGNS)}" if len(designs) == len(DESIGNS) else f"{len(designs)} of {len(DESIGNS)}"
    number = f"{len(usable)} of {len(found['selectors'])}"
    console.print(f"{number} selectors and {every} designs work with this app as it is.")
    drawn = sum(map(bool, usable.values()))
    _show_rows(console, "One client reported", found["reported"])
    can_use = {
        "selectors": ", ".join(usable),
        "designs": f"{', '.join(designs)} (the setting design of {drawn} of these selectors)",
    }
    _show_rows(console, "The app can use", can_use)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("not yet", max_width=20)
    table.add_column("what is missing, and the code that gives it")
    groups: dict[str, list[str]] = {}
    for name, missing, _ in found["selectors"]:
        needs = "\n".join(f"{text}\n{indent(code, '  ')}" for text, code in missing)
        groups.setdefault(needs, []).append(name)
    for needs, names in groups.items():
        if needs:
            table.add_row(", ".join(names), needs)
    if table.rows:
        console.print(table)
        console.print("from flwr_cohort import Overrides, Report, ReportingClientApp")


def _show_rows(console: Console, title: str, rows: dict[str, str]) -> None:
    table = Table.grid(padding=(0, 2))
    for name, text in rows.items():
        table.add_row(f"  {name}", text)
    console.print(f"\n{title}")
    console.print(table)
