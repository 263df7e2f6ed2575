"""The option `--import` of `cohort` commands: loads the user's selectors and tasks from files or modules."""

import shlex
from collections.abc import Sequence
from typing import Any

import click
import typer

from deploy.option_types import fail
from strategies import extensions


class WithImports(click.Command):
    """A command or a group of commands with the option `--import`. Parsing the option imports the modules."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.append(
            click.Option(
                ["--import"],
                multiple=True,
                metavar="FILE.py",
                expose_value=False,
                callback=_import,
                help="A file or module with selectors and tasks of your own; may be repeated.",
            )
        )


class CommandWithImports(WithImports, typer.core.TyperCommand):
    """A command with the option `--import`."""


class GroupWithImports(WithImports, typer.core.TyperGroup):
    """A group of commands with the option `--import` before the name of a command."""


def import_options() -> str:
    """Return the options `--import` with which another command imports the same modules, as a command line.

    Each option begins with a blank.
    """
    return "".join(f" --import {shlex.quote(module)}" for module in extensions.named())


def _import(context: click.Context, option: click.Parameter, modules: Sequence[str]) -> None:
    if context.resilient_parsing:
        return
    try:
        if modules:
            extensions.name_modules(modules)
        else:
            extensions.load()
    except ValueError as error:
        fail(str(error))
