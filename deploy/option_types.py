"""Options of commands without a default that is shown, and the type of options that take a finite number."""

import math
from functools import partial
from typing import Any

import click
import typer

# An option and an argument whose help says what happens without them.
optional: Any = partial(typer.Option, show_default=False)
argument: Any = partial(typer.Argument, show_default=False)


class Finite(click.FloatRange):
    """A finite number within a range. Click's own type accepts NaN, and infinity if there is no maximum."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; end the command if it is outside of the range or not finite."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number
