"""What the commands share: kinds of options, two options, and the end of a command that fails."""

import math
from functools import partial
from typing import Annotated, Any, NoReturn

import click
import typer

from strategies.clients.printable import printable

LINES = "\n\t"  # the unprintable characters that messages keep
# An option and an argument whose help says what happens without them.
optional: Any = partial(typer.Option, show_default=False)
argument: Any = partial(typer.Argument, show_default=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value, and nothing else.")]
Track = Annotated[
    list[str] | None,
    optional(
        "--track",
        metavar="NAME",
        help="Also show the rounds in tensorboard, mlflow or wandb; may be repeated.",
    ),
]


def fail(message: str, code: int = 2) -> NoReturn:
    """End a command with an exit code, and a message that cannot command the terminal."""
    typer.echo(printable(message, None, keep=LINES), err=True)
    raise typer.Exit(code) from None


class Finite(click.FloatRange):
    """A finite number within a range. Click's own type accepts NaN, and infinity if there is no maximum."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; end the command if it is outside of the range or not finite."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number
